#pragma once

#include "controller/finisher.hpp"

/// Ends or suspends sandboxes whose timeout is over, suspends idle ones and those on nodes that are
/// being drained, and takes over operations whose lease is over.
///
/// A deadline fires once, whoever asks: the claim moves the row to `deleting` and makes the
/// delete's operation in one statement. What a controller claimed and did not finish is claimed
/// again as a stale operation.
namespace controller {

class Deadlines {
 public:
  Deadlines(store::asio::any_io_executor executor,
            store::Store& store,
            Finisher& finisher,
            std::string owner);

  /// Both loops; end when cancelled.
  store::asio::awaitable<void> run_due();
  store::asio::awaitable<void> run_stale();
  /// Waits for the work under way after cancelling it. Before destruction.
  store::asio::awaitable<void> close();

 private:
  /// One round: how many were claimed; nothing when the database could not be asked.
  store::asio::awaitable<std::optional<std::size_t>> claim_due();
  store::asio::awaitable<bool> claim_suspends();
  store::asio::awaitable<void> suspend(store::DueSandbox due);
  store::asio::awaitable<std::chrono::milliseconds> pause_until_next();

  store::Store& store_;
  Finisher& finisher_;
  std::string owner_;
  std::size_t suspends_ = 0;         // under way
  base::SteadyTime idle_looked_at_;  // nobody needs to be put to sleep within milliseconds
  async::TaskGroup work_;
};

}  // namespace controller
