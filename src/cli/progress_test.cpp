#include "cli/progress.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

TEST(Progress, ReadsTheLinesOfTheImageScriptsAndNoOthers) {
  EXPECT_EQ(parse_progress("progress 40 unpacking it"),
            (std::pair<int, std::string>(40, "unpacking it")));
  EXPECT_EQ(parse_progress("progress 100"), (std::pair<int, std::string>(100, "")));
  EXPECT_FALSE(parse_progress("progress x"));
  EXPECT_FALSE(parse_progress("progress 101 more than all"));
  EXPECT_FALSE(parse_progress("in progress 4"));
}

TEST(Progress, ABarFitsIntoItsTerminal) {
  EXPECT_EQ(Progress::bar("template", 50, "packages", 120),
            "  template                     [############............]  50% packages");
  EXPECT_LT(Progress::bar("template", 50, std::string(300, 'x'), 60).size(), 60U);
}

}  // namespace
}  // namespace cli
