#include "cli/parse_usage.hpp"

#include "cli/output.hpp"

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

namespace cli {
namespace {

std::vector<std::string> names_of(CLI::App const& app) {
  std::vector<std::string> names;
  for (auto const* one : app.get_subcommands([](CLI::App const*) { return true; })) {
    if (!one->get_group().empty()) names.push_back(one->get_name());
  }
  return names;
}

CLI::App const* verb_of(CLI::App const& app, std::string const& word) {
  for (auto const* one : app.get_subcommands([](CLI::App const*) { return true; })) {
    if (one->check_name(word)) return one;  // aliases too
  }
  return nullptr;
}

/// How far the words were understood.
struct Understood {
  CLI::App const* level = nullptr;
  std::string path = "space";
  std::string problem{};  // the first word that is none; "" when all verbs and options exist
};

/// A global option may stand behind any verb.
CLI::Option const* option_of(CLI::App const* level, std::string const& name) {
  for (; level != nullptr; level = level->get_parent()) {
    if (auto const* option = level->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

Understood read_words(CLI::App const& root, std::vector<std::string> const& arguments) {
  Understood read{.level = &root};
  for (std::size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    auto const& word = arguments[i];
    if (word.starts_with('-')) {
      auto const equals = word.find('=');
      auto const name = word.substr(0, equals);
      auto const* option = option_of(read.level, name);
      if (option == nullptr && word.starts_with("--")) {
        read.problem = fmt::format("{} has no option {}", read.path, name);
        return read;
      }
      // The value that follows is no verb.
      if (option != nullptr && option->get_items_expected_max() > 0 && equals == std::string::npos)
        ++i;
      continue;
    }
    auto const names = names_of(*read.level);
    if (names.empty()) continue;  // an argument of the verb
    auto const* next = verb_of(*read.level, word);
    if (next == nullptr) {
      auto const near = suggestion(word, names);
      read.problem =
          fmt::format("there is no command \"{} {}\"{}",
                      read.path,
                      word,
                      near.empty() ? "" : fmt::format("; did you mean: {} {}", read.path, near));
      return read;
    }
    read.level = next;
    read.path += " " + next->get_name();
  }
  return read;
}

struct Example {
  std::string_view verb;
  std::string_view text;
};

constexpr Example examples[] = {
    {"up", "space up\n  space up --uplink host --warm-target 4"},
    {"down", "space down\n  space down --purge"},
    {"doctor", "space doctor\n  space --json doctor"},
    {"shell", "space shell ID"},
    {"version", "space version"},
    {"sandbox show", "space sandbox show ID\n  space --json sandbox show ID"},
    {"sandbox console", "space sandbox console ID | tail"},
    {"sandbox rm", "space sandbox rm ID\n  space sandbox rm $(space sandbox list -q -m task=7)"},
    {"sandbox timeout", "space sandbox timeout ID 30m\n  space sandbox timeout ID none"},
    {"sandbox pause", "space sandbox pause ID"},
    {"sandbox suspend", "space sandbox suspend ID"},
    {"sandbox resume", "space sandbox resume ID --timeout 30m"},
    {"sandbox fork", "space sandbox fork ID --count 3"},
    {"sandbox snapshot", "space sandbox snapshot ID --name ready --expires-in 7d"},
    {"key list", "space key list"},
    {"key revoke", "space key revoke KEY-ID"},
    {"policy show", "space policy show ID\n  space policy show project"},
    {"policy rm", "space policy rm ID"},
    {"policy versions", "space policy versions project"},
    {"policy watch", "space policy watch ID --count 10"},
    {"policy suggest", "space policy suggest ID"},
    {"credential rotate", "space credential rotate llm-key < key.txt"},
    {"credential grant", "space credential grant llm-key --to-sandbox ID"},
    {"credential release", "space credential release llm-key"},
    {"credential revoke", "space credential revoke llm-key"},
    {"credential rm", "space credential rm llm-key"},
    {"credential list", "space credential list"},
    {"credential profiles", "space credential profiles"},
    {"audit verify",
     "space audit verify\n  space audit verify --checkpoint /mnt/elsewhere/audit\n  space audit "
     "verify --dir /srv/copy --node host-1"},
    {"audit accept", "space audit accept host-1"},
    {"audit retain", "space audit retain\n  space audit retain --mib 4096 --days 90"},
    {"template list", "space template list"},
    {"node list", "space node list"},
    {"node drain", "space node drain node-1\n  space node drain node-1 --off"},
    {"operation show", "space operation show OPERATION-ID --wait 60s"},
    {"snapshot list", "space snapshot list --sandbox ID"},
    {"snapshot rm", "space snapshot rm SNAPSHOT-ID"},
    {"selftest host", "space selftest host"},
    {"selftest egress", "space selftest egress"},
    {"bench create", "space bench create --count 20 --json-file create.json"},
};

}  // namespace

int usage_error(CLI::App const& root,
                CLI::ParseError const& error,
                std::vector<std::string> const& arguments) {
  constexpr int code = 2;
  auto const read = read_words(root, arguments);
  auto const verbs = names_of(*read.level);
  bool const noun_alone = read.problem.empty() && !verbs.empty();
  auto message = !read.problem.empty() ? read.problem
                 : noun_alone
                     ? fmt::format("{}: say what to do: {}", read.path, fmt::join(verbs, ", "))
                     : std::string(error.what());
  auto const until = std::ranges::find(arguments, std::string("--"));
  if (std::find(arguments.begin(), until, "--json") != until) {
    (void)Output::standard(true).fail({base::Code::invalid_argument, std::move(message)});
    return code;
  }
  if (noun_alone)
    fmt::print(stderr, "{}", read.level->help());
  else
    fmt::print(stderr, "space: {}\nHow it is used: {} --help\n", message, read.path);
  return code;
}

std::string empty_option(CLI::App const& root) {
  for (auto const* option : root.get_options()) {
    if (option->get_lnames().empty() || option->get_items_expected_max() == 0) continue;
    if (std::ranges::find(option->results(), std::string()) != option->results().end())
      return fmt::format("--{} is given an empty value; leave it out or say one",
                         option->get_lnames().front());
  }
  for (auto const* one : root.get_subcommands()) {
    auto found = empty_option(*one);
    if (!found.empty()) return found;
  }
  return {};
}

void add_examples(CLI::App& root) {
  for (auto const& [verb, text] : examples) {
    auto* level = &root;
    for (std::string_view rest = verb; !rest.empty();) {
      auto const space = rest.find(' ');
      level = level->get_subcommand(std::string(rest.substr(0, space)));
      rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
    }
    auto const before = level->get_footer();
    level->footer(fmt::format("{}{}Examples:\n  {}", before, before.empty() ? "" : "\n", text));
  }
}

}  // namespace cli
