#include "domain/pace.hpp"

#include <gtest/gtest.h>

namespace domain {
namespace {

using namespace std::chrono_literals;

TEST(Pace, ASecondsWorthAtOnceThenOneAtATime) {
  base::ManualClock clock;
  Pace pace;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(pace.wait(clock.steady_now(), 4), 0ns) << i;
    pace.charge(clock.steady_now(), 4);
  }
  EXPECT_EQ(pace.wait(clock.steady_now(), 4), 250ms);
  clock.advance(249ms);
  EXPECT_EQ(pace.wait(clock.steady_now(), 4), 1ms);
  clock.advance(1ms);
  EXPECT_EQ(pace.wait(clock.steady_now(), 4), 0ns);
  EXPECT_FALSE(pace.idle(clock.steady_now()));
  clock.advance(750ms);
  EXPECT_TRUE(pace.idle(clock.steady_now()));
  // However long nobody came, no more than a second's worth is saved.
  clock.advance(1h);
  for (int i = 0; i < 4; ++i)
    pace.charge(clock.steady_now(), 4);
  EXPECT_EQ(pace.wait(clock.steady_now(), 4), 250ms);
}

TEST(Pace, WhoeverWaitsHasItsPlaceAndTheNextWaitsLonger) {
  base::ManualClock clock;
  Pace pace;
  pace.charge(clock.steady_now(), 1);
  EXPECT_EQ(pace.wait(clock.steady_now(), 1), 1s);
  pace.charge(clock.steady_now(), 1);
  EXPECT_EQ(pace.wait(clock.steady_now(), 1), 2s);
}

TEST(Pace, ALowerRateHoldsAtOnceAndZeroIsNever) {
  base::ManualClock clock;
  Pace pace;
  pace.charge(clock.steady_now(), 100);
  EXPECT_EQ(pace.wait(clock.steady_now(), 100), 0ns);
  EXPECT_EQ(pace.wait(clock.steady_now(), 1), 10ms);
  EXPECT_EQ(pace.wait(clock.steady_now(), 0), std::chrono::nanoseconds::max());
}

}  // namespace
}  // namespace domain
