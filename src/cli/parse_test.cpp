#include "cli/parse.hpp"

#include <sstream>

#include <gtest/gtest.h>

/// What a stranger sees of the command line itself; nothing here reaches an API.
namespace cli {
namespace {

struct Said {
  int code = 0;
  std::string out, err;
};

Said say(std::vector<std::string> words) {
  words.insert(words.begin(), "space");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Said said;
  said.code = run(words);
  said.out = testing::internal::GetCapturedStdout();
  said.err = testing::internal::GetCapturedStderr();
  return said;
}

/// The verbs that a help page lists.
std::vector<std::string> verbs_in(std::string const& help) {
  std::vector<std::string> verbs;
  auto const at = help.find("Subcommands:\n");
  if (at == std::string::npos) return verbs;
  std::istringstream lines(help.substr(at));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  ")) {
    if (line[2] == ' ') continue;  // a description goes on
    verbs.push_back(line.substr(2, line.find_first_of(" ,", 2) - 2));
  }
  return verbs;
}

void walk(std::vector<std::string> const& path, std::size_t* leaves) {
  auto words = path;
  words.emplace_back("--help");
  auto const help = say(words);
  EXPECT_EQ(help.code, 0);
  auto const verbs = verbs_in(help.out);
  if (verbs.empty()) {
    ++*leaves;
    EXPECT_NE(help.out.find("Example"), std::string::npos) << testing::PrintToString(path);
  }
  for (auto const& verb : verbs) {
    auto below = path;
    below.push_back(verb);
    walk(below, leaves);
  }
}

TEST(CommandLine, TheHelpOfEveryVerbShowsAnExample) {
  std::size_t leaves = 0;
  walk({}, &leaves);
  EXPECT_GE(leaves, 45U);
}

TEST(CommandLine, WhatIsNotUnderstoodIsNamedWithTheNextStep) {
  struct Case {
    std::vector<std::string> words;
    std::string err;
  };

  for (auto const& [words, err] : std::vector<Case>{
           {{"sandbx", "list"},
            "space: there is no command \"space sandbx\"; did you mean: space sandbox\n"
            "How it is used: space --help\n"},
           {{"--key-file", "list", "sandbox", "lst"},
            "space: there is no command \"space sandbox lst\"; did you mean: space sandbox list\n"
            "How it is used: space sandbox --help\n"},
           {{"--bogus"}, "space: space has no option --bogus\nHow it is used: space --help\n"},
           {{"sandbox", "list", "--bogus=1"},
            "space: space sandbox list has no option --bogus\n"
            "How it is used: space sandbox list --help\n"},
           {{"sandbox", "show"},
            "space: ID is required\nHow it is used: space sandbox show --help\n"},
           {{"sandbox", "create", "--template", ""},
            "space: --template is given an empty value; leave it out or say one\n"
            "How it is used: space sandbox create --help\n"}}) {
    auto const said = say(words);
    EXPECT_EQ(said.code, 2);
    EXPECT_EQ(said.err, err);
    EXPECT_EQ(said.out, "");
  }
}

TEST(CommandLine, ANounAloneShowsItsVerbsAndJsonGetsJson) {
  auto const alone = say({"sandbox"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("create"), std::string::npos) << alone.err;
  EXPECT_NE(alone.err.find("Subcommands:"), std::string::npos);
  auto const json = say({"--json", "key"});
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(json.err,
            "{\"code\":\"invalid_argument\",\"message\":\"space key: say what to do: create, list, "
            "revoke\"}\n");
}

}  // namespace
}  // namespace cli
