#pragma once

#include "controller/worker_link.hpp"
#include "store/store.hpp"

/// Finishes what somebody began and did not end: deletes, and creates whose program died.
///
/// Every step is idempotent and ends in a compare-and-set, so two controllers, or a controller and
/// an API process that was only slow, may do the same work: one of them wins and the other changes
/// nothing.
namespace controller {

class Finisher {
 public:
  Finisher(store::Store& store, WorkerLinks& links) : store_(store), links_(links) {}

  /// For a row in `deleting`: the worker releases everything, then the row ends. Tries again, with
  /// pauses, until `until`; what is not done by then is claimed again when its operation's lease is
  /// over.
  store::asio::awaitable<void> finish_delete(store::SandboxRow row, base::Deadline until);

  /// For a row in `suspending`: as finish_delete, with the worker's capture.
  store::asio::awaitable<void> finish_suspend(store::SandboxRow row,
                                              std::string operation,
                                              std::string actor,
                                              base::Deadline until);

  /// For an operation whose lease was over and is now ours until `until`.
  store::asio::awaitable<void> take_over(store::OperationRow operation, base::Deadline until);

 private:
  enum class Step : std::uint8_t { done, again };
  store::asio::awaitable<Step> try_take_over(store::OperationRow operation, base::Deadline until);
  // moves.cpp
  store::asio::awaitable<Step> settle_move(store::SandboxRow row, store::OperationRow operation);
  store::asio::awaitable<Step> carry_out_move(store::SandboxRow row,
                                              store::OperationRow operation,
                                              wire::WorkerSandbox machine);
  store::asio::awaitable<Step> apply_move(store::SandboxRow row,
                                          store::OperationRow operation,
                                          domain::SandboxEvent event,
                                          std::uint64_t suspended_bytes,
                                          std::optional<base::Error> why);
  store::asio::awaitable<Step> settle_snapshot(store::SandboxRow row,
                                               store::OperationRow operation);
  store::asio::awaitable<Step> settle_create(store::SandboxRow row, store::OperationRow operation);
  store::asio::awaitable<Step> undo_create(store::SandboxRow row);
  store::asio::awaitable<Step> finish_create(store::SandboxRow row,
                                             store::OperationRow operation,
                                             wire::WorkerSandbox machine);
  store::asio::awaitable<Step> decide_end(store::SandboxRow row,
                                          store::OperationRow operation,
                                          base::Deadline until);
  store::asio::awaitable<Step> close_operation(store::OperationRow operation,
                                               std::string code,
                                               std::string message);

  store::Store& store_;
  WorkerLinks& links_;
};

}  // namespace controller
