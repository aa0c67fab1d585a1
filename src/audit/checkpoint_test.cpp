#include "audit/checkpoint.hpp"

#include "audit/retention.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace audit {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// A worker's log with its checkpoints, and a control plane that keeps what it accepts.
class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string name = testing::TempDir() + "/checkpoints-XXXXXX";
    root_ = ::mkdtemp(name.data());
    fs::create_directory(directory());
  }

  ~CheckpointTest() override { fs::remove_all(root_); }

  std::string directory() const { return root_ + "/log"; }

  std::string key_path() const { return root_ + "/audit.key"; }

  std::shared_ptr<Checkpoints> open() const {
    return Checkpoints::open("node-1", key_path(), directory()).value();
  }

  /// A worker's whole life: it starts, writes, ends.
  std::shared_ptr<Checkpoints> live(int lines, Limits limits = {}, std::string_view what = "a") {
    auto log = Log::open(directory(), limits).value();
    auto checkpoints = open();
    checkpoints->attend(*log);
    // Fails where the beginning is missing; what that means is told.
    (void)checkpoints->note(*log, true);
    for (int i = 0; i < lines; ++i)
      EXPECT_TRUE(log->append(fmt::format(R"({{"what":"{}","n":{}}})", what, i)));
    (void)checkpoints->note(*log, true);
    return checkpoints;
  }

  /// What the controller does with what a worker tells; its complaint.
  std::string collect(Checkpoints& from) {
    auto const told = from.tell(known_.latest ? known_.latest->last_sequence : 0).value();
    if (known_.public_key.empty()) known_.public_key = told.public_key;
    auto judged = judge("node-1", known_, told);
    for (auto& one : judged.good) {
      known_.latest = one;
      kept_.push_back(std::move(one));
    }
    return judged.problem;
  }

  Compared verified() const {
    return verify_against(directory(), kept_, known_.public_key).value();
  }

  void erase_log() const {
    fs::remove_all(directory());
    fs::create_directory(directory());
  }

  std::string root_;
  Known known_;
  std::vector<wire::AuditCheckpoint> kept_;
};

TEST_F(CheckpointTest, TheKeyIsMadeOnceForItsOwnerAloneAndSignsWhatNobodyElseCan) {
  auto const key = SigningKey::open(key_path()).value();
  struct stat info{};
  ASSERT_EQ(::stat(key_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(SigningKey::open(key_path())->public_key(), key.public_key());
  wire::AuditCheckpoint one{"node-1", 1, 7, std::string(64, 'a'), 1'000, ""};
  ASSERT_TRUE(key.sign(one));
  EXPECT_TRUE(is_signed(one, key.public_key()));
  auto const refused = [&](auto change) {
    auto other = one;
    change(other);
    return !is_signed(other, key.public_key());
  };
  EXPECT_TRUE(refused([](auto& c) { c.node = "node-2"; }));
  EXPECT_TRUE(refused([](auto& c) { c.first_sequence = 2; }));
  EXPECT_TRUE(refused([](auto& c) { c.last_sequence = 8; }));
  EXPECT_TRUE(refused([](auto& c) { c.hash[0] = 'b'; }));
  EXPECT_TRUE(refused([](auto& c) { ++c.made_at_us; }));
  EXPECT_TRUE(refused([](auto& c) { c.signature[0] = c.signature[0] == '0' ? '1' : '0'; }));
  EXPECT_TRUE(refused([](auto& c) { c.signature = "x"; }));
  EXPECT_FALSE(is_signed(one, SigningKey::open(root_ + "/other.key")->public_key()));
  EXPECT_FALSE(is_signed(one, "x"));
  fs::permissions(key_path(), fs::perms::group_read, fs::perm_options::add);
  EXPECT_FALSE(SigningKey::open(key_path())) << "others may read it";
  fs::permissions(key_path(), fs::perms::group_read, fs::perm_options::remove);
  fs::resize_file(key_path(), 31);
  EXPECT_FALSE(SigningKey::open(key_path())) << "a piece of one is not replaced in silence";
}

TEST_F(CheckpointTest, TheyGoOnFromEachOtherAcrossLives) {
  EXPECT_EQ(collect(*live(5)), "");
  EXPECT_EQ(known_.latest->last_sequence, 5U);
  auto second = live(3);
  EXPECT_EQ(collect(*second), "");
  EXPECT_EQ(collect(*second), "") << "told once more";
  EXPECT_EQ(known_.latest->last_sequence, 8U);
  EXPECT_EQ(kept_.size(), 2U);
  auto const now = verified();
  EXPECT_EQ(now.comparison.problem, "");
  EXPECT_EQ(now.comparison.confirmed_through, 8U);
  EXPECT_EQ(now.comparison.unconfirmed, 0U);
  ASSERT_TRUE(Log::open(directory()).value()->append(R"({"late":1})"));
  EXPECT_EQ(verified().comparison.unconfirmed, 1U);
}

TEST_F(CheckpointTest, ADueOneIsMadeAfterAThousandRecords) {
  auto log = Log::open(directory()).value();
  auto checkpoints = open();
  ASSERT_TRUE(log->append("{}"));
  ASSERT_TRUE(checkpoints->note(*log));
  for (int i = 0; i < 998; ++i)
    ASSERT_TRUE(log->append("{}"));
  ASSERT_TRUE(checkpoints->note(*log));
  auto const latest = [&] { return checkpoints->tell(0)->checkpoints.back().last_sequence; };
  EXPECT_EQ(latest(), 1U);
  ASSERT_TRUE(log->append("{}"));
  ASSERT_TRUE(log->append("{}"));
  ASSERT_TRUE(checkpoints->note(*log));
  EXPECT_EQ(latest(), 1'001U);
}

TEST_F(CheckpointTest, ALogWhoseEndWasCutOffIsNoticedAtTheNextStart) {
  EXPECT_EQ(collect(*live(5)), "");
  auto const path = directory() + "/audit-00000001.jsonl";
  std::ifstream in(path);
  std::string text;
  std::string line;
  for (int i = 0; i < 3 && std::getline(in, line); ++i)
    text += line + "\n";
  std::ofstream(path) << text;
  fs::remove(directory() + "/checkpoint");
  EXPECT_EQ(verify(directory())->problem, "") << "the chain alone does not tell";
  EXPECT_THAT(verified().comparison.problem, HasSubstr("ends with record 3"));
  EXPECT_NE(collect(*live(0)), "");
  EXPECT_NE(collect(*live(10)), "") << "nor when it has grown beyond it";
  EXPECT_EQ(kept_.size(), 1U) << "and nothing of it is taken";
}

TEST_F(CheckpointTest, AChainThatWasWrittenAnewAsAWholeIsNoticed) {
  EXPECT_EQ(collect(*live(5)), "");
  erase_log();
  auto anew = live(9, {}, "b");
  EXPECT_EQ(verify(directory())->problem, "") << "the chain alone does not tell";
  EXPECT_THAT(verified().comparison.problem, HasSubstr("record 5 is another one"));
  EXPECT_THAT(collect(*anew), HasSubstr("record 5 is another one"));
  EXPECT_EQ(kept_.size(), 1U);
}

TEST_F(CheckpointTest, TheBeginningThatWentWithItsNoteIsNoticedAndRetentionIsNot) {
  Limits const small{1'000, 3};
  EXPECT_EQ(collect(*live(60, {1'000, 100})), "");
  EXPECT_EQ(verified().verdict.first_sequence, 1U);
  auto copy = root_ + "/copy";
  fs::copy(directory(), copy);
  // By retention, as the worker says with its next checkpoint.
  EXPECT_EQ(collect(*live(40, small)), "");
  auto const retired = verified();
  EXPECT_EQ(retired.verdict.problem, "");
  EXPECT_EQ(retired.comparison.problem, "");
  EXPECT_GT(retired.verdict.first_sequence, 60U) << "the earlier checkpoint's record is gone";
  EXPECT_EQ(retired.comparison.retired_through + 1, retired.verdict.first_sequence);
  // By somebody's hand, with a note that looks like the worker's.
  auto const kept = verify(copy).value();
  fs::rename(directory(), root_ + "/whole");
  fs::rename(copy, directory());
  kept_.resize(1);
  EXPECT_EQ(verified().comparison.problem, "");
  fs::remove(directory() + "/audit-00000001.jsonl");
  std::ifstream in(directory() + "/audit-00000002.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  auto const number = std::stoull(line.substr(7));
  Retired noted{number - 1, line.substr(line.find("prev") + 7, 64), ""};
  // Of somebody who even has the key.
  ASSERT_TRUE(SigningKey::open(key_path())->sign("node-1", noted));
  ASSERT_TRUE(write_retired(directory(), noted));
  EXPECT_EQ(verify(directory())->problem, "") << "the chain alone does not tell";
  EXPECT_THAT(verified().comparison.problem, HasSubstr("it begins with record"));
  EXPECT_EQ(kept.first_sequence, 1U);
}

TEST_F(CheckpointTest, ABeginningThatSomebodyTookIsNeverSigned) {
  Limits const many{1'000, 100};
  EXPECT_EQ(collect(*live(60, many)), "");
  fs::remove(directory() + "/audit-00000001.jsonl");
  auto after = live(10, many);
  EXPECT_THAT(collect(*after), HasSubstr("retention took nothing from record 1 on"));
  EXPECT_EQ(kept_.size(), 1U) << "nothing that says it begins later";
  EXPECT_THAT(verify(directory())->problem, HasSubstr("retention did not take them"));
  EXPECT_THAT(verified().verdict.problem, HasSubstr("retention did not take them"));
  // With a note of somebody's own.
  std::ifstream in(directory() + "/audit-00000002.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  Retired const forged{std::stoull(line.substr(7)) - 1, line.substr(line.find("prev") + 7, 64), ""};
  for (auto const& signature : {std::string(), std::string(128, 'a')}) {
    ASSERT_TRUE(write_retired(directory(), {forged.through, forged.hash, signature}));
    EXPECT_THAT(collect(*after), HasSubstr("not signed with this node's key"));
    EXPECT_THAT(verified().comparison.problem, HasSubstr("not signed by its node"));
  }
  auto const other = SigningKey::open(root_ + "/other.key").value();
  auto by_another = forged;
  ASSERT_TRUE(other.sign("node-1", by_another));
  ASSERT_TRUE(write_retired(directory(), by_another));
  EXPECT_THAT(collect(*live(10, many)), HasSubstr("not signed with this node's key"));
  EXPECT_EQ(kept_.size(), 1U);
  // An administrator has looked: what is there is the beginning.
  known_ = {};
  kept_.clear();
  EXPECT_EQ(collect(*live(10, many)), "");
  EXPECT_EQ(collect(*live(10, many)), "");
  EXPECT_EQ(known_.latest->first_sequence, forged.through + 1);
  EXPECT_EQ(verified().verdict.problem + verified().comparison.problem, "");
}

TEST_F(CheckpointTest, AnOldSignedNoteDoesNotCoverWhatWentAfterIt) {
  Limits const small{1'000, 3};
  EXPECT_EQ(collect(*live(60, small)), "");
  auto const early = read_retired(directory()).value();
  ASSERT_GT(early.through, 0U);
  EXPECT_TRUE(is_signed("node-1", early, known_.public_key));
  EXPECT_FALSE(is_signed("node-2", early, known_.public_key));
  auto later = early;
  ++later.through;
  EXPECT_FALSE(is_signed("node-1", later, known_.public_key));
  EXPECT_EQ(collect(*live(60, small)), "") << "retention is accepted";
  ASSERT_GT(known_.latest->first_sequence, early.through + 1);
  ASSERT_TRUE(write_retired(directory(), early));
  EXPECT_THAT(collect(*live(1, {1'000, 100})), HasSubstr("retention took nothing from record"));
}

TEST_F(CheckpointTest, AnotherKeyAnotherNodeAndABrokenSignatureAreNotTaken) {
  auto const told = live(5)->tell(0).value();
  Known const known{told.public_key, {}};
  EXPECT_EQ(judge("node-1", known, told).problem, "");
  EXPECT_NE(judge("node-2", known, told).problem, "");
  EXPECT_THAT(judge("node-1", {std::string(64, 'a'), {}}, told).problem, HasSubstr("another key"));
  auto changed = told;
  changed.checkpoints[0].hash[0] = changed.checkpoints[0].hash[0] == '0' ? '1' : '0';
  EXPECT_THAT(judge("node-1", known, changed).problem, HasSubstr("not signed"));
  EXPECT_TRUE(judge("node-1", known, changed).good.empty());
  // Signed and all, but the order is wrong.
  auto later = live(3)->tell(5).value();
  later.hash_at_after = later.checkpoints.back().hash;
  Known const ahead{told.public_key, later.checkpoints.back()};
  auto back = told;
  back.hash_at_after = later.hash_at_after;
  EXPECT_THAT(judge("node-1", ahead, back).problem, HasSubstr("it ends with record 5"));
}

}  // namespace
}  // namespace audit
