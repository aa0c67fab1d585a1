#include "agent/small_files.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace agent {
namespace {

namespace fs = std::filesystem;

class PlaceFile : public ::testing::Test {
 protected:
  PlaceFile() {
    if (::mkdtemp(directory_.data()) == nullptr) throw std::runtime_error("mkdtemp");
  }

  ~PlaceFile() override { fs::remove_all(directory_); }

  std::string path(std::string const& name) const { return directory_ + "/" + name; }

  ino_t inode(std::string const& name) const {
    struct stat info{};
    return ::lstat(path(name).c_str(), &info) == 0 ? info.st_ino : 0;
  }

  void write(std::string const& name, std::string_view text) const {
    std::ofstream(path(name)) << text;
    ::chmod(path(name).c_str(), 0644);
  }

  /// The file's content afterwards, and whether it is still the one that was there.
  std::pair<std::string, bool> placed(std::string const& name, std::string_view text) const {
    auto const before = inode(name);
    auto const done = place_file(directory_, name, text);
    EXPECT_TRUE(done) << (done ? "" : done.error().message());
    return {read_small_file(path(name)).value_or("?"), inode(name) == before};
  }

  std::string directory_ = "/tmp/place_file.XXXXXX";
};

using Placed = std::pair<std::string, bool>;

TEST_F(PlaceFile, IsWrittenOverWhenItIsAsLongAndReplacedWhenNot) {
  if (::getuid() != 0) GTEST_SKIP() << "writes over files of root alone";
  EXPECT_EQ(placed("name", "one\n").first, "one\n");
  EXPECT_EQ(placed("name", "one\n"), Placed("one\n", true));
  EXPECT_EQ(placed("name", "two\n"), Placed("two\n", true));
  EXPECT_EQ(placed("name", "three\n"), Placed("three\n", false));
  std::string const page(5000, 'a');
  EXPECT_EQ(placed("name", page), Placed(page, false));
  EXPECT_EQ(placed("name", std::string(5000, 'b')), Placed(std::string(5000, 'b'), false))
      << "a reader must not see half of each";
}

TEST_F(PlaceFile, WhatIsNotAsItWouldMakeItIsReplaced) {
  if (::getuid() != 0) GTEST_SKIP() << "needs files of others";
  write("theirs", "one\n");
  ASSERT_EQ(::chown(path("theirs").c_str(), 1000, 1000), 0);
  EXPECT_EQ(placed("theirs", "two\n"), Placed("two\n", false));
  write("closed", "one\n");
  fs::permissions(path("closed"), fs::perms::owner_all);
  EXPECT_EQ(placed("closed", "two\n"), Placed("two\n", false));
  write("other", "one\n");
  fs::create_hard_link(path("other"), path("linked"));
  EXPECT_EQ(placed("linked", "two\n"), Placed("two\n", false));
  EXPECT_EQ(read_small_file(path("other")).value(), "one\n");
  write("target", "one\n");
  fs::create_symlink("target", path("symbolic"));
  EXPECT_EQ(placed("symbolic", "two\n"), Placed("two\n", false));
  EXPECT_EQ(read_small_file(path("target")).value(), "one\n");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0644), 0);
  EXPECT_EQ(placed("fifo", "two\n"), Placed("two\n", false));
}

TEST_F(PlaceFile, MakesItsDirectoryAndFollowsNoLinkToAnother) {
  auto const made = place_file(path("new"), "name", "one\n");
  EXPECT_TRUE(made);
  EXPECT_EQ(read_small_file(path("new/name")).value_or("?"), "one\n");
  fs::create_directory_symlink("new", path("link"));
  EXPECT_FALSE(place_file(path("link"), "name", "two\n"));
  EXPECT_EQ(read_small_file(path("new/name")).value_or("?"), "one\n");
}

}  // namespace
}  // namespace agent
