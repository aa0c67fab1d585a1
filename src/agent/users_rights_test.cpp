#include "agent/users_rights.hpp"

#include "os/fd.hpp"

#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace agent {
namespace {

/// The groups of this thread, as the kernel sees them.
std::vector<gid_t> groups_now() {
  std::vector<gid_t> groups(256);
  auto const count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return groups;
}

class ActingAsSomebody : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "taking another user's rights needs root";
    std::string pattern = std::filesystem::temp_directory_path() / "rights_test.XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    ::chmod(root_.c_str(), 0755);
    std::ofstream(root_ + "/secret") << "secret";
    ::chmod((root_ + "/secret").c_str(), 0600);
    std::ofstream(root_ + "/team") << "team";
    ::chmod((root_ + "/team").c_str(), 0640);
    ASSERT_EQ(::chown((root_ + "/team").c_str(), 0, 7777), 0);
    std::filesystem::create_directory(root_ + "/home");
    ASSERT_EQ(::chown((root_ + "/home").c_str(), user_.uid, user_.gid), 0);
  }

  void TearDown() override {
    std::error_code ignored;
    if (!root_.empty()) std::filesystem::remove_all(root_, ignored);
  }

  bool readable(std::string const& name) const {
    os::Fd const fd(::open((root_ + "/" + name).c_str(), O_RDONLY | O_CLOEXEC));
    return static_cast<bool>(fd);
  }

  User user_{"user", 12345, 12346, "/", "/bin/sh", {12346, 7777}};
  std::string root_;
};

TEST_F(ActingAsSomebody, HasTheirRightsAndNoOthers) {
  {
    ActingAs const rights(user_);
    EXPECT_FALSE(readable("secret"));
    EXPECT_TRUE(readable("team"));  // by the supplementary group
    os::Fd const made(::open((root_ + "/home/new").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(made);
    struct stat status{};
    ASSERT_EQ(::fstat(made.get(), &status), 0);
    EXPECT_EQ(status.st_uid, 12345U);
    EXPECT_EQ(status.st_gid, 12346U);
    EXPECT_NE(::chown((root_ + "/home/new").c_str(), 0, 0), 0);
    // Another process's secrets are out of reach by way of /proc, too: no capability is left.
    os::Fd const other(::open("/proc/1/environ", O_RDONLY | O_CLOEXEC));
    EXPECT_FALSE(other);
  }
  EXPECT_TRUE(readable("secret"));
}

TEST_F(ActingAsSomebody, TheThreadIsWhatItWasAfterwards) {
  auto const before = groups_now();
  {
    ActingAs const rights(user_);
    EXPECT_EQ(groups_now(), (std::vector<gid_t>{7777, 12346}));
  }
  EXPECT_EQ(groups_now(), before);
  {
    ActingAs const rights(User{"root", 0, 0, "/root", "/bin/sh", {0}});
    EXPECT_TRUE(readable("secret"));
  }
  EXPECT_EQ(groups_now(), before);
}

TEST_F(ActingAsSomebody, AnotherGroupOfTheSameUserIsRefused) {
  user_.groups = {12346};
  ActingAs const rights(user_);
  EXPECT_FALSE(readable("team"));
}

}  // namespace
}  // namespace agent
