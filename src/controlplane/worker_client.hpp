#pragma once

#include "base/metrics.hpp"
#include "http/client.hpp"
#include "wire/gateway.hpp"
#include "wire/worker.hpp"

#include <map>

/// What the API says to workers (src/wire/worker.hpp), over kept-alive connections.
namespace controlplane {

namespace asio = boost::asio;
namespace json = boost::json;

class WorkerClient {
 public:
  explicit WorkerClient(asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // `address` is nodes.address, the directory of the worker's sockets on this host.
  async::Task<wire::NodeReport> report(std::string address, base::Deadline deadline);
  /// Returns when the agent has answered. Safe to send again for the same id and epoch.
  async::Task<wire::WorkerSandbox> start(std::string address,
                                         wire::StartSandbox start,
                                         base::Deadline deadline);
  /// Returns when everything is released.
  async::Task<wire::EndedSandbox> remove(std::string address,
                                         std::string sandbox,
                                         std::uint64_t epoch,
                                         base::Deadline deadline);
  async::Task<void> set_token(std::string address,
                              std::string sandbox,
                              wire::SetToken token,
                              base::Deadline deadline);
  /// Returns when it is in force on live connections, too; unavailable: the network was switched
  /// off.
  async::Task<wire::GatewayApplied> set_policy(std::string address,
                                               std::string sandbox,
                                               wire::SetPolicy policy,
                                               base::Deadline deadline);
  /// What it told of is stored and in force: it need not tell of it any more.
  async::Task<void> reflection_taken(std::string address,
                                     wire::Reflected reflected,
                                     base::Deadline deadline);
  /// NDJSON of audit records, the remembered ones first; without `follow` it ends after those.
  async::Task<std::unique_ptr<http::Exchange>> decisions(std::string address,
                                                         std::string sandbox,
                                                         bool follow,
                                                         base::Deadline head_deadline);
  /// `verb` is pause, resume or suspend. The answer says how it is then.
  async::Task<wire::WorkerSandbox> move(std::string address,
                                        std::string sandbox,
                                        std::string verb,
                                        std::uint64_t epoch,
                                        base::Deadline deadline);
  /// A suspended one comes back, as the life `start.epoch`.
  async::Task<wire::WorkerSandbox> restore(std::string address,
                                           wire::StartSandbox start,
                                           base::Deadline deadline);
  async::Task<wire::SnapshotReport> take_snapshot(std::string address,
                                                  std::string sandbox,
                                                  wire::TakeSnapshot take,
                                                  base::Deadline deadline);
  async::Task<void> remove_snapshot(std::string address,
                                    std::string snapshot,
                                    base::Deadline deadline);
  /// A page of the worker's audit log: {"records":[…],"next_after":N,"more":bool}.
  async::Task<json::value> audit(std::string address,
                                 std::string sandbox,
                                 std::uint64_t after,
                                 std::uint32_t limit,
                                 base::Deadline deadline);
  async::Task<void> drain(std::string address, bool on, base::Deadline deadline);
  async::Task<json::value> metrics(std::string address,
                                   std::string sandbox,
                                   base::Deadline deadline);
  /// What the worker counted; neither checked nor bounded but in bytes.
  async::Task<std::vector<base::MetricSample>> samples(std::string address,
                                                       base::Deadline deadline);
  async::Task<std::string> console(std::string address,
                                   std::string sandbox,
                                   base::Deadline deadline);

 private:
  http::Client& at(std::string const& address);
  async::Task<http::Response> call(std::string address,
                                   std::string method,
                                   std::string target,
                                   std::string body,
                                   base::Deadline deadline);

  asio::any_io_executor executor_;
  std::map<std::string, std::unique_ptr<http::Client>>
      clients_;  // by address; few hosts, never dropped
};

}  // namespace controlplane
