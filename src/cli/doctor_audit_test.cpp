#include "cli/doctor_audit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cli {
namespace {

using ::testing::HasSubstr;

TEST(DoctorAudit, ALogThatDoesNotGoOnIsAFindingWithWhatToDo) {
  auto const found = judge_audit(
      {{"public_key", std::string(64, 'a')},
       {"problem", "it begins with record 501, and retention took nothing from record 1 on"},
       {"problem_at", "2026-01-02T03:04:05Z"}},
      "node-7");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->what, "audit");
  EXPECT_EQ(found->health, Health::degraded);
  EXPECT_THAT(found->proof, HasSubstr("begins with record 501"));
  EXPECT_THAT(found->proof, HasSubstr("2026-01-02T03:04:05Z"));
  EXPECT_NE(found->follows, "");
  EXPECT_THAT(found->fix, HasSubstr("space audit verify"));
  EXPECT_THAT(found->fix, HasSubstr("space audit accept node-7"));
}

TEST(DoctorAudit, AProblemIsToldAlsoWithoutAKey) {
  auto const found = judge_audit({{"problem", "another key"}, {"public_key", ""}}, "n");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->health, Health::degraded);
}

TEST(DoctorAudit, CheckpointsThatGoOnAreFineAndWithoutAKeyThereIsNothingToSay) {
  auto const fine = judge_audit({{"public_key", std::string(64, 'a')}, {"problem", ""}}, "n");
  ASSERT_TRUE(fine);
  EXPECT_EQ(fine->health, Health::ok);
  EXPECT_EQ(fine->fix, "");
  EXPECT_FALSE(judge_audit({{"public_key", ""}, {"problem", ""}}, "n"));
  EXPECT_FALSE(judge_audit({{"checkpoints", 1}}, "n"));
  EXPECT_FALSE(judge_audit("nonsense", "n"));
}

}  // namespace
}  // namespace cli
