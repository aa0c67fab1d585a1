#pragma once

#include "async/task.hpp"
#include "hostd/client.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace worker {

/// The network slots of this host by number. A few are made ahead and wait, because making one
/// costs tens of milliseconds; each is used once and dies with its sandbox; the replacement is made
/// in the background.
///
/// Invariant: each number is in exactly one state.
class SlotPool {
 public:
  SlotPool(boost::asio::any_io_executor executor,
           hostd::Client hostd,
           std::uint32_t slots_max,
           std::uint32_t ready_wanted);

  /// At the worker's start, before everything else: the number belongs to a sandbox found again.
  void claim(std::uint32_t slot);

  /// A number for a new sandbox, a made one if there is any. Waits a while for one that is just
  /// being made or removed; fails with `exhausted`. Nothing is taken when cancelled.
  async::Task<std::uint32_t> take();
  /// Makes the slot of a taken number, unless that was done ahead. On failure the number stays
  /// taken: dispose().
  async::Task<void> make(std::uint32_t slot);
  /// Ends whatever runs in the slot, removes it, and frees its number. Idempotent; on failure try
  /// again.
  async::Task<void> dispose(std::uint32_t slot);
  /// The same, by the pool itself and until it has worked: of a slot whose machine is gone, so that
  /// nobody need wait. What a worker leaves when it dies over it is removed by the next one, as a
  /// slot of nobody.
  void dispose_soon(std::uint32_t slot);

  /// Looks at the slots that wait: one whose rules somebody changed is thrown away, and another one
  /// made.
  boost::asio::awaitable<void> check_ready();

  /// Begins to keep `ready_wanted` slots ready; with gateways, a closed one waits in each, so that
  /// no create starts one.
  void start(bool with_gateways);
  boost::asio::awaitable<void> close();

  std::uint32_t total() const noexcept { return static_cast<std::uint32_t>(states_.size()); }

  std::size_t ready() const noexcept;

 private:
  enum class State : std::uint8_t { free, making, ready, taken };

  boost::asio::awaitable<void> refill();
  std::optional<std::uint32_t> find(State state) const noexcept;
  std::optional<std::uint32_t> try_take();
  boost::asio::awaitable<void> take_waiting(std::optional<std::uint32_t>* taken);
  async::Task<void> make_in_kernel(std::uint32_t slot);
  async::Task<void> remove_from_kernel(std::uint32_t slot);
  boost::asio::awaitable<void> dispose_until_gone(std::uint32_t slot);

  hostd::Client hostd_;
  std::uint32_t ready_wanted_;
  bool with_gateways_ = false;
  std::vector<State> states_;
  std::vector<bool> made_;  // of taken numbers: the kernel's part is there
  base::SteadyTime rests_until_{};
  async::Signal changed_;
  async::TaskGroup tasks_;
};

}  // namespace worker
