#include "cli/parse.hpp"

#include "cli/output.hpp"
#include "cli/up.hpp"

#include <functional>

#include <CLI/CLI.hpp>

namespace cli {
namespace {

/// What a parsed command line will do.
using Action = std::function<int()>;

struct Global {
  bool as_json = false;
  std::string api_url;
  std::string key_file;
};

template <class T>
void optional_option(CLI::App* app,
                     std::string const& name,
                     std::optional<T>& into,
                     std::string const& help) {
  app->add_option_function<T>(name, [&into](T const& value) { into = value; }, help);
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
                  "size of the disk pool (default a third of the free space)");
  optional_option(
      up_verb, "--accelerator", options->accelerator, "auto, kvm or tcg (default auto)");
  optional_option(up_verb,
                  "--program-dir",
                  options->program_dir,
                  "where the space-* programs are (default beside this one)");
  optional_option(
      up_verb, "--guest-dir", options->guest_dir, "guest kernel and initramfs made elsewhere");
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

void add_down(CLI::App& root, Action& action) {
  auto stop = std::make_shared<DownOptions>();
  auto* down_verb =
      root.add_subcommand("down", "Stop the platform, its sandboxes included; the data stay");
  down_verb->add_option(
      "--data-dir", stop->data_dir, "which installation (default /var/lib/space)");
  down_verb->add_flag("--purge", stop->purge, "remove its data as well");
  down_verb->callback([stop, &action] { action = [stop] { return down(*stop); }; });
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

std::vector<std::string> names_of(CLI::App const& app) {
  std::vector<std::string> names;
  for (auto const* one : app.get_subcommands([](CLI::App const*) { return true; })) {
    if (!one->get_group().empty()) names.push_back(one->get_name());
  }
  return names;
}

/// The first word that is no verb of the level it stands at, and what it may have meant.
std::string explain_unknown(CLI::App const& root, std::vector<std::string> const& arguments) {
  auto const* level = &root;
  std::string path = "space";
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    auto const& word = arguments[i];
    if (word.starts_with('-')) continue;
    auto const names = names_of(*level);
    if (std::ranges::find(names, word) != names.end()) {
      level = level->get_subcommand(word);
      path += " " + word;
      if (names_of(*level).empty()) break;
      continue;
    }
    auto const near = suggestion(word, names);
    return fmt::format("space: there is no command \"{} {}\"{}",
                       path,
                       word,
                       near.empty() ? "" : fmt::format("; did you mean: {} {}", path, near));
  }
  return {};
}

int usage_error(CLI::App const& root,
                CLI::ParseError const& error,
                std::vector<std::string> const& arguments) {
  auto text = explain_unknown(root, arguments);
  if (text.empty()) text = fmt::format("space: {}", error.what());
  auto const verbs = names_of(root);
  bool const verb_known =
      arguments.size() > 1 && std::ranges::find(verbs, arguments[1]) != verbs.end();
  fmt::print(
      stderr, "{}\nHow it is used: space {}--help\n", text, verb_known ? arguments[1] + " " : "");
  return 2;
}

}  // namespace

int run(std::vector<std::string> const& arguments) {
  CLI::App root("Sandboxes for AI agents: every task in its own micro virtual machine.", "space");
  root.require_subcommand(1);
  root.fallthrough();
  Action action;
  Global global;
  root.add_flag("--json", global.as_json, "answers as JSON");
  root.add_option(
      "--api-url", global.api_url, "where the API is (default SPACE_API_URL, else this host's)");
  root.add_option("--key-file",
                  global.key_file,
                  "file with the API key (default SPACE_API_KEY, else this host's)");
  add_up(root, action, global);
  add_down(root, action);
  add_internal(root, action);
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
  return action();
}

}  // namespace cli
