#include "cli/log_file.hpp"

#include "cli/layout.hpp"

#include <filesystem>

#include <gtest/gtest.h>

namespace cli {
namespace {

struct TemporaryFolder {
  std::string path = [] {
    std::string name = "/tmp/space-cli-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();

  ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

TEST(LogFile, KeepsThreeOlderOnesAndNoMore) {
  TemporaryFolder folder;
  LogFile log(folder.path + "/a.jsonl", 10);
  for (char c = 'a'; c <= 'f'; ++c)
    log.append(std::string(10, c));
  EXPECT_EQ(read_file(folder.path + "/a.jsonl").value(), "ffffffffff");
  EXPECT_EQ(read_file(folder.path + "/a.jsonl.1").value(), "eeeeeeeeee");
  EXPECT_EQ(read_file(folder.path + "/a.jsonl.3").value(), "cccccccccc");
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/a.jsonl.4"));
}

TEST(LogFile, GoesOnWhereAnEarlierOneEnded) {
  TemporaryFolder folder;
  LogFile(folder.path + "/a.jsonl").append("one\n");
  LogFile(folder.path + "/a.jsonl").append("two\n");
  EXPECT_EQ(read_file(folder.path + "/a.jsonl").value(), "one\ntwo\n");
}

TEST(LogFile, ADirectoryThatIsGoneLosesLinesAndNothingElse) {
  LogFile log("/no/such/directory/a.jsonl");
  log.append("line\n");
  EXPECT_EQ(log.lost_bytes(), 5U);
}

}  // namespace
}  // namespace cli
