#include "audit/chain.hpp"

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

TEST_F(ChainTest, OldFilesAreRetired) {
  write(200, {1000, 3});
  EXPECT_LE(verify(directory_)->files, 4U);
  EXPECT_EQ(problem(), "");
}

TEST_F(ChainTest, RefusesWhatIsNotOneObject) {
  auto log = Log::open(directory_).value();
  EXPECT_FALSE(log->append("x"));
  EXPECT_FALSE(log->append("{\n}"));
}

}  // namespace
}  // namespace audit
