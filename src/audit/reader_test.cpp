#include "audit/reader.hpp"

#include "audit/chain.hpp"

#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

namespace audit {
namespace {

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }

  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = "/tmp/space-audit-reader-" + std::to_string(::getpid());
};

TEST_F(ReaderTest, PagesGoThroughAllFilesWithoutGapOrRepeat) {
  auto const none = read_page(directory_, {});
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->lines.empty());
  Limits limits;
  limits.file_bytes_max = 2'000;  // several files
  auto log = Log::open(directory_, limits);
  ASSERT_TRUE(log);
  for (int i = 1; i <= 50; ++i)
    ASSERT_TRUE((*log)->append(i % 2 == 0 ? R"({"sandbox":"even"})" : R"({"sandbox":"odd"})"));
  ASSERT_TRUE((*log)->sync());
  for (std::string const sandbox : {"", "even", "nobody"}) {
    Query query{sandbox, 0, 7, 1'500};
    std::vector<std::string> all;
    for (int page = 0; page < 200; ++page) {
      auto const got = read_page(directory_, query);
      ASSERT_TRUE(got);
      EXPECT_LE(got->lines.size(), 7U);
      all.insert(all.end(), got->lines.begin(), got->lines.end());
      if (!got->more) break;
      EXPECT_GT(got->next_after, query.after) << "a page must get on";
      query.after = got->next_after;
    }
    EXPECT_EQ(all.size(), sandbox.empty() ? 50U : sandbox == "even" ? 25U : 0U) << sandbox;
    EXPECT_TRUE(std::ranges::adjacent_find(all) == all.end());
  }
}

}  // namespace
}  // namespace audit
