#include "agent/path.hpp"

#include <gtest/gtest.h>

namespace agent {
namespace {

User const user{"user", 1000, 1000, "/home/user", "/bin/bash", {1000}};

std::string resolved(std::string_view path, std::string_view workdir = "") {
  auto const result = resolve_path(path, user, workdir);
  return result ? *result : "error: " + result.error().message();
}

TEST(ResolvePath, FollowsTheRulesOfTheProtocol) {
  EXPECT_EQ(resolved(""), "/home/user");
  EXPECT_EQ(resolved("", "/code"), "/code");
  EXPECT_EQ(resolved("."), "/home/user");
  EXPECT_EQ(resolved("a/b", "/code"),
            "/home/user/a/b");  // relative means the home, not the working directory
  EXPECT_EQ(resolved("a/../b/./c//d/"), "/home/user/b/c/d");
  EXPECT_EQ(resolved("../../../../x"), "/x");
  EXPECT_EQ(resolved("~"), "/home/user");
  EXPECT_EQ(resolved("~/x"), "/home/user/x");
  EXPECT_EQ(resolved("/a/../b//c/"), "/a/../b//c/");  // as is
  EXPECT_EQ(resolved("we ird \"q\" ü"), "/home/user/we ird \"q\" ü");
}

TEST(ResolvePath, RefusesWhatNoPathIs) {
  EXPECT_EQ(resolve_path("~other/x", user, "").error().code(), base::Code::invalid_argument);
  EXPECT_EQ(resolve_path(std::string_view("a\0b", 3), user, "").error().code(),
            base::Code::invalid_argument);
  EXPECT_EQ(resolve_path("/" + std::string(4095, 'a'), user, "").error().code(),
            base::Code::invalid_argument);
  EXPECT_TRUE(resolve_path("/" + std::string(4094, 'a'), user, ""));
}

TEST(CleanPath, WorksOnTextAlone) {
  EXPECT_EQ(clean_path("/"), "/");
  EXPECT_EQ(clean_path("/.."), "/");
  EXPECT_EQ(clean_path("/a/./b/../c//"), "/a/c");
  EXPECT_EQ(base_name("/a/b/"), "b");
  EXPECT_EQ(base_name("/"), "/");
  EXPECT_EQ(parent_of("/a/b/"), "/a");
  EXPECT_EQ(parent_of("/a"), "/");
  EXPECT_EQ(parent_of("/"), "/");
}

TEST(AsUtf8, KeepsTextAndReplacesTheRest) {
  EXPECT_EQ(as_utf8("plain ü € 😀"), "plain ü € 😀");
  EXPECT_EQ(as_utf8("a\xff"
                    "b"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(as_utf8("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // overlong
  EXPECT_EQ(as_utf8("\xED\xA0\x80").size(), 9U);               // a surrogate: three bad bytes
  EXPECT_EQ(as_utf8("\xE2\x82"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // cut short
}

}  // namespace
}  // namespace agent
