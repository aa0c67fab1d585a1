#include "cli/parse.hpp"

#include "cli/doctor.hpp"
#include "cli/env_verb.hpp"
#include "cli/parse_tree.hpp"
#include "cli/parse_usage.hpp"
#include "cli/up.hpp"
#include "cli/verbs.hpp"

#include <CLI/CLI.hpp>

namespace cli {
namespace {

template <class T>
void optional_option(CLI::App* app,
                     std::string const& name,
                     std::optional<T>& into,
                     std::string const& help) {
  app->add_option_function<T>(name, [&into](T const& value) { into = value; }, help);
}

/// What gateways need of the world outside.
void add_uplink(CLI::App* up_verb, UpOptions& options) {
  optional_option(
      up_verb,
      "--uplink",
      options.uplink,
      "how sandboxes get out: none, host (this host's own network), or the file of a network "
      "namespace in which gateways live (default none)");
  up_verb->add_option("--resolver",
                      options.resolvers,
                      "DNS servers that gateways ask (default those of /etc/resolv.conf)");
  up_verb->add_option("--private-route",
                      options.private_routes,
                      "networks that gateways may dial although they are private");
  optional_option(up_verb,
                  "--upstream-ca-file",
                  options.upstream_ca_file,
                  "authorities that gateways trust (default the system's)");
}

/// What one sandbox may move, so that it leaves something to its neighbours.
void add_rates(CLI::App* up_verb, UpOptions& options) {
  optional_option(up_verb,
                  "--disk-mib-per-s-max",
                  options.disk_mib_per_s_max,
                  "of one sandbox's disk (default 256; 0 = no limit)");
  optional_option(up_verb,
                  "--disk-ops-per-s-max",
                  options.disk_ops_per_s_max,
                  "reads and writes of one sandbox's disk (default 20000; 0 = no limit)");
  optional_option(up_verb,
                  "--net-mib-per-s-max",
                  options.net_mib_per_s_max,
                  "of one sandbox's network, each direction (default 64; 0 = no limit)");
}

void add_up(CLI::App& root, Action& action, Global const& global) {
  auto options = std::make_shared<UpOptions>();
  auto* up_verb = root.add_subcommand(
      "up",
      "Start the platform on this host; installs what it needs of users, pool, template, database");
  optional_option(up_verb,
                  "--data-dir",
                  options->data_dir,
                  "where everything is kept (default /var/lib/space)");
  optional_option(
      up_verb, "--run-dir", options->run_dir, "where sockets live (default /run/space)");
  optional_option(up_verb,
                  "--instance",
                  options->instance,
                  "name of this installation in control groups and namespaces");
  optional_option(up_verb,
                  "--domain",
                  options->domain,
                  "host names of sandboxes end in it (default space.localhost:TLS-PORT)");
  optional_option(up_verb, "--http-port", options->http_port, "plain HTTP (default 7380)");
  optional_option(up_verb, "--tls-port", options->tls_port, "HTTPS (default 7443)");
  up_verb->add_option(
      "--listen", options->listen_addresses, "addresses to listen on (default 127.0.0.1 and ::1)");
  optional_option(up_verb,
                  "--database-url",
                  options->database_url,
                  "an existing PostgreSQL instead of a private one");
  optional_option(up_verb, "--node-name", options->node_name, "this host's name in the node list");
  optional_option(up_verb,
                  "--slot-uid-base",
                  options->slot_uid_base,
                  "first user id of sandboxes (default 700000)");
  optional_option(up_verb, "--slots-max", options->slots_max, "sandboxes at most (default 128)");
  optional_option(up_verb,
                  "--memory-mib-max",
                  options->memory_mib_max,
                  "memory of all sandboxes together (default three quarters)");
  optional_option(up_verb,
                  "--vcpus-max",
                  options->vcpus_max,
                  "vCPUs of all sandboxes together (default 16 per core)");
  optional_option(up_verb,
                  "--pool-mib-max",
                  options->pool_mib_max,
                  "size of the disk pool (default four fifths of the free space; it is sparse)");
  optional_option(
      up_verb, "--accelerator", options->accelerator, "auto, kvm or tcg (default auto)");
  optional_option(up_verb,
                  "--program-dir",
                  options->program_dir,
                  "where the space-* programs are (default beside this one)");
  optional_option(
      up_verb, "--guest-dir", options->guest_dir, "guest kernel and initramfs made elsewhere");
  optional_option(up_verb,
                  "--warm-target",
                  options->warm_target,
                  "machines kept ready per template (default 2; 0 = none)");
  add_rates(up_verb, *options);
  add_uplink(up_verb, *options);
  up_verb->add_flag("--config-only", options->config_only, "write the configuration and stop");
  up_verb->add_flag("--show", options->show, "change nothing, print address and key");
  up_verb->add_flag("--foreground", options->foreground, "stay, as the supervisor (for systemd)");
  up_verb->callback([options, &action, &global] {
    action = [options, &global] {
      options->json = global.as_json;
      return up(*options);
    };
  });
}

void add_down(CLI::App& root, Action& action, Global const& global) {
  auto stop = std::make_shared<DownOptions>();
  auto* down_verb =
      root.add_subcommand("down", "Suspend the sandboxes and stop the platform; the data stay");
  down_verb->add_option(
      "--data-dir", stop->data_dir, "which installation (default /var/lib/space)");
  down_verb->add_flag("--purge", stop->purge, "remove its data as well");
  down_verb->add_flag(
      "--no-suspend", stop->no_suspend, "end the sandboxes that run instead of suspending them");
  down_verb->callback([stop, &action, &global] {
    action = [stop, &global] {
      stop->json = global.as_json;
      return down(*stop);
    };
  });
}

void add_doctor(CLI::App& root, Action& action, Global const& global) {
  auto* verb = root.add_subcommand(
      "doctor", "Prove what this host can do, and say how to fix what it cannot");
  verb->callback([&action, &global] {
    action = [&global] { return doctor(Output::standard(global.as_json)); };
  });
}

void add_sandbox_create(Tree const& tree, CLI::App* noun) {
  auto options = std::make_shared<CreateOptions>();
  auto* app = noun->add_subcommand("create", "Make a sandbox and print its id");
  app->add_option("--template", options->template_name, "name, name:tag or id (default base)");
  optional_option(app, "--vcpus", options->vcpus, "processors");
  app->add_option("--memory", options->memory, "like 512MiB or 2GiB");
  app->add_option("--disk", options->disk, "like 4GiB");
  app->add_option("--timeout", options->timeout, "its life, like 30m, or none (default 1h)");
  app->add_option("--on-timeout", options->on_timeout, "delete or suspend (default delete)");
  app->add_option("--snapshot", options->snapshot, "start from this one (id or name) instead");
  app->add_option("--idle-timeout",
                  options->idle_timeout,
                  "unused for that long it is suspended, like 30m, or none (default 6h)");
  app->add_option("-e,--env", options->env, "NAME=VALUE for every command; may be repeated")
      ->allow_extra_args(false);
  app->add_option("-m,--metadata", options->metadata, "NAME=VALUE to find it by; may be repeated")
      ->allow_extra_args(false);
  app->add_option(
         "--allow",
         options->allow,
         "HOST[:PORT][:METHOD[,METHOD]][:PATH] or network that it may reach; may be repeated")
      ->allow_extra_args(false);
  app->add_option("--policy", options->policy_file, "a whole policy as JSON, from a file or -");
  app->add_flag("--insecure", options->insecure, "no access token: whoever reaches it may use it");
  app->add_flag("--no-wait", options->no_wait, "return before it runs");
  app->footer(
      "Examples:\n  space sandbox create\n  id=$(space sandbox create --memory 1GiB --timeout 30m "
      "-m task=7)\n  space sandbox create --allow packages.example --allow "
      "'api.llm.example:POST:/v1/messages'");
  tree.verb(app, options, &sandbox_create);
}

void add_sandbox(Tree const& tree) {
  auto* noun = tree.noun("sandbox", "Make, list, show and end sandboxes");
  add_sandbox_create(tree, noun);

  auto list = std::make_shared<ListOptions>();
  auto* list_verb = noun->add_subcommand("list", "Live sandboxes, newest first")->alias("ls");
  list_verb->add_option("--state", list->state, "comma list, like running or deleted,failed");
  list_verb->add_option("--template", list->template_name, "only of this template");
  list_verb->add_option("-m,--metadata", list->metadata, "NAME=VALUE; all must match")
      ->allow_extra_args(false);
  list_verb->add_flag("-q,--ids", list->ids_only, "ids only");
  list_verb->footer(
      "Examples:\n  space sandbox list\n  space sandbox list --state deleted,failed\n  space "
      "sandbox rm $(space sandbox list -q)");
  tree.verb(list_verb, list, &sandbox_list);

  auto one_id = [&](std::string const& name,
                    std::string const& help,
                    asio::awaitable<int> (*run)(Session, std::string)) {
    auto id = std::make_shared<std::string>();
    auto* app = noun->add_subcommand(name, help);
    app->add_option("ID", *id)->required();
    tree.verb(app, id, run);
  };
  one_id("show", "One sandbox, with the steps of its start and why it ended", &sandbox_show);
  one_id("console", "The end of its console", &sandbox_console);

  auto ids = std::make_shared<std::vector<std::string>>();
  auto no_wait = std::make_shared<bool>(false);
  auto* remove = noun->add_subcommand("rm", "End sandboxes")->alias("remove");
  remove->add_option("ID", *ids)->required();
  remove->add_flag("--no-wait", *no_wait, "return before they are gone");
  tree.verb(remove,
            [ids, no_wait](Session session) { return sandbox_remove(session, *ids, *no_wait); });

  auto id = std::make_shared<std::string>();
  auto duration = std::make_shared<std::string>();
  auto* timeout = noun->add_subcommand("timeout", "Set when it ends, counted from now");
  timeout->add_option("ID", *id)->required();
  timeout->add_option("DURATION", *duration, "like 30m, or none")->required();
  tree.verb(timeout,
            [id, duration](Session session) { return sandbox_timeout(session, *id, *duration); });
  add_lives(tree, noun);
}

void add_command_options(CLI::App* app, ExecOptions& options) {
  app->add_option("ID", options.sandbox, "the sandbox")->required();
  app->add_option("--cwd", options.cwd, "folder to run in");
  app->add_option("--user", options.user, "who runs it (default user)");
  app->add_option("-e,--env", options.env, "NAME=VALUE; may be repeated")->allow_extra_args(false);
}

void add_commands(Tree const& tree) {
  auto run = std::make_shared<ExecOptions>();
  auto* exec_verb = tree.root.add_subcommand(
      "exec", "Run a program in a sandbox; its output, input and exit code are yours");
  add_command_options(exec_verb, *run);
  exec_verb->add_option("--timeout", run->timeout, "kill it after, like 30s");
  exec_verb->add_flag("-t,--tty", run->terminal, "with a terminal");
  exec_verb->add_option("COMMAND", run->arguments, "program and arguments, after --")->required();
  exec_verb->footer(
      "Examples:\n  space exec ID -- python3 -c 'print(6*7)'\n  tar c . | space exec ID --cwd "
      "/home/user -- tar x\n"
      "  space exec ID -- bash -c 'ls | wc -l'");
  tree.verb(exec_verb, run, &exec);

  auto login = std::make_shared<ExecOptions>();
  auto* shell_verb = tree.root.add_subcommand("shell", "A terminal in a sandbox");
  add_command_options(shell_verb, *login);
  shell_verb->footer("Leave with exit or ctrl-d; when it no longer answers: Enter ~ .");
  tree.verb(shell_verb, login, &shell);

  auto cp = std::make_shared<CopyOptions>();
  auto words = std::make_shared<std::vector<std::string>>();
  auto* cp_verb =
      tree.root.add_subcommand("cp", "Copy files and folders into a sandbox or out of one");
  cp_verb->add_option("PATHS", *words, "sources, then the destination; ID:path is in a sandbox")
      ->required()
      ->expected(2, 1000);
  cp_verb->add_option("--user", cp->user, "in whose name (default user)");
  cp_verb->footer(
      "Examples:\n  space cp ./data.csv ID:/home/user/\n  space cp ID:results ./\n  space cp a.txt "
      "b.txt ID:/tmp/");
  tree.verb(cp_verb, [cp, words](Session session) {
    auto options = *cp;
    options.sources = *words;
    options.destination = options.sources.back();
    options.sources.pop_back();
    return copy(session, options);
  });
}

void add_key(Tree const& tree) {
  auto* noun = tree.noun("key", "Make, list and revoke API keys");
  auto options = std::make_shared<KeyOptions>();
  auto* create = noun->add_subcommand("create", "Make a key and print it, once");
  create->add_option("--name", options->name, "what it is for")->required();
  create->add_option("--role", options->role, "reader, member or admin (default member)");
  create->add_option(
      "--project", options->project, "for another project (needs a key of the installation)");
  create->add_option("--expires-in", options->expires_in, "like 30d");
  create->add_flag(
      "--installation", options->installation, "may also manage organisations, projects and nodes");
  create->footer(
      "Example:\n  export SPACE_API_KEY=$(space key create --name ci --role member --expires-in "
      "30d)");
  tree.verb(create, options, &key_create);
  tree.verb(noun->add_subcommand("list", "The project's keys, without their secrets")->alias("ls"),
            [](Session session) { return key_list(session); });
  auto id = std::make_shared<std::string>();
  auto* revoke =
      noun->add_subcommand("revoke", "Revoke a key, at once and everywhere")->alias("rm");
  revoke->add_option("ID", *id)->required();
  tree.verb(revoke, id, &key_revoke);
}

void add_lists(Tree const& tree) {
  auto* template_noun = tree.noun("template", "What sandboxes start from");
  tree.verb(template_noun->add_subcommand("list", "All templates")->alias("ls"),
            [](Session session) { return template_list(session); });
  auto* node_noun = tree.noun("node", "The hosts that run sandboxes");
  tree.verb(
      node_noun->add_subcommand("list", "All hosts, what they can and what they hold")->alias("ls"),
      [](Session session) { return node_list(session); });
  add_drain(tree, node_noun);

  auto* operation_noun = tree.noun("operation", "Changes that take time");
  auto id = std::make_shared<std::string>();
  auto wait = std::make_shared<std::string>();
  auto* show = operation_noun->add_subcommand("show", "One operation");
  show->add_option("ID", *id)->required();
  show->add_option("--wait", *wait, "hold until it is done, like 60s");
  tree.verb(show, [id, wait](Session session) { return operation_show(session, *id, *wait); });

  auto options = std::make_shared<EventOptions>();
  auto* events_verb = tree.root.add_subcommand("events", "What happens, as it happens");
  events_verb->add_option("--sandbox", options->sandbox, "only of this sandbox");
  events_verb->add_option(
      "--from", options->from, "go on after the event with this id; 0-0 is the oldest");
  events_verb->add_option("--count", options->count, "stop after so many");
  events_verb->footer("Examples:\n  space events\n  space --json events --from 0-0 --count 10");
  tree.verb(events_verb, options, &events);
}

void add_bench(Tree const& tree) {
  auto* noun = tree.noun("bench", "Measure this installation");
  auto options = std::make_shared<BenchOptions>();
  auto* create = noun->add_subcommand(
      "create", "Create → running → first output, each part of the path timed");
  create->add_option("--count", options->count, "how many (default 10)")
      ->check(CLI::Range(1, 100000));
  create->add_option("--concurrency", options->concurrency, "how many at a time (default 1)")
      ->check(CLI::Range(1, 1000));
  create->add_option("--template", options->template_name, "which template (default base)");
  create->add_option("--memory", options->memory, "like 512MiB");
  create->add_option("--json-file", options->json_file, "write the whole result here as well");
  create
      ->add_option("--settle",
                   options->settle_s,
                   "seconds between two creates, so that warm machines are replaced meanwhile")
      ->check(CLI::Range(0, 3600));
  tree.verb(create, options, &bench_create);
}

void add_local(Tree const& tree) {
  auto plain = std::make_shared<bool>(false);
  auto* env_verb = tree.root.add_subcommand("env", "Lines that point E2B clients here");
  env_verb->add_flag(
      "--plain", *plain, "plain HTTP and one URL, for clients that cannot trust our certificates");
  env_verb->footer("Example:\n  eval \"$(space env)\"");
  env_verb->callback([plain, action = &tree.action, global = &tree.global] {
    *action = [plain, global] { return env(*global, *plain); };
  });
  auto* version_verb = tree.root.add_subcommand("version", "What this is");
  version_verb->callback([action = &tree.action, global = &tree.global] {
    *action = [global] { return show_version(*global); };
  });
}

/// What the platform starts itself; not shown.
void add_internal(CLI::App& root, Action& action) {
  for (auto const& [name, verb] : {std::pair("supervise", &run_supervisor),
                                   std::pair("end-sandboxes", &end_sandboxes),
                                   std::pair("clear-slots", &clear_slots)}) {
    auto path = std::make_shared<std::string>();
    auto* app = root.add_subcommand(name)->group("");
    app->add_option("--config", *path)->required();
    app->callback([path, verb, &action] { action = [path, verb] { return verb(*path); }; });
  }
}

}  // namespace

CLI::App* Tree::noun(std::string const& name, std::string const& help) const {
  return root.add_subcommand(name, help)->require_subcommand(1);
}

void Tree::then(CLI::App* app, Action what) const {
  app->callback([into = &action, what = std::move(what)] { *into = what; });
}

int run(std::vector<std::string> const& arguments) {
  CLI::App root("Sandboxes for AI agents: every task in its own micro virtual machine.", "space");
  root.require_subcommand(1);
  root.fallthrough();
  Action action;
  Global global;
  root.add_flag("--json", global.as_json, "answers as JSON");
  root.add_option(
      "--api-url", global.api_url, "where the API is (default SPACE_API_URL, else this host's)");
  root.add_option("--idempotency-key",
                  global.idempotency_key,
                  "repeat a change with the same key, and it is carried out once");
  root.add_option("--key-file",
                  global.key_file,
                  "file with the API key (default SPACE_API_KEY, else this host's)");
  add_up(root, action, global);
  add_down(root, action, global);
  add_doctor(root, action, global);
  Tree const tree{root, action, global};
  add_sandbox(tree);
  add_commands(tree);
  add_key(tree);
  add_policy(tree);
  add_credential(tree);
  add_audit(tree);
  add_lists(tree);
  add_snapshot(tree);
  add_local(tree);
  add_selftest(tree);
  add_bench(tree);
  add_internal(root, action);
  add_examples(root);
  std::vector<char const*> words;
  for (auto const& one : arguments)
    words.push_back(one.c_str());
  try {
    root.parse(static_cast<int>(words.size()), words.data());
  } catch (CLI::CallForHelp const& help) {
    return root.exit(help);
  } catch (CLI::ParseError const& error) {
    return usage_error(root, error, arguments);
  }
  if (auto const empty = empty_option(root); !empty.empty())
    return usage_error(root, CLI::ValidationError(empty), arguments);
  return action();
}

}  // namespace cli
