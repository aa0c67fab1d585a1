#include "async/task.hpp"

#include "async/testing.hpp"

#include <gtest/gtest.h>

namespace async {
namespace {

using namespace std::chrono_literals;

Task<int> answer_after(std::chrono::milliseconds delay, int* unwound) {
  struct Count {
    int* n;

    ~Count() { ++*n; }
  } const count{unwound};

  co_await sleep_for(delay);
  co_return 42;
}

TEST(WithDeadline, GivesTheResultWhenInTime) {
  run_test([]() -> asio::awaitable<void> {
    int unwound = 0;
    auto const result =
        co_await with_deadline(base::system_clock().in(5s), answer_after(1ms, &unwound));
    EXPECT_EQ(result.value_or(0), 42);
  });
}

TEST(WithDeadline, UnwindsTheLoserBeforeItReturns) {
  run_test([]() -> asio::awaitable<void> {
    int unwound = 0;
    auto const result =
        co_await with_deadline(base::system_clock().in(5ms), answer_after(20s, &unwound));
    EXPECT_FALSE(result);
    EXPECT_EQ(result.error().code(), base::Code::deadline_exceeded);
    EXPECT_EQ(unwound, 1);
  });
}

asio::awaitable<void> sleep_long(int* unwound) {
  auto const result = co_await answer_after(20s, unwound);
  EXPECT_FALSE(result);
}

TEST(TaskGroup, CancelsAndJoinsItsChildren) {
  run_test([]() -> asio::awaitable<void> {
    int unwound = 0;
    TaskGroup group(co_await asio::this_coro::executor);
    group.spawn("one", sleep_long(&unwound));
    group.spawn("two", sleep_long(&unwound));
    co_await sleep_for(1ms);
    EXPECT_EQ(group.running(), 2U);
    group.cancel();
    co_await group.join();
    EXPECT_EQ(unwound, 2);
  });
}

asio::awaitable<void> take_turn(Turnstile* stile, std::vector<int>* order, int number) {
  auto const turn = co_await stile->enter();
  order->push_back(number);
  co_await sleep_for(1ms);
  order->push_back(number);
}

TEST(Turnstile, LetsOneInAtATimeInOrder) {
  run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    Turnstile stile(executor);
    std::vector<int> order;
    TaskGroup group(executor);
    for (int i = 0; i < 3; ++i)
      group.spawn("turn", take_turn(&stile, &order, i));
    co_await group.join();
    EXPECT_EQ(order, (std::vector<int>{0, 0, 1, 1, 2, 2}));
  });
}

TEST(Turnstile, AWaiterThatGivesUpLeavesTheQueue) {
  run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    Turnstile stile(executor);
    std::vector<int> order;
    TaskGroup group(executor);
    {
      auto const turn = co_await stile.enter();
      TaskGroup impatient(executor);
      impatient.spawn("impatient", take_turn(&stile, &order, 9));
      co_await sleep_for(1ms);
      impatient.cancel();
      co_await impatient.join();
    }
    group.spawn("next", take_turn(&stile, &order, 1));
    co_await group.join();
    EXPECT_EQ(order, (std::vector<int>{1, 1}));
  });
}

TEST(Blocking, BringsTheResultBackToTheLoop) {
  run_test([]() -> asio::awaitable<void> {
    auto call = [] { return 7; };
    auto const value = co_await blocking(std::move(call));
    EXPECT_EQ(value, 7);
  });
}

TEST(Race, CancelsTheSlower) {
  run_test([]() -> asio::awaitable<void> {
    int unwound = 0;
    auto const first = co_await race(sleep_for(1ms), sleep_long(&unwound));
    EXPECT_EQ(first, First::left);
    EXPECT_EQ(unwound, 1);
  });
}

asio::awaitable<void> wait_and_count(Signal* signal, int* woken) {
  co_await signal->wait();
  ++*woken;
}

TEST(Signal, WakesAllWhoWait) {
  run_test([]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    Signal signal(executor);
    int woken = 0;
    TaskGroup group(executor);
    group.spawn("a", wait_and_count(&signal, &woken));
    group.spawn("b", wait_and_count(&signal, &woken));
    co_await sleep_for(1ms);
    signal.notify_all();
    co_await group.join();
    EXPECT_EQ(woken, 2);
  });
}

}  // namespace
}  // namespace async
