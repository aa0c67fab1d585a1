#include "cli/restart_policy.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

using namespace std::chrono_literals;

TEST(RestartPolicy, WaitsTwiceAsLongEachTimeUpToALimit) {
  base::ManualClock clock;
  RestartPolicy policy;
  std::vector<std::chrono::milliseconds> pauses;
  for (int i = 0; i < 10; ++i) {
    policy.started(clock.steady_now());
    clock.advance(1s);
    pauses.push_back(policy.ended(clock.steady_now()));
  }
  EXPECT_EQ(pauses,
            (std::vector<std::chrono::milliseconds>{
                100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 5s, 5s, 5s, 5s}));
  EXPECT_EQ(policy.restarts(), 10);
}

TEST(RestartPolicy, ALongLifeForgivesWhatWasBefore) {
  base::ManualClock clock;
  RestartPolicy policy;
  for (int i = 0; i < 5; ++i) {
    policy.started(clock.steady_now());
    (void)policy.ended(clock.steady_now());
  }
  policy.started(clock.steady_now());
  clock.advance(10s);
  EXPECT_EQ(policy.ended(clock.steady_now()), 100ms);
}

}  // namespace
}  // namespace cli
