#pragma once

#include "async/task.hpp"
#include "controlplane/event_hub.hpp"
#include "controlplane/network_service.hpp"
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
  std::optional<wire::Policy> policy;                 // of the sandbox's own level
  std::vector<store::SandboxCredential> credentials;  // that its policy names, for it alone
  std::string api = "native";
  std::string snapshot;  // id or name: starts from it instead of the template, with its size
  std::optional<std::uint32_t> idle_timeout_s;     // 0: never
  std::string parent;                              // of a fork
  std::optional<store::SnapshotRow> snapshot_row;  // of a fork: its hidden snapshot
};

/// What is to be taken of a sandbox.
struct SnapshotSpec {
  std::string name;
  std::optional<std::uint32_t> expires_in_s;
  bool hidden = false;  // for a fork
};

struct SnapshotStarted {
  store::SnapshotRow snapshot;
  store::OperationRow operation;
};

/// What became of a host's sandboxes when all were to be suspended.
struct Suspended {
  std::size_t suspended = 0;
  std::vector<std::pair<std::string, std::string>> failed;  // sandbox, why
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

/// One copy of a fork, or why there is none.
using Forked = base::Result<Started>;

class SandboxService {
 public:
  struct Options {
    std::string instance;                       // this process, as lease owner
    std::chrono::seconds lease{15};             // of operations; renewed every third of it
    std::chrono::seconds start_timeout{180};    // the worker's whole start
    std::chrono::seconds remove_timeout{30};    // the worker's whole release
    std::chrono::seconds suspend_timeout{180};  // the worker's whole capture
    std::chrono::seconds patience{8};           // for a worker that does not answer at all
    // For any worker at all. The supervisor's longest pause before a restart is 5 s.
    std::chrono::seconds worker_back{15};
    std::uint32_t timeout_s_max = 30 * 86'400;
  };

  SandboxService(asio::any_io_executor executor,
                 store::Store& store,
                 Nodes& nodes,
                 WorkerClient& workers,
                 EventHub& hub,
                 Tokens const& tokens,
                 NetworkService& network,
                 Options options);
  ~SandboxService();

  /// Checks, places, writes the row and starts the worker's part in the background. Returns as soon
  /// as the row is committed; use wait() for the end. Errors: invalid_argument, not_found
  /// (template), exhausted (quota; or no host has room), conflict (Idempotency-Key used for
  /// something else).
  async::Task<Started> create(Asker asker, CreateSpec spec, base::Deadline deadline);
  /// From every state. Already ended: `not_found`. Being deleted: the operation that is under way.
  async::Task<Started> remove(Asker asker, std::string sandbox, base::Deadline deadline);
  /// pause: running → paused. suspend: running or paused → suspended. resume: paused or suspended →
  /// running, whose timeout is then `timeout_s` when given. Each as create: the row has moved when
  /// it returns, the worker's part goes on. What is under way already is joined; conflict from any
  /// other state.
  async::Task<Started> pause(Asker asker, std::string sandbox, base::Deadline deadline);
  async::Task<Started> suspend(Asker asker, std::string sandbox, base::Deadline deadline);
  async::Task<Started> resume(Asker asker,
                              std::string sandbox,
                              std::optional<std::uint32_t> timeout_s,
                              base::Deadline deadline);
  /// Running when this returns, whatever it does at the moment: waits for a change under way and
  /// resumes it. Only for callers that checked that this visitor may wake it.
  async::Task<store::SandboxRow> wake(Asker asker,
                                      std::string sandbox,
                                      std::optional<std::uint32_t> timeout_s,
                                      base::Deadline until);
  /// Suspends everything that runs on a node, at most `at_a_time` of them at once.
  async::Task<Suspended> suspend_all(std::string node, std::size_t at_a_time, base::Deadline until);

  /// The sandbox stands still for a moment and goes on.
  async::Task<SnapshotStarted> snapshot(Asker asker,
                                        std::string sandbox,
                                        SnapshotSpec spec,
                                        base::Deadline deadline);
  async::Task<store::SnapshotRow> get_snapshot(std::string project_id,
                                               std::string id_or_name,
                                               base::Deadline deadline);
  async::Task<void> remove_snapshot(Asker asker, std::string id_or_name, base::Deadline deadline);
  /// `count` sandboxes that go on from this moment, each with a name, tokens and a timeout of its
  /// own. Returns when all of them run or have failed.
  async::Task<std::vector<Forked>> fork(Asker asker,
                                        std::string sandbox,
                                        std::uint32_t count,
                                        std::optional<std::uint32_t> timeout_s,
                                        base::Deadline until);

  /// Returns when the operation is done or at `until`, with the row as it is then.
  async::Task<store::OperationRow> wait(std::string project_id,
                                        std::string operation,
                                        base::Deadline until);
  /// The same for what was started with a sandbox, and the sandbox as it is then.
  async::Task<Started> wait_for(Started started, base::Deadline until);

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

  NetworkService& network() noexcept { return network_; }

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
  struct Moving;    // one pause, resume, suspend or restore under way
  struct Taking;    // one snapshot under way

  struct Wanted {
    store::NewSandbox row;
    wire::StartSandbox start;
    std::optional<wire::Policy> policy;  // of its own level
    std::vector<store::SandboxCredential> credentials;
  };

  base::Result<Wanted> wanted_of(Asker const& asker,
                                 CreateSpec spec,
                                 store::BuildRow const& build) const;

  async::Task<void> add_network(Wanted* wanted,
                                store::KeyOwner owner,
                                std::string template_public_id,
                                base::Deadline deadline);

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
  async::Task<std::optional<Started>> under_way(store::SandboxRow row,
                                                domain::SandboxEvent event,
                                                base::Deadline deadline);
  async::Task<Started> begin_move(Asker asker,
                                  store::SandboxRow row,
                                  domain::SandboxEvent event,
                                  std::optional<std::uint32_t> timeout_s,
                                  base::Deadline deadline);
  async::Task<Started> move(Asker asker,
                            std::string sandbox,
                            std::string kind,
                            std::optional<std::uint32_t> timeout_s,
                            base::Deadline deadline);
  void spawn_move(store::SandboxRow row, std::string operation, std::string actor);
  asio::awaitable<void> run_move(std::shared_ptr<Moving> moving);
  async::Task<wire::WorkerSandbox> ask_to_move(std::shared_ptr<Moving> moving);
  async::Task<wire::WorkerSandbox> ask_to_restore(std::shared_ptr<Moving> moving,
                                                  base::Deadline deadline);
  asio::awaitable<bool> ends_meanwhile(std::shared_ptr<Moving> moving);
  asio::awaitable<void> settle_move(std::shared_ptr<Moving> moving,
                                    base::Result<wire::WorkerSandbox> machine);
  asio::awaitable<void> run_snapshot(std::shared_ptr<Taking> taking);
  async::Task<CreateSpec> spec_of_fork(store::SandboxRow row, base::Deadline deadline);
  async::Task<Started> settled_copy(Started copy, base::Deadline until);
  async::Task<std::optional<store::SnapshotRow>> snapshot_of(std::string project_id,
                                                             CreateSpec const* spec,
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
  NetworkService& network_;
  Options options_;

  /// An operation that runs here; waiters are woken when it ends.
  struct Running {
    explicit Running(asio::any_io_executor executor) : signal(std::move(executor)) {}

    async::Signal signal;
    std::optional<store::SandboxRow> became;  // as it was committed with a success
  };

  std::map<std::string, std::shared_ptr<Running>> running_;
  async::TaskGroup work_;  // last: its children use the members above
};

/// What a sandbox from that snapshot is made of; invalid_argument when another size is asked for.
base::Result<store::BuildRow> build_from_snapshot(CreateSpec const& spec,
                                                  store::SnapshotRow const& snapshot);

/// {"allowPublicTraffic":false}? Absent means public.
bool has_public_traffic(store::SandboxRow const& sandbox);

}  // namespace controlplane
