#pragma once

#include "controller/worker_link.hpp"
#include "store/audit_checkpoints.hpp"
#include "store/store.hpp"

namespace controller {

/// Takes the checkpoints of one node's audit log to where its worker cannot change them, and says
/// so when they do not go on from each other.
class AuditCollector {
 public:
  AuditCollector(std::string name,
                 store::Store& store,
                 WorkerLink& link,
                 std::chrono::milliseconds every)
      : name_(std::move(name)), checkpoints_(store.database), link_(link), every_(every) {}

  /// Until cancelled.
  store::asio::awaitable<void> run();

 private:
  async::Task<void> collect();

  std::string name_;
  store::AuditCheckpoints checkpoints_;
  WorkerLink& link_;
  std::chrono::milliseconds every_;
};

}  // namespace controller
