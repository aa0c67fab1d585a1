#include "agent/users.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace agent {
namespace {

class Users : public ::testing::Test {
 protected:
  Users() {
    std::string pattern = std::filesystem::temp_directory_path() / "users_test.XXXXXX";
    etc_ = ::mkdtemp(pattern.data());
  }

  ~Users() override {
    std::error_code ignored;
    std::filesystem::remove_all(etc_, ignored);
  }

  void write(std::string const& name, std::string const& text) const {
    std::ofstream(etc_ + "/" + name) << text;
  }

  std::string etc_;
};

TEST_F(Users, AreFoundWithTheirSupplementaryGroups) {
  write("passwd", "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1001:a,b:/home/user:/bin/bash\n");
  write("group",
        "root:x:0:\nsudo:x:27:user\nuser:x:1001:\nboth:x:50:other,user\nnot:x:51:users\nagain:x:27:"
        "user\n");
  auto const user = find_user(etc_, "user");
  ASSERT_TRUE(user);
  EXPECT_EQ(user->uid, 1000U);
  EXPECT_EQ(user->gid, 1001U);
  EXPECT_EQ(user->home, "/home/user");
  EXPECT_EQ(user->shell, "/bin/bash");
  EXPECT_EQ(user->groups, (std::vector<gid_t>{1001, 27, 50}));
}

TEST_F(Users, AnUnknownNameIsUnauthenticatedAndNamed) {
  write("passwd", "root:x:0:0::/root:/bin/sh\n");
  for (std::string const name : {"nobody2", "", "root:x", "roo", "root\n"}) {
    auto const user = find_user(etc_, name);
    ASSERT_FALSE(user) << name;
    EXPECT_EQ(user.error().code(), base::Code::unauthenticated);
    EXPECT_EQ(user.error().message(), "invalid username: '" + name + "'");
  }
}

TEST_F(Users, AnImageWithoutAPasswdFileHasRootAndNumbers) {
  auto const root = find_user(etc_, "root");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->uid, 0U);
  EXPECT_EQ(root->home, "/");
  EXPECT_EQ(root->groups, (std::vector<gid_t>{0}));
  auto const number = find_user(etc_, "1234");
  ASSERT_TRUE(number);
  EXPECT_EQ(number->uid, 1234U);
  EXPECT_EQ(number->gid, 0U);
  write("passwd", "me:x:1234:77::/home/me:/bin/zsh\n");
  auto const known = find_user(etc_, "1234");
  ASSERT_TRUE(known);
  EXPECT_EQ(known->name, "me");
  EXPECT_EQ(known->gid, 77U);
  for (auto const* name : {"-1", "4294967295", "1 ", "0x1"})
    EXPECT_FALSE(find_user(etc_, name)) << name;
}

TEST_F(Users, WhoNamesNobodyIsTheDefaultUserOrRootWhereThereIsNone) {
  EXPECT_EQ(find_caller(etc_, std::nullopt, "user").value().name, "root");
  EXPECT_FALSE(find_caller(etc_, "user", "user")) << "who is named has to exist";
  write("passwd", "user:x:1000:1000::/home/user:/bin/sh\n");
  EXPECT_EQ(find_caller(etc_, std::nullopt, "user").value().uid, 1000U);
}

TEST_F(Users, HostileLinesAreSkipped) {
  write("passwd",
        std::string("evil:x:-1:0::/:/bin/sh\nevil:x:4294967295:0::/:/x\nevil:x:99999999999:0::/:/"
                    "x\nevil:x: 0:0::/:/x\n"
                    "evil:x:0:0::/\nevil:x:0:0::/:/x:more\n:x:0:0::/:/x\nevil:x:0x0:0::/:/x\n") +
            std::string("ev\0il:x:0:0::/:/x\n", 18) +
            "evil:x:7:8::relative:\nevil:x:0:0::/second:/x\n");
  auto const user = find_user(etc_, "evil");
  ASSERT_TRUE(user);
  EXPECT_EQ(user->uid, 7U);
  EXPECT_EQ(user->gid, 8U);
  EXPECT_EQ(user->home, "/");
  EXPECT_EQ(user->shell, "/bin/sh");
}

TEST_F(Users, APipeInPlaceOfAFileHangsNobody) {
  ASSERT_EQ(::mkfifo((etc_ + "/passwd").c_str(), 0644), 0);
  EXPECT_FALSE(find_user(etc_, "user"));
}

TEST_F(Users, AHugeFileIsReadOnlyToItsBound) {
  std::string text;
  while (text.size() < (2U << 20))
    text += "a" + std::to_string(text.size()) + ":x:1:1::/:/x\n";
  write("passwd", text + "last:x:5:5::/:/x\n");
  EXPECT_TRUE(find_user(etc_, "a0"));
  EXPECT_FALSE(find_user(etc_, "last"));
}

TEST_F(Users, OwnersWithoutANameAreShownAsNumbers) {
  write("passwd", "one:x:1:1::/:/x\nsecond:x:1:1::/:/x\n");
  OwnerNames const names(etc_);
  EXPECT_EQ(names.user(1), "one");
  EXPECT_EQ(names.user(77), "77");
  EXPECT_EQ(names.group(78), "78");
}

}  // namespace
}  // namespace agent
