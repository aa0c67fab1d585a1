#include "cli/copy_plan.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

std::string const id = "i" + std::string(20, 'a');

TEST(CopyPlace, KnowsASandboxFromAFileHere) {
  auto remote = parse_place(id + ":/home/user", false).value();
  EXPECT_EQ(remote.sandbox, id);
  EXPECT_EQ(remote.path, "/home/user");
  EXPECT_EQ(parse_place(id + ":", false).value().path, ".");
  EXPECT_EQ(parse_place("./a:b", false).value().sandbox, "");
  EXPECT_EQ(parse_place("/x/a:b", false).value().path, "/x/a:b");
  EXPECT_EQ(parse_place("a:b", true).value().path, "a:b");
  EXPECT_EQ(parse_place("data.csv", false).value().path, "data.csv");
}

TEST(CopyPlace, AMistypedIdIsNoFileName) {
  auto place = parse_place("i123:/home", false);
  ASSERT_FALSE(place);
  EXPECT_NE(place.error().message().find("no sandbox id"), std::string::npos);
}

TEST(CopyTarget, FollowsTheRulesOfCp) {
  EXPECT_EQ(target_of("/x/data.csv", "/home/user/", false), "/home/user/data.csv");
  EXPECT_EQ(target_of("/x/data.csv", "/home/user", true), "/home/user/data.csv");
  EXPECT_EQ(target_of("/x/data.csv", "/home/user/new", false), "/home/user/new");
  EXPECT_EQ(target_of("/x/folder/", "/home", true), "/home/folder");
  EXPECT_EQ(target_of("..", "/home", true), "/home");
}

TEST(CopyBelow, TakesWhatLiesInsideAndNothingElse) {
  EXPECT_EQ(safe_below("/a", "/a/b/c"), "b/c");
  EXPECT_EQ(safe_below("/a/", "/a/b"), "b");
  EXPECT_EQ(safe_below("/", "/etc/x"), "etc/x");
  for (char const* bad : {"/a",
                          "/a/",
                          "/ab/c",
                          "/b/c",
                          "/a/../etc/passwd",
                          "/a/b/../../c",
                          "/a//b",
                          "/a/./b",
                          "a/b",
                          ""}) {
    EXPECT_FALSE(safe_below("/a", bad)) << bad;
  }
  EXPECT_FALSE(safe_below("/a", std::string("/a/b\0c", 6)));
  EXPECT_FALSE(safe_below("/a", "/a/" + std::string(256, 'x')));
}

}  // namespace
}  // namespace cli
