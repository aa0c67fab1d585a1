#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

/// The only folder in which co_spawn, timers and parallel groups are instantiated (they cost
/// seconds of compile time per file, and detached work is forbidden).
namespace async {

namespace asio = boost::asio;

/// Lazy, awaited exactly once. Parameters of coroutines are values; `this` must outlive the await.
template <class T> using Task = asio::awaitable<base::Result<T>>;

enum class Ended : std::uint8_t { finished, deadline, cancelled };

/// Runs `op` until it ends or `deadline` passes; in the second case `op` is cancelled (terminal)
/// and has unwound when this returns. An exception of `op` is rethrown.
asio::awaitable<Ended> run_until(base::Deadline deadline, asio::awaitable<void> op);

namespace detail {
template <class T> asio::awaitable<void> store(std::optional<base::Result<T>>* out, Task<T> op) {
  out->emplace(co_await std::move(op));
}
}  // namespace detail

/// `op`'s result, or deadline_exceeded, or cancelled when the caller itself was cancelled.
template <class T> Task<T> with_deadline(base::Deadline deadline, Task<T> op) {
  std::optional<base::Result<T>> out;
  auto running = detail::store(&out, std::move(op));
  auto const ended = co_await run_until(deadline, std::move(running));
  if (ended == Ended::cancelled)
    co_return base::fail(base::Code::cancelled, "the caller went away");
  if (ended == Ended::deadline || !out)
    co_return base::fail(base::Code::deadline_exceeded, "no answer in time");
  co_return std::move(*out);
}

enum class First : std::uint8_t { left, right };

/// Runs both, returns which ended first; the other is cancelled and has unwound by then.
asio::awaitable<First> race(asio::awaitable<void> left, asio::awaitable<void> right);

/// Throws system_error(operation_aborted) when cancelled, like every await.
asio::awaitable<void> sleep_for(std::chrono::milliseconds duration);
asio::awaitable<void> sleep_until(base::Deadline deadline);

/// Something that happened, told to any number of waiters. notify_all() wakes those that wait now.
class Signal {
 public:
  explicit Signal(asio::any_io_executor executor);
  ~Signal();
  Signal(Signal const&) = delete;
  Signal& operator=(Signal const&) = delete;
  void notify_all() noexcept;
  /// Check the condition before and after: a wait may end without it.
  asio::awaitable<void> wait();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Children that may not outlive their owner: the last member of its class. The owner awaits
/// `cancel(); join();` before destruction, else the destructor aborts.
class TaskGroup {
 public:
  explicit TaskGroup(asio::any_io_executor executor);
  TaskGroup(TaskGroup const&) = delete;
  TaskGroup& operator=(TaskGroup const&) = delete;
  ~TaskGroup();

  /// An exception that leaves a child (other than by cancellation) is logged with `name`; the
  /// others go on.
  void spawn(std::string_view name, asio::awaitable<void> child);
  /// Asks all children to end (terminal cancellation). join() waits for it.
  void cancel() noexcept;
  asio::awaitable<void> join();
  std::size_t running() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// One queue of turns: whoever holds the Turn is alone until it goes out of scope. For the
/// mutations of one sandbox. Fair: first come, first served.
class Turnstile {
 public:
  explicit Turnstile(asio::any_io_executor executor);
  ~Turnstile();

  class [[nodiscard]] Turn {
   public:
    Turn(Turn&& from) noexcept : owner_(std::exchange(from.owner_, nullptr)) {}

    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    friend class Turnstile;

    explicit Turn(std::shared_ptr<void> owner) : owner_(std::move(owner)) {}

    std::shared_ptr<void> owner_;
  };

  asio::awaitable<Turn> enter();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Runs a blocking call (file sync, fork-and-wait, PQcancel) on the process's small thread pool and
/// resumes here with its result. `call` must not touch anything of the loop's thread without its
/// own copy. Not cancellable: when cancelled, waits for the call to end. Never abandons it.
asio::awaitable<void> run_blocking(std::function<void()> call);

template <class F> auto blocking(F call) -> asio::awaitable<std::invoke_result_t<F>> {
  std::optional<std::invoke_result_t<F>> out;
  std::function<void()> wrapped = [&] { out.emplace(call()); };
  co_await run_blocking(std::move(wrapped));
  co_return std::move(*out);
}

/// Runs `main` on a fresh one-threaded loop until it returns, and gives its value as exit code.
/// SIGINT and SIGTERM cancel it (terminal). What `main` started must be joined by then.
int run_main(std::function<asio::awaitable<int>()> main);

}  // namespace async
