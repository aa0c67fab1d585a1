#include "worker/slot_pool.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"
#include "worker/gateway_link.hpp"

namespace worker {

namespace asio = boost::asio;

namespace {

/// hostd does one thing at a time, and who took a slot wants a machine in it next.
constexpr std::chrono::milliseconds rest_after_take(200);
constexpr std::chrono::milliseconds longest_pause(5'000);

}  // namespace

SlotPool::SlotPool(asio::any_io_executor executor,
                   hostd::Client hostd,
                   std::uint32_t slots_max,
                   std::uint32_t ready_wanted)
    : hostd_(std::move(hostd)),
      ready_wanted_(std::min(ready_wanted, slots_max)),
      states_(slots_max, State::free),
      made_(slots_max, false),
      changed_(executor),
      tasks_(executor) {}

void SlotPool::claim(std::uint32_t slot) {
  SPACE_ASSERT(slot < states_.size(), "the caller looked the slot up by its number");
  states_[slot] = State::taken;
}

std::optional<std::uint32_t> SlotPool::find(State state) const noexcept {
  auto const found = std::ranges::find(states_, state);
  if (found == states_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - states_.begin());
}

std::size_t SlotPool::ready() const noexcept {
  return static_cast<std::size_t>(std::ranges::count(states_, State::ready));
}

std::optional<std::uint32_t> SlotPool::try_take() {
  auto slot = find(State::ready);
  bool const made = slot.has_value();
  if (!slot) slot = find(State::free);
  if (!slot) return std::nullopt;
  states_[*slot] = State::taken;
  made_[*slot] = made;
  rests_until_ = base::system_clock().steady_now() + rest_after_take;
  changed_.notify_all();
  return slot;
}

asio::awaitable<void> SlotPool::take_waiting(std::optional<std::uint32_t>* taken) {
  while (!(*taken = try_take()))
    co_await changed_.wait();
}

async::Task<std::uint32_t> SlotPool::take() {
  std::optional<std::uint32_t> taken = try_take();
  if (!taken) {
    auto const deadline = base::system_clock().in(std::chrono::milliseconds(10'000));
    auto const ended = co_await async::run_until(deadline, take_waiting(&taken));
    if (ended == async::Ended::cancelled && taken) {
      states_[*taken] = State::free;
      made_[*taken] = false;
      taken.reset();  // whoever goes on after a cancellation must not think that it is his
      changed_.notify_all();
    }
  }
  if (!taken)
    co_return base::fail(base::Code::exhausted,
                         "this host has no free slot; try again in a moment");
  co_return *taken;
}

async::Task<void> SlotPool::make(std::uint32_t slot) {
  if (made_[slot]) co_return base::Result<void>();
  auto made = co_await make_in_kernel(slot);
  made_[slot] = made.has_value();
  co_return made;
}

async::Task<void> SlotPool::make_in_kernel(std::uint32_t slot) {
  auto made = co_await async::blocking([client = hostd_, slot] { return client.make_slot(slot); });
  if (made || made.error().code() != base::Code::conflict) co_return made;
  // What an earlier attempt left, whose answer was lost. Nobody of ours uses it: its number was
  // free.
  auto removed = co_await remove_from_kernel(slot);
  if (!removed) co_return removed;
  co_return co_await async::blocking([client = hostd_, slot] { return client.make_slot(slot); });
}

async::Task<void> SlotPool::remove_from_kernel(std::uint32_t slot) {
  auto const gone = [](auto const& result) {
    return result || result.error().code() == base::Code::not_found;
  };
  auto const ended =
      co_await async::blocking([client = hostd_, slot] { return client.end_vmm(slot); });
  if (!gone(ended)) co_return std::unexpected(ended.error());
  auto const removed =
      co_await async::blocking([client = hostd_, slot] { return client.remove_slot(slot); });
  if (!gone(removed)) co_return std::unexpected(removed.error());
  co_return base::Result<void>();
}

async::Task<void> SlotPool::dispose(std::uint32_t slot) {
  auto removed = co_await remove_from_kernel(slot);
  if (!removed) co_return base::passing(removed, "remove the slot");
  states_[slot] = State::free;
  made_[slot] = false;
  changed_.notify_all();
  co_return base::Result<void>();
}

void SlotPool::dispose_soon(std::uint32_t slot) {
  tasks_.spawn("remove a slot", dispose_until_gone(slot));
}

asio::awaitable<void> SlotPool::dispose_until_gone(std::uint32_t slot) {
  for (std::chrono::milliseconds pause(100);; pause = std::min(pause * 2, longest_pause)) {
    auto const removed = co_await dispose(slot);
    if (removed) co_return;
    base::log::warn("slot_stays",
                    {{"slot", slot},
                     {"what", removed.error().message()},
                     {"detail", removed.error().detail()}});
    co_await async::sleep_for(pause);
  }
}

asio::awaitable<void> SlotPool::check_ready() {
  for (std::uint32_t slot = 0; slot < total(); ++slot) {
    if (states_[slot] != State::ready) continue;
    auto const checked = co_await async::blocking(
        [client = hostd_, slot] { return client.check_rules(slot, hostd::Passage{}); });
    // Taken meanwhile: it is looked at with its sandbox.
    bool const altered = !checked && checked.error().code() == base::Code::denied;
    if (!altered || states_[slot] != State::ready) continue;
    base::log::error("altered_slot_thrown_away", {{"slot", slot}});
    states_[slot] = State::making;
    auto const removed = co_await dispose(slot);
    if (!removed) {
      // It stays out of use: nobody may get a slot that is not known to be ours.
      base::log::error("altered_slot_stays", {{"slot", slot}, {"what", removed.error().message()}});
    }
  }
}

void SlotPool::start(bool with_gateways) {
  with_gateways_ = with_gateways;
  tasks_.spawn("keep slots ready", refill());
}

asio::awaitable<void> SlotPool::refill() {
  std::chrono::milliseconds pause(100);
  for (;;) {
    auto const slot = ready() < ready_wanted_ ? find(State::free) : std::nullopt;
    if (!slot) {
      co_await changed_.wait();
      continue;
    }
    if (ready() > 0 && base::system_clock().steady_now() < rests_until_) {
      co_await async::run_until(rests_until_, changed_.wait());
      co_await asio::this_coro::throw_if_cancelled(true);
      continue;
    }
    states_[*slot] = State::making;
    auto const made = co_await make_in_kernel(*slot);
    if (made && with_gateways_) co_await start_spare_gateway(hostd_, *slot);
    states_[*slot] = made ? State::ready : State::free;
    changed_.notify_all();
    if (made) {
      pause = std::chrono::milliseconds(100);
      continue;
    }
    base::log::warn(
        "slot_not_made",
        {{"slot", *slot}, {"what", made.error().message()}, {"detail", made.error().detail()}});
    co_await async::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(10'000));
  }
}

asio::awaitable<void> SlotPool::close() {
  tasks_.cancel();
  co_await tasks_.join();
}

}  // namespace worker
