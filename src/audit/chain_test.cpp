#include "audit/chain.hpp"

#include "audit/retention.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace audit {
namespace {

class ChainTest : public testing::Test {
 protected:
  ChainTest() {
    std::string name = testing::TempDir() + "/audit-XXXXXX";
    directory_ = ::mkdtemp(name.data());
  }

  ~ChainTest() override { std::filesystem::remove_all(directory_); }

  void write(int lines, Limits limits = {}) {
    auto log = Log::open(directory_, limits).value();
    for (int i = 0; i < lines; ++i)
      ASSERT_TRUE(log->append(fmt::format(R"({{"event":"decision","n":{}}})", i)));
    ASSERT_TRUE(log->sync());
  }

  std::string path() const { return directory_ + "/audit-00000001.jsonl"; }

  std::string read() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }

  void rewrite(std::string const& text) const { std::ofstream(path()) << text; }

  std::string problem() const { return verify(directory_).value().problem; }

  std::string directory_;
};

TEST_F(ChainTest, AWholeLogVerifiesAcrossRestartsAndFiles) {
  write(3);
  write(2);
  auto const verdict = verify(directory_).value();
  EXPECT_EQ(verdict.problem, "");
  EXPECT_EQ(verdict.lines, 5U);
  write(50, {1000, 100});
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(verify(directory_)->lines, 55U);
  EXPECT_GT(verify(directory_)->files, 3U);
}

TEST_F(ChainTest, AChangedRemovedOrInsertedLineIsFound) {
  write(5);
  auto const whole = read();
  auto changed = whole;
  changed.replace(changed.find("\"n\":2"), 5, "\"n\":7");
  rewrite(changed);
  EXPECT_NE(problem().find("line 3: the line was changed"), std::string::npos) << problem();
  auto const second = whole.find('\n') + 1;
  auto const third = whole.find('\n', second) + 1;
  rewrite(whole.substr(0, second) + whole.substr(third));
  EXPECT_NE(problem().find("missing"), std::string::npos);
  rewrite(whole.substr(0, third) + whole.substr(second));
  EXPECT_NE(problem(), "");
}

TEST_F(ChainTest, ATornLastLineBecomesAGapAndTheChainGoesOn) {
  write(3);
  auto const whole = read();
  rewrite(whole.substr(0, whole.size() - 20));
  write(1);
  EXPECT_EQ(problem(), "");
  EXPECT_NE(read().find("\"event\":\"gap\""), std::string::npos);
}

TEST_F(ChainTest, OldFilesAreRetiredAndTheRestIsWholeAllTheSame) {
  write(200, {1000, 3});
  auto const verdict = verify(directory_).value();
  EXPECT_LE(verdict.files, 3U);
  EXPECT_EQ(verdict.problem, "");
  EXPECT_GT(verdict.first_sequence, 1U);
  EXPECT_EQ(verdict.retired_through + 1, verdict.first_sequence);
  write(200, {1000, 3});
  EXPECT_EQ(problem(), "");
  // Somebody else's hand: the oldest file that is there goes.
  std::vector<std::string> names;
  for (auto const& one : std::filesystem::directory_iterator(directory_))
    if (one.path().extension() == ".jsonl") names.push_back(one.path());
  std::ranges::sort(names);
  std::filesystem::remove(names.front());
  EXPECT_NE(problem().find("retention did not take them"), std::string::npos) << problem();
}

TEST_F(ChainTest, RetentionIsASettingBesideTheLog) {
  EXPECT_EQ(read_retention(directory_)->keep_mib, 1024U) << "the default";
  EXPECT_FALSE(write_retention(directory_, {4, 0})) << "too little";
  EXPECT_FALSE(write_retention(directory_, {64, 10'000}));
  ASSERT_TRUE(write_retention(directory_, {8, 30}));
  EXPECT_EQ(read_retention(directory_)->keep_days, 30U);
  auto log = Log::open(directory_).value();
  std::string const record = R"({"event":")" + std::string(100'000, 'x') + "\"}";
  auto const total = [&] {
    std::uintmax_t bytes = 0;
    for (auto const& one : std::filesystem::directory_iterator(directory_))
      bytes += one.file_size();
    return bytes;
  };
  for (int i = 0; i < 120; ++i)
    ASSERT_TRUE(log->append(record));
  EXPECT_LE(total(), 9U << 20);
  EXPECT_GT(total(), 6U << 20);
  EXPECT_EQ(problem(), "");
  // Too old: all but the current one.
  for (auto const& one : std::filesystem::directory_iterator(directory_))
    if (one.path().extension() == ".jsonl")
      std::filesystem::last_write_time(
          one, std::filesystem::file_time_type::clock::now() - std::chrono::days(31));
  ASSERT_TRUE(log->retire());
  EXPECT_EQ(verify(directory_)->files, 1U);
  EXPECT_EQ(problem(), "");
  std::ofstream(directory_ + "/retention") << "much\n";
  EXPECT_FALSE(read_retention(directory_));
  EXPECT_TRUE(log->retire()) << "what cannot be read takes nothing away";
}

TEST_F(ChainTest, WhereAgesCountEveryDayHasAFileOfItsOwn) {
  write(2);
  std::filesystem::last_write_time(
      path(), std::filesystem::file_time_type::clock::now() - std::chrono::days(2));
  write(1);
  EXPECT_EQ(verify(directory_)->files, 1U);
  ASSERT_TRUE(write_retention(directory_, {1024, 30}));
  std::filesystem::last_write_time(
      path(), std::filesystem::file_time_type::clock::now() - std::chrono::days(2));
  write(1);
  EXPECT_EQ(verify(directory_)->files, 2U);
  EXPECT_EQ(problem(), "");
}

TEST_F(ChainTest, ACheckpointFindsACutEndAndALogThatWasWrittenAnew) {
  write(5);
  auto const whole = read();
  auto const before = verify(directory_).value();
  Checkpoint const checkpoint{before.last_sequence, before.last_hash};
  EXPECT_EQ(checkpoint.sequence, 5U);
  auto const since = [&] { return verify_since(directory_, checkpoint).value().problem; };
  EXPECT_EQ(since(), "");
  rewrite(whole.substr(0, whole.rfind('\n', whole.size() - 2) + 1));
  EXPECT_EQ(problem(), "") << "the chain alone does not tell";
  EXPECT_NE(since().find("it ends with number 4"), std::string::npos) << since();
  write(3);
  EXPECT_NE(since().find("number 5 is another one"), std::string::npos) << since();
  rewrite(whole);
  write(200, {1000, 3});
  EXPECT_EQ(since(), "") << "retention took it";
  std::filesystem::remove(directory_ + "/retired");
  EXPECT_NE(since().find("retention did not take them"), std::string::npos) << since();
}

TEST_F(ChainTest, AFileThatWasBegunAndNeverWrittenToGoesOnFromTheOneBefore) {
  write(20, {1000, 100});
  auto const before = verify(directory_).value();
  ASSERT_GT(before.files, 1U);
  std::ofstream(directory_ + "/audit-00000099.jsonl").flush();
  write(1, {1000, 100});
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(verify(directory_)->last_sequence, before.last_sequence + 1);
  // And where retention took all that was before it.
  write(200, {1000, 1});
  auto const last = verify(directory_).value();
  ASSERT_EQ(last.files, 1U);
  ASSERT_GT(last.retired_through, 0U);
  for (auto const& one : std::filesystem::directory_iterator(directory_))
    if (one.path().extension() == ".jsonl") std::ofstream(one.path(), std::ios::trunc).flush();
  write(1, {1000, 1});
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(verify(directory_)->last_sequence, last.retired_through + 1);
}

TEST_F(ChainTest, RefusesWhatIsNotOneObject) {
  auto log = Log::open(directory_).value();
  EXPECT_FALSE(log->append("x"));
  EXPECT_FALSE(log->append("{\n}"));
}

}  // namespace
}  // namespace audit
