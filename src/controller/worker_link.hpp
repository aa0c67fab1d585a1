#pragma once

#include "base/clock.hpp"
#include "http/client.hpp"
#include "wire/audit.hpp"
#include "wire/worker.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// The worker of one node as the controller sees it: typed calls of src/wire/worker.hpp over its
/// socket.
namespace controller {

class WorkerLink {
 public:
  /// `directory` holds the worker's sockets (store::NodeRow::address).
  WorkerLink(http::asio::any_io_executor executor, std::string directory);

  async::Task<wire::NodeReport> report(base::Deadline deadline);
  async::Task<std::vector<wire::WorkerSandbox>> list(base::Deadline deadline);
  /// Nothing when the worker does not know it.
  async::Task<std::optional<wire::WorkerSandbox>> find(std::string sandbox,
                                                       base::Deadline deadline);
  /// Ends and releases; also fine when it was never there. conflict: the worker has a newer epoch.
  async::Task<wire::EndedSandbox> remove(std::string sandbox,
                                         std::uint64_t epoch,
                                         base::Deadline deadline);
  /// `verb` is pause, resume or suspend; the answer says how it is then.
  async::Task<wire::WorkerSandbox> move(std::string sandbox,
                                        std::string verb,
                                        std::uint64_t epoch,
                                        base::Deadline deadline);
  async::Task<std::vector<wire::SnapshotReport>> snapshots(base::Deadline deadline);
  async::Task<void> remove_snapshot(std::string snapshot, base::Deadline deadline);
  async::Task<void> drain(bool on, base::Deadline deadline);
  /// Those of its audit log behind that number.
  async::Task<wire::AuditCheckpoints> audit_checkpoints(std::uint64_t after,
                                                        base::Deadline deadline);
  /// What the agent says of its guest.
  async::Task<wire::json::value> metrics(std::string sandbox, base::Deadline deadline);

  using OnEnded = std::function<http::asio::awaitable<void>(wire::EndedSandbox)>;
  /// Follows the worker's stream of ends until it breaks; `on_open` is called once it is open.
  /// Returns why it ended; the caller connects again.
  async::Task<void> follow_ended(std::function<void()> on_open, OnEnded on_ended);

 private:
  async::Task<http::Response> call(std::string method,
                                   std::string target,
                                   base::Deadline deadline,
                                   std::string body = {});
  http::Client client_;
};

/// Links by address, made on demand. Few hosts, so links are never dropped.
class WorkerLinks {
 public:
  explicit WorkerLinks(http::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  WorkerLink& at(std::string const& address);

 private:
  http::asio::any_io_executor executor_;
  std::map<std::string, std::unique_ptr<WorkerLink>> links_;
};

}  // namespace controller
