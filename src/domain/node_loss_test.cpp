#include "domain/node_loss.hpp"

#include <gtest/gtest.h>

namespace domain {
namespace {

using namespace std::chrono_literals;

TEST(LostNodes, SilenceAloneIsNoLoss) {
  base::ManualClock clock;
  EXPECT_FALSE(is_lost(clock.wall_now(), clock.wall_now() - 24h, std::nullopt));
  EXPECT_FALSE(is_lost(clock.wall_now(), std::nullopt, std::nullopt));
}

TEST(LostNodes, AWordCountsAfterAMinuteOfSilence) {
  base::ManualClock clock;
  auto const now = clock.wall_now();
  EXPECT_FALSE(is_lost(now, now - 59s, now - 10s));
  EXPECT_TRUE(is_lost(now, now - 60s, now - 10s));
  EXPECT_TRUE(is_lost(now, std::nullopt, now));
}

TEST(LostNodes, AReportAfterTheWordOverrulesIt) {
  base::ManualClock clock;
  auto const now = clock.wall_now();
  EXPECT_FALSE(is_lost(now, now - 5min, now - 10min));
}

}  // namespace
}  // namespace domain
