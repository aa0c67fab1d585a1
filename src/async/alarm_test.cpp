#include "async/alarm.hpp"

#include "async/testing.hpp"

#include <gtest/gtest.h>

namespace async {
namespace {

using std::chrono::milliseconds;

base::Deadline in(int ms) {
  return base::system_clock().in(milliseconds(ms));
}

TEST(Alarm, RingsOnceAtItsLatestDeadline) {
  run_test([]() -> asio::awaitable<void> {
    int rings = 0;
    base::Deadline rang{};
    Alarm alarm(co_await asio::this_coro::executor, [&] {
      ++rings;
      rang = base::system_clock().steady_now();
    });
    alarm.set(in(5));
    auto const later = in(30);
    alarm.set(later);
    co_await sleep_for(milliseconds(100));
    EXPECT_EQ(rings, 1);
    EXPECT_GE(rang, later);
    alarm.set(in(10'000));
    alarm.set(in(1));  // earlier than the wait that is out
    co_await sleep_for(milliseconds(50));
    EXPECT_EQ(rings, 2);
  });
}

TEST(Alarm, IsSilentWhenCancelledOrGone) {
  run_test([]() -> asio::awaitable<void> {
    int rings = 0;
    auto alarm = std::make_unique<Alarm>(co_await asio::this_coro::executor, [&] { ++rings; });
    alarm->set(in(1));
    alarm->cancel();
    co_await sleep_for(milliseconds(20));
    EXPECT_EQ(rings, 0);
    alarm->set(in(1));
    alarm.reset();
    co_await sleep_for(milliseconds(20));
    EXPECT_EQ(rings, 0);
  });
}

}  // namespace
}  // namespace async
