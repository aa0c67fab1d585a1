#pragma once

#include "async/task.hpp"
#include "controlplane/event_hub.hpp"
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
  std::optional<wire::Policy> policy;  // of the sandbox's own level
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
    std::string instance;                     // this process, as lease owner
    std::chrono::seconds lease{15};           // of operations; renewed every third of it
    std::chrono::seconds start_timeout{180};  // the worker's whole start
    std::chrono::seconds remove_timeout{30};  // the worker's whole release
    std::chrono::seconds patience{8};         // for a worker that does not answer at all
    std::uint32_t timeout_s_max = 30 * 86'400;
  };

  SandboxService(asio::any_io_executor executor,
                 store::Store& store,
                 Nodes& nodes,
                 WorkerClient& workers,
                 EventHub& hub,
                 Tokens const& tokens,
                 Options options);
  ~SandboxService();

  /// Checks, places, writes the row and starts the worker's part in the background. Returns as soon
  /// as the row is committed; use wait() for the end. Errors: invalid_argument, not_found
  /// (template), exhausted (quota; or no host has room), conflict (Idempotency-Key used for
  /// something else).
  async::Task<Started> create(Asker asker, CreateSpec spec, base::Deadline deadline);
  /// From every state. Already ended: `not_found`. Being deleted: the operation that is under way.
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
  /// From now: nothing is no deadline, 0 is at once; `extend_only` never shortens. conflict when it
  /// is neither running nor paused.
  async::Task<store::SandboxRow> set_timeout(Asker asker,
                                             std::string sandbox,
                                             std::optional<std::uint32_t> timeout_s,
                                             bool extend_only,
                                             base::Deadline deadline);
  /// New access and traffic tokens; the proxy refuses the old ones from the commit on. When the
  /// worker cannot be told in time (unavailable), neither token works until it is rotated again.
  async::Task<store::SandboxRow> rotate_token(Asker asker,
                                              std::string sandbox,
                                              base::Deadline deadline);

  /// "" when the sandbox is not secure, or has ended.
  std::string access_token(store::SandboxRow const& sandbox) const;
  /// "" when its traffic is public.
  std::string traffic_token(store::SandboxRow const& sandbox) const;

  /// Renews the leases of what runs here, until cancelled: one of the process's background loops.
  asio::awaitable<void> renew_leases();
  /// Cancels what runs here and waits; its operations are taken over by a controller when their
  /// leases are over. Before destruction.
  asio::awaitable<void> close();

 private:
  struct Creation;  // one create under way
  struct Removal;   // one delete under way

  struct Wanted {
    store::NewSandbox row;
    wire::StartSandbox start;
  };

  base::Result<Wanted> wanted_of(Asker const& asker,
                                 CreateSpec spec,
                                 store::BuildRow const& build) const;

  async::Task<std::optional<Started>> earlier(Asker asker,
                                              std::string kind,
                                              base::Deadline deadline);
  async::Task<store::BuildRow> resolve(std::string project_id,
                                       std::string name,
                                       base::Deadline deadline);
  asio::awaitable<void> run_create(std::shared_ptr<Creation> creation);
  async::Task<wire::WorkerSandbox> start_somewhere(std::shared_ptr<Creation> creation);
  async::Task<wire::WorkerSandbox> start_patiently(std::shared_ptr<Creation> creation);
  async::Task<bool> move_on(std::shared_ptr<Creation> creation);
  asio::awaitable<void> settle_started(std::shared_ptr<Creation> creation,
                                       wire::WorkerSandbox machine);
  asio::awaitable<void> settle_failed(std::shared_ptr<Creation> creation, base::Error error);
  asio::awaitable<void> run_remove(std::shared_ptr<Removal> removal);
  async::Task<wire::EndedSandbox> release(store::SandboxRow row);
  async::Task<store::SandboxRow> begin_end(store::SandboxRow row,
                                           std::string actor,
                                           base::Deadline deadline);
  asio::awaitable<void> hand_over(std::string operation);
  void begin(std::string const& operation);
  void finished(std::string const& operation) noexcept;

  asio::any_io_executor executor_;
  store::Store& store_;
  Nodes& nodes_;
  WorkerClient& workers_;
  EventHub& hub_;
  Tokens const& tokens_;
  Options options_;
  /// Operations that run here; waiters are woken when they end.
  std::map<std::string, std::shared_ptr<async::Signal>> running_;
  async::TaskGroup work_;  // last: its children use the members above
};

/// {"allowPublicTraffic":false}? Absent means public.
bool has_public_traffic(store::SandboxRow const& sandbox);

}  // namespace controlplane
