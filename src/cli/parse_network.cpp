// The verbs about what sandboxes may reach and use.
#include "cli/installation.hpp"
#include "cli/parse_tree.hpp"
#include "cli/policy_verbs.hpp"

#include <CLI/CLI.hpp>

namespace cli {
namespace {

constexpr char target_help[] =
    "a sandbox, or a level: platform, organisation, project (also with :ID), template:NAME";

void add_target(Tree const& tree,
                CLI::App* noun,
                std::string const& name,
                std::string const& help,
                asio::awaitable<int> (*run)(Session, std::string)) {
  auto target = std::make_shared<std::string>();
  auto* app = noun->add_subcommand(name, help);
  app->add_option("TARGET", *target, target_help)->required();
  tree.verb(app, target, run);
}

void add_policy_changes(Tree const& tree, CLI::App* noun) {
  auto set = std::make_shared<PolicySetOptions>();
  auto* set_verb = noun->add_subcommand("set", "Replace a policy; returns when it is in force");
  set_verb->add_option("TARGET", set->target, target_help)->required();
  set_verb
      ->add_option("--allow", set->allow, "HOST[:PORT][:METHOD[,METHOD]][:PATH]; may be repeated")
      ->allow_extra_args(false);
  set_verb->add_option("--policy", set->policy_file, "a whole policy as JSON, from a file or -");
  set_verb->footer(
      "Examples:\n  space policy set ID --allow packages.example\n  space policy set project "
      "--policy policy.json");
  tree.verb(set_verb, set, &policy_set);

  auto add = std::make_shared<PolicySetOptions>();
  add->add = true;
  auto* allow_verb = noun->add_subcommand("allow", "Add rules to a policy");
  allow_verb->add_option("TARGET", add->target, target_help)->required();
  allow_verb->add_option("RULE", add->allow, "HOST[:PORT][:METHOD[,METHOD]][:PATH]")->required();
  allow_verb->footer("Example:\n  space policy allow ID 'api.llm.example:POST:/v1/messages'");
  tree.verb(allow_verb, add, &policy_set);
}

void add_credential_binding(CLI::App* app, CredentialOptions& options) {
  app->add_option("--profile", options.profile, "a provider that is known; see `profiles`");
  app->add_option("--host", options.hosts, "exact host it may go to; may be repeated")
      ->allow_extra_args(false);
  app->add_option("--port", options.ports, "default 443")->allow_extra_args(false);
  app->add_option("--method", options.methods, "default all")->allow_extra_args(false);
  app->add_option("--path", options.paths, "glob, like /v1/**; default all")
      ->allow_extra_args(false);
  app->add_option("--header", options.header, "which header carries it, like x-api-key");
  app->add_option("--form", options.form, "header (default), bearer or basic");
  app->add_option("--username", options.username, "with --form basic");
  app->add_option("--requests-per-s",
                  options.requests_per_s,
                  "how often all sandboxes of a node together may use it; default no limit")
      ->check(CLI::PositiveNumber);
  app->add_option("--concurrent",
                  options.concurrent,
                  "by how many requests at once they may use it; default no limit")
      ->check(CLI::PositiveNumber);
  app->add_option("--requests-per-day",
                  options.requests_per_day,
                  "how often they may use it from 00:00 UTC on; default no limit")
      ->check(CLI::PositiveNumber);
}

void add_grants(CLI::App* app, CredentialOptions& options) {
  app->add_option("--to-project", options.projects, "of an organisation's: which projects, or *")
      ->allow_extra_args(false);
  app->add_option("--to-sandbox", options.sandboxes, "only these sandboxes")
      ->allow_extra_args(false);
}

}  // namespace

void add_policy(Tree const& tree) {
  auto* noun = tree.noun("policy", "What sandboxes may reach, and why");
  add_target(
      tree, noun, "show", "What is in force, level by level; or one level's text", &policy_show);
  add_policy_changes(tree, noun);
  add_target(tree, noun, "rm", "Take a policy away", &policy_remove);
  add_target(
      tree, noun, "versions", "Every text that a level had, and what changed", &policy_versions);

  auto explained = std::make_shared<ExplainOptions>();
  auto* explain = noun->add_subcommand(
      "explain", "The verdict about one request, and the rule that decides it");
  explain->add_option("ID", explained->sandbox, "the sandbox")->required();
  explain->add_option("URL", explained->url)->required();
  explain->add_option("--method", explained->method, "default GET");
  explain->footer(
      "Exits with 0 when it would be allowed, 1 when not. Nothing is sent or resolved.\nExample:\n "
      " "
      "space policy explain ID https://api.llm.example/v1/messages --method POST");
  tree.verb(explain, explained, &policy_explain);

  auto watched = std::make_shared<WatchOptions>();
  auto* watch = noun->add_subcommand("watch", "Decisions as they are made");
  watch->add_option("ID", watched->sandbox, "the sandbox")->required();
  watch->add_option("--count", watched->count, "stop after so many");
  tree.verb(watch, watched, &policy_watch);

  auto id = std::make_shared<std::string>();
  auto* suggest = noun->add_subcommand("suggest", "What was denied, as rules to paste");
  suggest->add_option("ID", *id, "the sandbox")->required();
  tree.verb(suggest, id, &policy_suggest);
}

void add_credential(Tree const& tree) {
  auto* noun = tree.noun("credential", "Secrets that sandboxes use and never see");
  auto const one = [&](std::string const& name,
                       std::string const& help,
                       asio::awaitable<int> (*run)(Session, CredentialOptions)) {
    auto options = std::make_shared<CredentialOptions>();
    auto* app = noun->add_subcommand(name, help);
    app->add_option("NAME", options->name, "as policies call it")->required();
    auto* wide =
        app->add_flag("--organisation",
                      options->organisation,
                      "the organisation's, not this project's (needs a key of the installation)");
    app->add_option(
           "--template",
           options->of_template,
           "for this project's sandboxes of that template alone; nearer than the project's")
        ->excludes(wide);
    tree.verb(app, options, run);
    return std::pair(app, options);
  };
  auto const [put, put_options] =
      one("put", "Keep a secret; the value comes from stdin or --file", &credential_put);
  put->add_option("--file", put_options->file, "where the value is (default stdin)");
  add_credential_binding(put, *put_options);
  add_grants(put, *put_options);
  put->footer(
      "Examples:\n  space credential put llm-key --host api.llm.example --path '/v1/**' --header "
      "x-api-key < key.txt\n  space credential put gh --profile github --file token.txt");
  auto const [rotate, rotate_options] =
      one("rotate", "Its next value; sandboxes that run use it at once", &credential_rotate);
  rotate->add_option("--file", rotate_options->file, "where the value is (default stdin)");
  auto const [grant, grant_options] = one("grant", "Who may use it", &credential_grant);
  add_grants(grant, *grant_options);
  one("revoke", "Take it from every sandbox, now", &credential_revoke);
  one("release",
      "Out of quarantine, where it is because a server sent it back to a guest",
      &credential_release);
  one("rm", "Revoke it and forget it", &credential_remove);
  tree.verb(noun->add_subcommand("list", "All of them, without their values")->alias("ls"),
            [](Session session) { return credential_list(session); });
  tree.verb(noun->add_subcommand("profiles", "What is known of providers"),
            [](Session session) { return credential_profiles(session); });
}

void add_audit(Tree const& tree) {
  auto* noun = tree.noun("audit", "The log of every decision, on this host");
  auto options = std::make_shared<AuditOptions>();
  auto* verify = noun->add_subcommand("verify", "Walk its hash chain");
  verify->add_option("--dir", options->directory, "another worker's directory");
  verify->add_option(
      "--checkpoint",
      options->checkpoint_file,
      "compare with what was there the last time, and keep there what is now; a file "
      "that only you can change");
  verify->add_option("--node",
                     options->node,
                     "the host whose checkpoints the control plane is asked for (default this one; "
                     "with --dir nobody is asked)");
  tree.then(verify, [options, global = &tree.global] {
    bool const ours = options->node.empty() && options->directory.empty();
    if (ours) options->node = config_of_host().node_name;
    bool const can_ask = find_target(global->api_url, global->key_file).has_value();
    if (options->node.empty() || !can_ask) return audit_verify(*options, global->as_json);
    return run_verb(*global,
                    [options](Session session) { return audit_verify_kept(session, *options); });
  });
  auto node = std::make_shared<std::string>();
  auto* accept = noun->add_subcommand(
      "accept", "After a look at a host: forget its key and checkpoints, take what it shows next");
  accept->add_option("NODE", *node)->required();
  tree.verb(accept, [node](Session session) { return audit_accept(session, *node); });
  auto exported = std::make_shared<AuditOptions>();
  auto* copy = noun->add_subcommand("export", "Copy verified lines to a file, stdout or syslog");
  copy->add_option("--dir", exported->directory, "another worker's directory");
  copy->add_option("--file", exported->file, "append to this file (default stdout)");
  copy->add_flag("--syslog", exported->to_syslog, "to syslog, as space-audit");
  copy->add_option("--sandbox", exported->sandbox, "only of this sandbox");
  copy->add_option("--state",
                   exported->state_file,
                   "keep there how far it came, and go on from there: for a timer");
  copy->footer(
      "Examples:\n  space audit export --sandbox ID\n  space audit export --syslog --state "
      "/var/lib/audit-export");
  copy->add_option("--after", exported->after, "go on behind this sequence number");
  tree.then(copy, [exported] { return audit_export(*exported); });
  auto kept = std::make_shared<AuditOptions>();
  auto* retain = noun->add_subcommand("retain", "How much of it is kept; the oldest goes first");
  retain->add_option("--dir", kept->directory, "another worker's directory");
  retain->add_option("--mib", kept->keep_mib, "at most that much (default 1024)");
  retain->add_option("--days", kept->keep_days, "nothing older; 0: no matter how old (default)");
  tree.then(retain, [kept, global = &tree.global] { return audit_retain(*kept, global->as_json); });
}

}  // namespace cli
