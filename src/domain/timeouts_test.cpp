#include "domain/timeouts.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace domain {
namespace {

using namespace std::chrono_literals;

TEST(Timeouts, OnlyThePlatformsOwnSuspendsKeepADeadline) {
  EXPECT_FALSE(deadline_grace("kabc").has_value());
  EXPECT_FALSE(deadline_grace("deadline").has_value());
  EXPECT_EQ(deadline_grace("idle"), std::chrono::seconds(0));
  EXPECT_EQ(deadline_grace("host"), std::chrono::hours(24 * 7));
}

TEST(Timeouts, AreOneSecondToTheLimit) {
  EXPECT_EQ(check_timeout(1).value(), 1s);
  EXPECT_EQ(check_timeout(300).value(), 300s);
  EXPECT_EQ(check_timeout(86'400).value(), 24h);
  EXPECT_FALSE(check_timeout(86'401));
  EXPECT_EQ(check_timeout(3600, {.longest = 1h}).value(), 1h);
  EXPECT_FALSE(check_timeout(3601, {.longest = 1h}));
}

TEST(Timeouts, EachRefusalSaysWhatIsAllowed) {
  EXPECT_EQ(check_timeout(0).error().message(), "timeout must be greater than 0 seconds");
  EXPECT_EQ(check_timeout(-5).error().message(), "timeout must not be negative; it was -5");
  EXPECT_EQ(check_timeout(100'000).error().message(),
            "Timeout cannot be greater than 24 hours; it was 100000 seconds");
  for (auto const seconds : {std::numeric_limits<std::int64_t>::min(),
                             std::int64_t{-1},
                             std::int64_t{0},
                             std::numeric_limits<std::int64_t>::max()}) {
    auto const refused = check_timeout(seconds);
    ASSERT_FALSE(refused) << seconds;
    EXPECT_EQ(refused.error().code(), base::Code::invalid_argument);
  }
}

TEST(Timeouts, ZeroMeansNowOnlyForAChange) {
  EXPECT_EQ(check_new_timeout(0).value(), 0s);
  EXPECT_FALSE(check_new_timeout(-1));
  EXPECT_FALSE(check_new_timeout(86'401));
}

TEST(Timeouts, AreSpelledInTheLargestWholeUnit) {
  EXPECT_EQ(spell(24h), "24 hours");
  EXPECT_EQ(spell(1h), "1 hour");
  EXPECT_EQ(spell(90min), "90 minutes");
  EXPECT_EQ(spell(61s), "61 seconds");
  EXPECT_EQ(spell(0s), "0 seconds");
}

}  // namespace
}  // namespace domain
