#include "broker/ledger.hpp"

#include "async/testing.hpp"
#include "broker/usage_file.hpp"

#include <array>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace broker {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

/// Whose wall can be set, too.
struct TestClock final : base::Clock {
  base::SteadyTime steady_now() const override { return steady; }

  base::WallTime wall_now() const override { return wall; }

  void advance(milliseconds by) {
    steady += by;
    wall += by;
  }

  base::SteadyTime steady{};
  base::WallTime wall{std::chrono::sys_days{std::chrono::year{2030} / 1 / 1}};
};

class LedgerTest : public testing::Test {
 protected:
  bool admit(std::string id, wire::SharedBudget budget) {
    std::array const one{Ledger::Account{std::move(id), budget}};
    last_ = ledger_.admit(one);
    return last_.admitted;
  }

  TestClock clock_;
  Ledger ledger_{clock_};
  Ledger::Verdict last_;
};

TEST_F(LedgerTest, WhatIsUnderWayIsCountedUntilItIsOver) {
  wire::SharedBudget const two{std::nullopt, 2, std::nullopt};
  EXPECT_TRUE(admit("a", two));
  EXPECT_TRUE(admit("a", two));
  EXPECT_FALSE(admit("a", two));
  EXPECT_TRUE(admit("b", two)) << "another one's";
  clock_.advance(minutes(60));
  EXPECT_FALSE(admit("a", two)) << "time ends nothing";
  ledger_.release("a");
  EXPECT_TRUE(admit("a", two));
  EXPECT_FALSE(admit("a", two));
  for (int i = 0; i < 5; ++i)
    ledger_.release("a");
  EXPECT_TRUE(admit("a", two));
  EXPECT_TRUE(admit("a", two));
  EXPECT_FALSE(admit("a", two)) << "more ends than begins give nothing";
}

TEST_F(LedgerTest, ADayBeginsAtMidnightAndAClockThatIsSetBackGivesNothing) {
  wire::SharedBudget const three{std::nullopt, std::nullopt, 3};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(admit("a", three));
    clock_.advance(minutes(60));
  }
  EXPECT_FALSE(admit("a", three));
  EXPECT_EQ(last_.later_s, 21U * 3600);
  clock_.wall -= seconds(86400);
  EXPECT_FALSE(admit("a", three));
  clock_.wall += seconds(86400);
  clock_.advance(minutes(21 * 60) - seconds(1));
  EXPECT_FALSE(admit("a", three));
  EXPECT_EQ(last_.later_s, 1U);
  clock_.advance(seconds(1));
  EXPECT_TRUE(admit("a", three));
}

TEST_F(LedgerTest, AllOrNone) {
  std::array const both{Ledger::Account{"organisation", {10, 10, 10}},
                        Ledger::Account{"project", {std::nullopt, 1, std::nullopt}}};
  EXPECT_TRUE(ledger_.admit(both).admitted);
  for (int i = 0; i < 50; ++i) {
    auto const verdict = ledger_.admit(both);
    EXPECT_FALSE(verdict.admitted);
    EXPECT_EQ(verdict.refused_by, 1U);
  }
  for (int i = 0; i < 9; ++i)
    EXPECT_TRUE(admit("organisation", {10, 10, 10})) << "what the project refused cost it nothing";
  EXPECT_FALSE(admit("organisation", {10, 10, 10}));
}

TEST_F(LedgerTest, IsBoundedAndForgetsOnlyWhatIsWhole) {
  wire::SharedBudget const often{1000, std::nullopt, std::nullopt};
  EXPECT_TRUE(admit("held", {std::nullopt, 1, std::nullopt}));
  EXPECT_TRUE(admit("day", {std::nullopt, std::nullopt, 1}));
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(admit(std::to_string(i), often));
    clock_.advance(milliseconds(2));
  }
  EXPECT_LE(ledger_.size(), 1100U);
  EXPECT_FALSE(admit("held", {std::nullopt, 1, std::nullopt}));
  EXPECT_FALSE(admit("day", {std::nullopt, std::nullopt, 1}));
}

TEST_F(LedgerTest, WhoeverIsCountedGoesOnWhenManyOthersCame) {
  wire::SharedBudget const daily{std::nullopt, std::nullopt, 100};
  EXPECT_TRUE(admit("first", daily));
  std::vector<DayUse> others;
  for (std::size_t i = 1; i < Ledger::accounts_max; ++i)
    others.push_back({std::to_string(i), std::numeric_limits<std::int64_t>::max(), 1});
  ledger_.restore(others);
  EXPECT_FALSE(admit("one more", daily));
  EXPECT_TRUE(admit("first", daily));
}

TEST_F(LedgerTest, ARestartGivesNothingOfTheDayBackAndADamagedFileIsSaid) {
  std::string directory = testing::TempDir() + "/usage-XXXXXX";
  ASSERT_TRUE(::mkdtemp(directory.data()));
  auto const path = directory + "/usage.json";
  wire::SharedBudget const two{std::nullopt, 1, 2};
  async::run_test([&]() -> boost::asio::awaitable<void> {
    UsageFile file(path, ledger_);
    EXPECT_TRUE(file.load()) << "there is none at first";
    EXPECT_TRUE(admit("a", two));
    auto kept = co_await file.keep();
    EXPECT_TRUE(kept);
    Ledger next(clock_);
    EXPECT_TRUE(UsageFile(path, next).load());
    std::array const one{Ledger::Account{"a", two}};
    EXPECT_TRUE(next.admit(one).admitted) << "nothing is under way any more";
    next.release("a");
    auto const verdict = next.admit(one);
    EXPECT_FALSE(verdict.admitted);
    EXPECT_GT(verdict.later_s, 0U);
    clock_.advance(minutes(24 * 60));
    Ledger tomorrow(clock_);
    EXPECT_TRUE(UsageFile(path, tomorrow).load());
    EXPECT_EQ(tomorrow.size(), 0U);
    std::ofstream(path) << "{";
    EXPECT_FALSE(UsageFile(path, tomorrow).load());
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace broker
