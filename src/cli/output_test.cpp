#include "cli/output.hpp"

#include "wire/codec.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

struct Captured {
  std::string out, err;

  Output output(bool as_json = false, bool colours = false) {
    return {[this](std::string_view text) { out += text; },
            [this](std::string_view text) { err += text; },
            as_json,
            colours};
  }
};

TEST(Output, TablesLineUp) {
  Captured captured;
  captured.output().table({"ID", "STATE", "NAME"},
                          {{"i1", "running", "größe"}, {"i234567", "x", "b"}});
  EXPECT_EQ(captured.out,
            "ID       STATE    NAME\n"
            "i1       running  größe\n"
            "i234567  x        b\n");
}

TEST(Output, ColoursDoNotShiftColumns) {
  Captured captured;
  captured.output(false, true).table({"STATE", "N"}, {{"failed", "1"}});
  EXPECT_EQ(captured.out, "STATE   N\n\033[31mfailed\033[0m  1\n");
}

TEST(Output, AStrangersNameCannotSteerTheTerminal) {
  Captured captured;
  captured.output().table({"NAME"}, {{"a\033]0;owned\007b\nc"}});
  EXPECT_EQ(captured.out, "NAME\na?]0;owned?b?c\n");
}

TEST(Output, AFailureSaysWhatAndWhatNextAndHasItsExitCode) {
  Captured captured;
  EXPECT_EQ(captured.output().fail({base::Code::not_found, "there is no sandbox i1"},
                                   "See what there is: space sandbox list"),
            3);
  EXPECT_EQ(captured.err, "space: there is no sandbox i1\nSee what there is: space sandbox list\n");
  EXPECT_EQ(captured.out, "");
  Captured as_json;
  EXPECT_EQ(as_json.output(true).fail({base::Code::unavailable, "no answer"}), 5);
  EXPECT_EQ(as_json.err, "{\"code\":\"unavailable\",\"message\":\"no answer\"}\n");
}

TEST(Units, AreReadAndBadOnesSayHowToWriteThem) {
  EXPECT_EQ(parse_duration("90").value(), 90U);
  EXPECT_EQ(parse_duration("5m").value(), 300U);
  EXPECT_EQ(parse_duration("1d").value(), 86400U);
  EXPECT_EQ(parse_mib("2GiB").value(), 2048U);
  EXPECT_EQ(parse_mib("512").value(), 512U);
  for (char const* bad : {"", "x", "-1", "5 m", "5y", "99999999999999999999", "9999999d", "1.5h"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
  EXPECT_NE(parse_duration("5y").error().message().find("30s, 5m, 2h"), std::string::npos);
}

TEST(Suggestion, FindsTheNearWordAndNoFarOne) {
  std::vector<std::string> const known = {"sandbox", "exec", "shell", "template"};
  EXPECT_EQ(suggestion("sandbx", known), "sandbox");
  EXPECT_EQ(suggestion("sb", known), "");
  EXPECT_EQ(suggestion("temp", known), "template");
  EXPECT_EQ(suggestion("zzz", known), "");
}

TEST(Fields, AbsentOnesAreEmptyAndNumbersBecomeText) {
  auto value = wire::parse_json(R"({"a":"x","b":3,"c":null,"d":{"e":1}})").value();
  EXPECT_EQ(text_of(value, "a"), "x");
  EXPECT_EQ(text_of(value, "b"), "3");
  EXPECT_EQ(text_of(value, "c"), "");
  EXPECT_EQ(text_of(value, "zz"), "");
  EXPECT_EQ(number_of(member_of(value, "d"), "e"), 1);
  EXPECT_EQ(number_of(value, "a"), 0);
}

}  // namespace
}  // namespace cli
