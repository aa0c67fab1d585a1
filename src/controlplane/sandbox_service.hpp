#pragma once

#include "async/task.hpp"
#include "controlplane/placement.hpp"
#include "controlplane/tokens.hpp"
#include "store/store.hpp"

/// What can be done with sandboxes, whoever asks: the native routes and the E2B wrapper both call
/// this. Every function checks the project itself, so a stranger's id is not_found everywhere.
namespace controlplane {

struct CreateSpec {
  std::string template_name = "base";                        // name, name:tag or public id
  std::optional<std::uint32_t> vcpus, memory_mib, disk_mib;  // default: the build's
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> env;
  std::uint32_t timeout_s = 0;  // 0: none
  std::string on_timeout = "delete";
  bool auto_resume = true;
  bool secure = true;
  json::value network;
  std::string api = "native";
};

/// Who asks, for one change.
struct Asker {
  store::KeyOwner owner;
  std::string idempotency_key;
  std::string request_sha256;
};

struct Started {
  store::SandboxRow sandbox;
  store::OperationRow operation;
  bool replayed = false;  // an earlier request with this Idempotency-Key made it
};

class SandboxService {
 public:
  struct Options {
    std::string instance;  // this process, as lease owner: "api-<host>-<pid>-<random>"
    std::chrono::seconds start_timeout{180};  // the worker's whole start
    std::uint32_t timeout_s_max = 30 * 86'400;
    std::string database_role = "space_api";
  };

  SandboxService(asio::any_io_executor executor,
                 store::Store& store,
                 Nodes& nodes,
                 Tokens const& tokens,
                 Options options);
  ~SandboxService();

  /// Checks, places, writes the row and starts the worker's part in the background. Returns as soon
  /// as the row is committed; use wait() for the end. Errors: invalid_argument, not_found
  /// (template), exhausted (quota; or no host has room), conflict (Idempotency-Key used for
  /// something else).
  async::Task<Started> create(Asker asker, CreateSpec spec, base::Deadline deadline);
  /// From every state. Already ended: `not_found`. Being deleted: the running operation.
  async::Task<Started> remove(Asker asker, std::string sandbox, base::Deadline deadline);
  /// Returns when the operation is done or at `until`, with the row as it is then.
  async::Task<store::OperationRow> wait(std::string project_id,
                                        std::string operation,
                                        base::Deadline until);

  /// Live or (with `ended`) of the history; not_found.
  enum class Ended : std::uint8_t { hide, show };
  async::Task<store::SandboxRow> get(std::string project_id,
                                     std::string sandbox,
                                     Ended ended,
                                     base::Deadline deadline);
  /// From now; `extend_only` never shortens. 0 is no deadline.
  async::Task<store::SandboxRow> set_timeout(Asker asker,
                                             std::string sandbox,
                                             std::uint32_t timeout_s,
                                             bool extend_only,
                                             base::Deadline deadline);
  /// New access and traffic tokens; the old ones are dead when this returns.
  async::Task<store::SandboxRow> rotate_token(Asker asker,
                                              std::string sandbox,
                                              base::Deadline deadline);

  /// "" when the sandbox is not secure.
  std::string access_token(store::SandboxRow const& sandbox) const;
  /// "" when its traffic is public.
  std::string traffic_token(store::SandboxRow const& sandbox) const;

  /// Renews the leases of what runs here; one of the process's background loops.
  asio::awaitable<void> renew_leases();
  /// Lets what runs end or be taken over; awaited before destruction.
  asio::awaitable<void> close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace controlplane
