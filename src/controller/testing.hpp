#pragma once

#include "http/server.hpp"
#include "wire/audit.hpp"
#include "wire/worker.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// For tests: a worker that keeps its promises of src/wire/worker.hpp without machines, on a Unix
/// socket.
namespace controller::testing {

class FakeWorker final : public http::Handler {
 public:
  /// Serves `<directory>/worker.sock`; the directory must exist.
  FakeWorker(http::asio::any_io_executor executor, std::string directory);
  ~FakeWorker() override;

  void start();
  /// As when the process is killed: the socket is dead, the machines live on.
  http::asio::awaitable<void> stop();

  void add(std::string sandbox, std::uint64_t epoch = 1, std::string state = "running");
  /// The machine ends by itself and the stream tells.
  void end(std::string sandbox, std::string cause);
  std::size_t deletes_of(std::string const& sandbox) const;

  std::map<std::string, wire::WorkerSandbox> machines;
  std::vector<wire::StartSandbox> starts;    // every POST, in order
  std::optional<base::Error> start_refusal;  // what starts are answered with
  std::vector<std::pair<std::string, std::uint64_t>>
      deletes;  // every DELETE, in order, with its epoch
  wire::NodeReport report;
  std::string metrics;         // what agents say
  std::string samples = "[]";  // what it counted itself, as JSON
  std::chrono::milliseconds delete_delay{0};
  std::chrono::milliseconds start_delay{0};
  std::chrono::milliseconds move_delay{0};   // of pause, resume, suspend, restore, snapshot
  std::optional<base::Error> move_refusal;   // what these are answered with
  std::vector<std::string> moves;            // "suspend ID 3", in order
  std::vector<wire::StartSandbox> restores;  // every restore, in order
  std::map<std::string, wire::SnapshotReport> snapshots;
  bool draining = false;
  std::map<std::string, std::string> tokens;                      // set by PUT …/token
  std::vector<std::pair<std::string, wire::SetPolicy>> policies;  // every PUT …/policy, in order
  std::vector<wire::Reflected> taken;         // told so by POST /reflected/taken
  std::optional<base::Error> policy_refusal;  // what they are answered with
  /// Those behind a number; this worker has none.
  std::function<wire::AuditCheckpoints(std::uint64_t)> checkpoints;
  std::string decisions;  // NDJSON, of every sandbox

  http::asio::awaitable<void> handle(http::Request& request,
                                     http::ResponseWriter& response) override;

 private:
  http::asio::awaitable<void> answer_start(http::Request& request, http::ResponseWriter& response);
  http::asio::awaitable<void> answer_delete(std::string sandbox,
                                            std::uint64_t epoch,
                                            http::ResponseWriter& response);
  http::asio::awaitable<void> answer_move(std::string path,
                                          http::Request& request,
                                          http::ResponseWriter& response);
  http::Response moved(std::string const& sandbox,
                       std::string const& verb,
                       std::string const& body);
  http::Response restored(std::string const& sandbox, std::string const& body);
  http::asio::awaitable<void> answer_sandbox(std::string id,
                                             http::Request& request,
                                             http::ResponseWriter& response);
  http::asio::awaitable<void> answer_policy(std::string sandbox,
                                            http::Request& request,
                                            http::ResponseWriter& response);
  http::asio::awaitable<void> stream_ends(http::ResponseWriter& response);

  http::asio::any_io_executor executor_;
  std::string directory_;
  std::vector<wire::EndedSandbox> ended_;
  async::Signal changed_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace controller::testing
