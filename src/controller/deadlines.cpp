#include "controller/deadlines.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "controller/backoff.hpp"

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr auto database_time = 3s;
// What a claim may take. Not renewed: what is not finished within is claimed again, here or
// elsewhere.
constexpr auto lease = 20s;
constexpr auto work_time = 18s;
constexpr auto poll_most = 250ms;
constexpr auto stale_poll = 500ms;
constexpr std::uint32_t claim_max = 100;
// Captures share a disk and processors.
constexpr std::size_t suspends_max = 4;
constexpr auto idle_every = 1s;
// Beyond this the deadlines still fire, but their work is left to the stale round.
constexpr std::size_t work_max = 500;

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

}  // namespace

Deadlines::Deadlines(store::asio::any_io_executor executor,
                     store::Store& store,
                     Finisher& finisher,
                     std::string owner)
    : store_(store), finisher_(finisher), owner_(std::move(owner)), work_(std::move(executor)) {}

store::asio::awaitable<void> Deadlines::run_due() {
  Backoff backoff(100ms, 1000ms);
  while (true) {
    auto const claimed = co_await claim_due();
    if (!claimed) {
      co_await async::sleep_for(backoff.next());
      continue;
    }
    backoff.reset();
    co_await claim_suspends();
    if (*claimed == claim_max) continue;
    auto const pause = co_await pause_until_next();
    co_await async::sleep_for(pause);
  }
}

store::asio::awaitable<std::optional<std::size_t>> Deadlines::claim_due() {
  if (SPACE_FAULT("controller.deadline.before_claim")) co_return std::nullopt;
  auto due = co_await store_.sandboxes.claim_due(owner_, lease, claim_max, in(database_time));
  if (!due) {
    base::log::warn("deadlines_wait", {{"why", due.error().message()}});
    co_return std::nullopt;
  }
  for (auto& one : *due) {
    base::log::info("deadline_fired",
                    {{"sandbox", one.sandbox.public_id}, {"operation", one.operation}});
    if (work_.running() >= work_max) continue;
    work_.spawn("finish_delete", finisher_.finish_delete(std::move(one.sandbox), in(work_time)));
  }
  co_return due->size();
}

store::asio::awaitable<bool> Deadlines::claim_suspends() {
  if (suspends_ >= suspends_max) co_return false;
  auto const now = base::system_clock().steady_now();
  store::DueSuspends which;
  which.deadlines = true;
  if (now - idle_looked_at_ >= idle_every) {
    which.idle = true;
    which.draining = true;
    idle_looked_at_ = now;
  }
  if (SPACE_FAULT("controller.suspend.before_claim")) co_return false;
  auto due =
      co_await store_.sandboxes.claim_suspends(which,
                                               owner_,
                                               lease,
                                               static_cast<std::uint32_t>(suspends_max - suspends_),
                                               in(database_time));
  if (!due) co_return false;
  for (auto& one : *due) {
    base::log::info(
        "suspend_decided",
        {{"sandbox", one.sandbox.public_id}, {"why", one.actor}, {"operation", one.operation}});
    work_.spawn("finish_suspend", suspend(std::move(one)));
  }
  co_return !due->empty();
}

store::asio::awaitable<void> Deadlines::suspend(store::DueSandbox due) {
  struct Counted {
    std::size_t& count;

    explicit Counted(std::size_t& now) : count(++now) {}

    ~Counted() { --count; }

    Counted(Counted const&) = delete;
    Counted& operator=(Counted const&) = delete;
  } const counted(suspends_);

  co_await finisher_.finish_suspend(
      std::move(due.sandbox), std::move(due.operation), std::move(due.actor), in(work_time));
}

store::asio::awaitable<std::chrono::milliseconds> Deadlines::pause_until_next() {
  auto const next = co_await store_.sandboxes.next_due(in(database_time));
  if (!next || !*next) co_return poll_most;
  // A clock that differs from the database's costs one short pause, not a busy loop.
  auto const left =
      std::chrono::ceil<std::chrono::milliseconds>(**next - base::system_clock().wall_now());
  co_return std::clamp<std::chrono::milliseconds>(left, 10ms, poll_most);
}

store::asio::awaitable<void> Deadlines::run_stale() {
  Backoff backoff(stale_poll, 2000ms);
  while (true) {
    co_await async::sleep_for(stale_poll);
    if (work_.running() >= work_max) continue;
    auto stale =
        co_await store_.operations.claim_stale(owner_, lease, claim_max, in(database_time));
    if (!stale) {
      co_await async::sleep_for(backoff.next());
      continue;
    }
    backoff.reset();
    for (auto& operation : *stale) {
      work_.spawn("take_over", finisher_.take_over(std::move(operation), in(work_time)));
    }
  }
}

store::asio::awaitable<void> Deadlines::close() {
  work_.cancel();
  co_await work_.join();
}

}  // namespace controller
