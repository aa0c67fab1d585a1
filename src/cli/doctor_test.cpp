#include "cli/doctor.hpp"

#include "cli/layout.hpp"
#include "wire/codec.hpp"

#include <filesystem>

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>
#include <unistd.h>

namespace cli {
namespace {

TEST(Doctor, ThePageShowsProofConsequenceAndCommand) {
  std::vector<Finding> const findings = {
      {"disk clones", Health::ok, "a file was cloned in /d", "", ""},
      {"accelerator", Health::degraded, "qemu with tcg", "slow", "run elsewhere"},
  };
  EXPECT_EQ(render(findings),
            "ok        disk clones         a file was cloned in /d\n"
            "degraded  accelerator         qemu with tcg\n"
            "                              so: slow\n"
            "                              try: run elsewhere\n");
}

TEST(Doctor, LongTextIsWrappedUnderItself) {
  auto const page =
      render({{"x", Health::ok, std::string(50, 'a') + " " + std::string(50, 'b'), "", ""}});
  EXPECT_EQ(page,
            "ok        x                   " + std::string(50, 'a') + "\n" + std::string(30, ' ') +
                std::string(50, 'b') + "\n");
}

TEST(Doctor, TheWorstFindingIsTheHealth) {
  EXPECT_EQ(worst({}), Health::ok);
  EXPECT_EQ(worst({{.what = "a"},
                   {.what = "b", .health = Health::broken},
                   {.what = "c", .health = Health::degraded}}),
            Health::broken);
}

TEST(Doctor, AFindingIsJsonWithItsHealthAsAWord) {
  EXPECT_EQ(wire::encode_text(Finding{"a", Health::degraded, "p", "f", "x"}),
            R"({"what":"a","health":"degraded","proof":"p","follows":"f","fix":"x"})");
}

/// A tree that looks like a control-group file system: what the host does not have must not be
/// claimed.
struct FakeGroups {
  std::string root = [] {
    std::string name = "/tmp/space-doctor-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();

  ~FakeGroups() { std::filesystem::remove_all(root); }
};

TEST(Doctor, AHostWithoutControlGroupsIsBroken) {
  if (geteuid() != 0) GTEST_SKIP() << "the probe looks as root only";
  FakeGroups const groups;
  auto const finding = probe_control_groups(groups.root);
  EXPECT_EQ(finding.health, Health::broken);
  EXPECT_NE(finding.follows.find("memory"), std::string::npos);
  EXPECT_FALSE(finding.fix.empty());
}

TEST(Doctor, ListedControllersDoNotCountWhereNoGroupCanBeMade) {
  if (geteuid() != 0) GTEST_SKIP() << "the probe looks as root only";
  FakeGroups const groups;
  ASSERT_TRUE(write_file(groups.root + "/cgroup.controllers", "cpu io memory pids\n", 0644));
  EXPECT_EQ(probe_control_groups(groups.root).health,
            Health::broken);  // a group there has no cgroup.procs
}

TEST(Doctor, AFullHostAndADomainThatNobodyKnowsAreFound) {
  wire::Config config;
  config.domain = "no-such-name.invalid:1";
  auto const names = probe_resolver(config);
  EXPECT_EQ(names.health, Health::degraded);
  EXPECT_NE(names.fix.find("DNS"), std::string::npos);
  config.data_dir = "/proc";  // has no free blocks
  EXPECT_EQ(probe_disk_space(config).health, Health::broken);
}

/// What `nft -j` says about a host, with one more thing in it.
std::string ruleset(std::string const& more) {
  return R"({"nftables":[{"metainfo":{"json_schema_version":1}},
    {"chain":{"family":"inet","table":"space_x","name":"forward","hook":"forward","policy":"accept"}},
    {"chain":{"family":"inet","table":"space_guard","name":"forward","hook":"forward","policy":"drop"}},
    {"chain":{"family":"ip","table":"filter","name":"INPUT","hook":"input","policy":"drop"}},)" +
         more + "]}";
}

constexpr char dropping[] =
    R"({"chain":{"family":"ip","table":"other","name":"fw","hook":"forward","policy":"drop"}})";

TEST(Doctor, AnotherProgramsRefusalToForwardIsFoundAndOnlyThat) {
  EXPECT_TRUE(forward_blockers(ruleset(R"({"table":{}})"), "spup-x").empty());
  auto const found = forward_blockers(ruleset(dropping), "spup-x");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].chain, "ip other fw");
  EXPECT_EQ(found[0].fix,
            "nft insert rule ip other fw iifname spup-x accept; "
            "nft insert rule ip other fw oifname spup-x accept");
}

TEST(Doctor, ARefusalWithAnExceptionForUsIsNone) {
  std::string const exception =
      R"(,{"rule":{"family":"ip","table":"other","chain":"fw","expr":[{"match":{"left":{"meta":{"key":"iifname"}},"right":"spup-x"}},{"accept":null}]}})";
  EXPECT_TRUE(forward_blockers(ruleset(dropping + exception), "spup-x").empty());
  EXPECT_EQ(forward_blockers(ruleset(dropping + exception), "spup-xy").size(), 1U);
}

TEST(Doctor, ALastRuleThatRefusesIsARefusalToo) {
  auto const with = [](std::string const& steps) {
    return ruleset(
        R"({"chain":{"family":"inet","table":"fw","name":"fwd","hook":"forward","policy":"accept"}},
           {"rule":{"family":"inet","table":"fw","chain":"fwd","expr":[)" +
        steps + "]}}");
  };
  EXPECT_EQ(forward_blockers(with(R"({"counter":{}},{"reject":null})"), "spup-x").size(), 1U);
  EXPECT_TRUE(forward_blockers(with(R"({"match":{}},{"drop":null})"), "spup-x").empty());
  EXPECT_TRUE(forward_blockers(with(R"({"counter":{}},{"accept":null})"), "spup-x").empty());
}

TEST(Doctor, ARulesetThatCannotBeReadIsNoReasonToFail) {
  for (char const* text : {"", "[]", "{}", R"({"nftables":[1,{"chain":2},{"rule":[]}]})"})
    EXPECT_TRUE(forward_blockers(text, "spup-x").empty()) << text;
}

TEST(Doctor, WhatTheDatabaseHasNeverHeardOfIsToldWithWhatCanBeDone) {
  auto const quiet = wire::json::parse(
      R"({"nodes":[{"name":"other","unclaimed_total":2,"unclaimed":["a","b"]},{"name":"mine"}]})");
  EXPECT_EQ(judge_unclaimed(quiet, "mine", "/d").health, Health::ok);
  EXPECT_EQ(judge_unclaimed({}, "mine", "/d").health, Health::ok);
  auto const told = wire::json::parse(
      R"({"nodes":[{"name":"mine","unclaimed_total":4,"unclaimed":["a","b","c","d"]}]})");
  auto const finding = judge_unclaimed(told, "mine", "/d");
  EXPECT_EQ(finding.health, Health::degraded);
  EXPECT_NE(finding.proof.find("4 at rest here (a, b, c, …)"), std::string::npos) << finding.proof;
  EXPECT_NE(finding.fix.find("touch /d/worker/release-unclaimed"), std::string::npos);
}

}  // namespace
}  // namespace cli
