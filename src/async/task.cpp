#include "async/task.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"

#include <deque>
#include <list>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace async {
namespace {

bool is_cancelled(asio::cancellation_state const& state) {
  return state.cancelled() != asio::cancellation_type::none;
}

std::string what_of(std::exception_ptr const& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (boost::system::system_error const& error) {
    return error.code() == asio::error::operation_aborted ? std::string()
                                                          : std::string(error.what());
  } catch (std::exception const& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

asio::awaitable<Ended> run_until(base::Deadline deadline, asio::awaitable<void> op) {
  auto executor = co_await asio::this_coro::executor;
  asio::steady_timer timer(executor, deadline);
  auto group = asio::experimental::make_parallel_group(
      asio::co_spawn(executor, std::move(op), asio::deferred), timer.async_wait(asio::deferred));
  auto const throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  auto [order, thrown, timer_error] =
      co_await std::move(group).async_wait(asio::experimental::wait_for_one(), asio::use_awaitable);
  auto const state = co_await asio::this_coro::cancellation_state;
  co_await asio::this_coro::throw_if_cancelled(throws);
  if (is_cancelled(state)) co_return Ended::cancelled;
  if (order[0] == 1) co_return Ended::deadline;
  if (thrown) std::rethrow_exception(thrown);
  co_return Ended::finished;
}

asio::awaitable<First> race(asio::awaitable<void> left, asio::awaitable<void> right) {
  auto executor = co_await asio::this_coro::executor;
  auto group = asio::experimental::make_parallel_group(
      asio::co_spawn(executor, std::move(left), asio::deferred),
      asio::co_spawn(executor, std::move(right), asio::deferred));
  auto [order, left_thrown, right_thrown] =
      co_await std::move(group).async_wait(asio::experimental::wait_for_one(), asio::use_awaitable);
  if (order[0] == 0 && left_thrown) std::rethrow_exception(left_thrown);
  if (order[0] == 1 && right_thrown) std::rethrow_exception(right_thrown);
  co_return order[0] == 0 ? First::left : First::right;
}

asio::awaitable<void> sleep_for(std::chrono::milliseconds duration) {
  asio::steady_timer timer(co_await asio::this_coro::executor, duration);
  co_await timer.async_wait(asio::use_awaitable);
}

asio::awaitable<void> sleep_until(base::Deadline deadline) {
  asio::steady_timer timer(co_await asio::this_coro::executor, deadline);
  co_await timer.async_wait(asio::use_awaitable);
}

struct Signal::Impl {
  explicit Impl(asio::any_io_executor executor)
      : timer(std::move(executor), base::Deadline::max()) {}

  asio::steady_timer timer;
};

Signal::Signal(asio::any_io_executor executor)
    : impl_(std::make_shared<Impl>(std::move(executor))) {}

Signal::~Signal() {
  notify_all();
}

void Signal::notify_all() noexcept {
  impl_->timer.cancel();
}

asio::awaitable<void> Signal::wait() {
  auto const impl = impl_;
  boost::system::error_code ignored;
  co_await impl->timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  auto const state = co_await asio::this_coro::cancellation_state;
  if (is_cancelled(state)) throw boost::system::system_error(asio::error::operation_aborted);
}

struct TaskGroup::Impl {
  explicit Impl(asio::any_io_executor on) : executor(on), idle(on, base::Deadline::max()) {}

  asio::any_io_executor executor;
  asio::steady_timer idle;  // cancelled when the last child ends
  std::list<asio::cancellation_signal> running;
};

TaskGroup::TaskGroup(asio::any_io_executor executor)
    : impl_(std::make_shared<Impl>(std::move(executor))) {}

TaskGroup::~TaskGroup() {
  SPACE_ASSERT(impl_->running.empty(), "the owner awaits cancel() and join() before it dies");
}

std::size_t TaskGroup::running() const noexcept {
  return impl_->running.size();
}

void TaskGroup::spawn(std::string_view name, asio::awaitable<void> child) {
  auto impl = impl_;
  auto const it = impl->running.emplace(impl->running.end());
  auto on_end = [impl, it, name = std::string(name)](std::exception_ptr thrown) {
    impl->running.erase(it);
    if (thrown) {
      auto const what = what_of(thrown);
      if (!what.empty()) base::log::error("task_failed", {{"task", name}, {"what", what}});
    }
    if (impl->running.empty()) impl->idle.cancel();
  };
  asio::co_spawn(impl->executor,
                 std::move(child),
                 asio::bind_cancellation_slot(it->slot(), std::move(on_end)));
}

void TaskGroup::cancel() noexcept {
  // emit() may end a child at once, which erases it from the list.
  for (auto it = impl_->running.begin(); it != impl_->running.end();)
    (it++)->emit(asio::cancellation_type::terminal);
}

asio::awaitable<void> TaskGroup::join() {
  // The owner may itself be cancelled: it still waits, that is the point of the group.
  auto const impl = impl_;
  auto const throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  while (!impl->running.empty()) {
    auto const state = co_await asio::this_coro::cancellation_state;
    if (is_cancelled(state)) cancel();
    if (impl->running.empty()) break;
    boost::system::error_code ignored;
    if (is_cancelled(state)) {
      // The coroutine's own slot has fired already: a plain wait would end at once, so wait in
      // turns.
      asio::steady_timer pause(impl->executor, std::chrono::milliseconds(1));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    } else {
      co_await impl->idle.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
}

struct Turnstile::Impl {
  explicit Impl(asio::any_io_executor on) : executor(std::move(on)) {}

  asio::any_io_executor executor;
  bool taken = false;
  std::deque<asio::steady_timer*> waiting;
};

Turnstile::Turnstile(asio::any_io_executor executor)
    : impl_(std::make_shared<Impl>(std::move(executor))) {}

Turnstile::~Turnstile() = default;

Turnstile::Turn::~Turn() {
  if (!owner_) return;
  auto* impl = static_cast<Impl*>(owner_.get());
  if (impl->waiting.empty()) {
    impl->taken = false;
    return;
  }
  // The turn passes on without being free in between, so nobody can overtake.
  auto* next = impl->waiting.front();
  impl->waiting.pop_front();
  next->cancel();
}

asio::awaitable<Turnstile::Turn> Turnstile::enter() {
  auto const impl = impl_;
  if (impl->taken) {
    asio::steady_timer place(impl->executor, base::Deadline::max());
    impl->waiting.push_back(&place);
    auto const throws = co_await asio::this_coro::throw_if_cancelled();
    co_await asio::this_coro::throw_if_cancelled(false);
    boost::system::error_code ignored;
    co_await place.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    auto const state = co_await asio::this_coro::cancellation_state;
    co_await asio::this_coro::throw_if_cancelled(throws);
    auto const still = std::ranges::find(impl->waiting, &place);
    if (still != impl->waiting.end()) {
      impl->waiting.erase(still);
      throw boost::system::system_error(asio::error::operation_aborted);
    }
    Turn turn{std::static_pointer_cast<void>(impl)};
    if (is_cancelled(state)) throw boost::system::system_error(asio::error::operation_aborted);
    co_return std::move(turn);
  }
  impl->taken = true;
  co_return Turn{std::static_pointer_cast<void>(impl)};
}

namespace {
asio::thread_pool& blocking_pool() {
  static asio::thread_pool pool(4);
  return pool;
}
}  // namespace

asio::awaitable<void> run_blocking(std::function<void()> call) {
  auto executor = co_await asio::this_coro::executor;
  auto const throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);

  struct Shared {
    explicit Shared(asio::any_io_executor const& on) : done(on, base::Deadline::max()) {}

    asio::steady_timer done;
    bool ended = false;
    std::exception_ptr thrown;
  };

  auto shared = std::make_shared<Shared>(executor);
  asio::post(blocking_pool(), [shared, executor, call = std::move(call)]() mutable {
    try {
      call();
    } catch (...) {
      shared->thrown = std::current_exception();
    }
    // Nothing of the loop may be left in this thread: the loop can be gone before the thread gets
    // here again, and the timer in `shared` belongs to it.
    call = nullptr;
    asio::post(executor, [shared = std::move(shared)] {
      shared->ended = true;
      shared->done.cancel();
    });
  });
  while (!shared->ended) {
    boost::system::error_code ignored;
    auto const state = co_await asio::this_coro::cancellation_state;
    if (is_cancelled(state)) {
      asio::steady_timer pause(executor, std::chrono::milliseconds(1));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    } else {
      co_await shared->done.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
  if (shared->thrown) std::rethrow_exception(shared->thrown);
}

int run_main(std::function<asio::awaitable<int>()> main) {
  asio::io_context loop(1);
  int exit_code = 1;
  asio::cancellation_signal stop;
  asio::signal_set signals(loop, SIGINT, SIGTERM);
  signals.async_wait([&stop](boost::system::error_code error, int) {
    if (!error) stop.emit(asio::cancellation_type::terminal);
  });
  auto on_end = [&](std::exception_ptr thrown, int code) {
    signals.cancel();
    if (!thrown) {
      exit_code = code;
      return;
    }
    auto const what = what_of(thrown);
    exit_code = what.empty() ? 0 : 1;  // empty: cancelled by a signal, which is how services end
    if (!what.empty()) base::log::error("main_failed", {{"what", what}});
  };
  asio::co_spawn(loop, main(), asio::bind_cancellation_slot(stop.slot(), std::move(on_end)));
  loop.run();
  blocking_pool().join();
  return exit_code;
}

}  // namespace async
