#pragma once

#include "domain/sandbox_state.hpp"
#include "store/database.hpp"

#include <map>

/// The rows of sandboxes: live ones in a small table, ended ones in the history (30 days).
///
/// Each function is one statement, hence one transaction. A change of state writes the row, the
/// event and what hangs on it (operation, quota, history) together or not at all.
namespace store {

/// A live sandbox, or one of the history (then `ended` is set). Ids: `id` inside, `public_id`
/// outside.
struct SandboxRow {
  std::string id;          // UUIDv7
  std::string public_id;   // base::SandboxId
  std::string project_id;  // UUID
  std::string project_public_id;
  domain::SandboxState state = domain::SandboxState::creating;
  std::uint64_t version = 1;  // grows with every change of the row
  std::uint64_t epoch = 1;    // grows with every life on a worker
  std::string node;           // name of the worker's node
  std::string node_address;   // nodes.address: the directory of that worker's sockets
  std::string template_public_id;
  std::string template_name;
  std::string build_id;                       // UUID of the template build
  std::string build;                          // the worker's name of it: content address
  std::string default_user, default_workdir;  // the template build's
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::map<std::string, std::string> metadata;
  std::string env_sealed;                     // see controlplane/tokens.hpp; "" when there is none
  std::optional<base::WallTime> deadline_at;  // nothing: no deadline
  std::uint32_t timeout_s = 0;                // as last asked for; 0: none
  std::string on_timeout = "delete";          // delete, suspend
  bool auto_resume = true;
  bool secure = true;
  std::uint32_t token_generation = 1;
  std::string token_sha256;  // of the access token; "" when not secure
  json::value network;  // null, or E2B's network object: allowOut, denyOut, allowPublicTraffic,
                        // maskRequestHost…
  std::string api;      // "native" or "e2b": who made it
  base::WallTime created_at;
  std::optional<base::WallTime> started_at;
  json::value timeline;                        // [{"step":…,"at_ms":…}], once it was started
  std::optional<base::WallTime> suspended_at;  // since when, while it is suspended
  std::uint64_t suspended_bytes = 0;           // on disk, beyond what it shares with others
  std::string problem;               // why its suspended state could not be restored the last time
  std::uint32_t idle_timeout_s = 0;  // unused for that long it is suspended; 0: never
  std::optional<base::WallTime> expires_at;  // suspended: when it is deleted; nothing: never
  std::string parent;    // public id of the sandbox that it was forked from, or ""
  std::string snapshot;  // public id of the snapshot that it was started from, or ""

  /// Why it ends or ended: set from `deleting` on.
  std::string end_reason;  // domain::EndReason's name, "" while it lives
  std::string end_detail;
  std::string console_tail;
  std::optional<base::WallTime> ended_at;
};

inline constexpr std::chrono::seconds idle_timeout_default = std::chrono::hours(6);

struct NewSandbox {
  std::string public_id;
  std::string project_id;
  std::string node;  // nodes.name
  std::string build_id;
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::map<std::string, std::string> metadata;
  std::string env_sealed;
  std::uint32_t timeout_s = 0;
  std::string on_timeout = "delete";
  bool auto_resume = true;
  bool secure = true;
  std::string token_sha256;
  json::value network;
  std::string api = "native";
  /// Nothing: the project's, else the installation's (idle_timeout_default).
  std::optional<std::uint32_t> idle_timeout_s;
  std::string parent, snapshot;
  // The operation that comes with it.
  std::string operation_public_id;
  std::string lease_owner;
  std::chrono::seconds lease{15};
  std::string actor;            // public id of the key
  std::string idempotency_key;  // "": none
  std::string request_sha256;
};

/// A change of state. Applied only when the row is still in `from` (and at `version`, when that is
/// not 0, and at `epoch`, when that is not 0).
struct Change {
  std::string id;
  domain::SandboxState from = domain::SandboxState::creating;
  domain::SandboxEvent event = domain::SandboxEvent::started;
  std::uint64_t version = 0;
  std::uint64_t epoch = 0;
  std::string actor;          // public id of a key, or "controller", "worker"
  std::string operation;      // public id of the operation that this change finishes; "" none
  std::string error_code;     // base::Code's name: the operation has failed; "" succeeded
  std::string error_message;  // also what is known against a suspended state (restore_failed)
  json::value data;           // goes into the event
  // For `started`: the worker's steps, and the deadline now counts from here.
  json::value timeline;
  // For `end`: why. For ends by themselves and for `released` see End.
  std::optional<domain::EndReason> reason;
  std::string detail;
  // For `suspend_done`: what the worker said, and domain::deadline_grace of who asked for it.
  std::uint64_t suspended_bytes = 0;
  std::optional<std::chrono::seconds> deadline_grace;
};

/// A change that takes time: the row moves to its transitional state and gets an operation.
struct Begin {
  std::string id;
  std::string project_id;
  domain::SandboxState from = domain::SandboxState::running;
  /// pause, resume, suspend or restore. A restore is a new life (epoch + 1) and needs room in the
  /// quota.
  domain::SandboxEvent event = domain::SandboxEvent::suspend;
  std::string kind;  // of the operation: sandbox.suspend, …
  /// For a restore: the timeout that counts from its end on. Nothing: as it was.
  std::optional<std::uint32_t> timeout_s;
  std::string operation;  // its public id
  std::string lease_owner;
  std::chrono::seconds lease{15};
  std::string actor;
  std::string idempotency_key;
  std::string request_sha256;
};

struct Changed {
  bool applied = false;
  /// The row as it is now; nothing when there is none any more.
  std::optional<SandboxRow> now;
};

/// The last change of a sandbox: its row goes to the history.
struct End {
  std::string id;
  /// released, machine_ended, machine_failed or start_failed.
  domain::SandboxEvent event = domain::SandboxEvent::released;
  std::uint64_t epoch = 0;  // 0: whatever epoch
  std::string actor;
  /// Ignored when the row knows its reason already (`deleting`).
  domain::EndReason reason = domain::EndReason::unknown;
  std::string detail;
  std::string console_tail;
  /// base::Code's name for the operations that fail by it.
  std::string error_code = "unavailable";
};

/// For lists. Newest first (created_at, then public id), or oldest first.
struct SandboxFilter {
  std::string project_id;
  std::vector<domain::SandboxState> states;     // empty: every live state
  std::map<std::string, std::string> metadata;  // all of them must match
  std::string template_or_name;                 // "" any; public id or name
  std::optional<base::WallTime> started_after;
  bool oldest_first = false;
  bool history = false;  // the ended ones instead, newest first
  std::uint32_t limit = 100;
  // Where to go on: the last row's created_at and public id.
  std::optional<base::WallTime> after_time;
  std::string after_id;
};

/// A delete or a suspend that the store decided itself, for the caller to carry out.
struct DueSandbox {
  SandboxRow sandbox;
  std::string operation;  // public id; leased to the caller
  std::string actor;      // of a suspend: deadline, idle or host
};

/// Which sandboxes are to be suspended.
struct DueSuspends {
  bool deadlines = false;  // whose timeout is over and who asked for that
  bool idle = false;       // whom nobody has used for their idle time
  bool draining = false;   // all on nodes that are being drained
  std::string node;        // all on this node; "" none
  bool at_once = false;    // also those whose last suspend failed a moment ago
};

class Sandboxes {
 public:
  explicit Sandboxes(Database& database) : database_(database) {}

  /// The row (`creating`, epoch 1), its operation (leased to `lease_owner`), the event
  /// "sandbox.creating", and the project's usage, all or nothing.
  /// Errors: exhausted (names the quota that is used up); conflict with sqlstate 23505 when
  /// idempotency_key was used before (see Operations::find_by_key).
  async::Task<SandboxRow> create(NewSandbox sandbox, base::Deadline deadline);

  /// Live ones first, then the history. Nothing when it does not exist or belongs to another
  /// project.
  async::Task<std::optional<SandboxRow>> find(std::string project_id,
                                              std::string public_id,
                                              base::Deadline deadline);
  /// Live, in whatever project: for routes and controllers.
  async::Task<std::optional<SandboxRow>> find_live(std::string public_id, base::Deadline deadline);
  async::Task<std::optional<SandboxRow>> find_by_token(std::string token_sha256,
                                                       base::Deadline deadline);
  async::Task<std::vector<SandboxRow>> list(SandboxFilter filter, base::Deadline deadline);
  async::Task<std::uint64_t> count_running(std::string project_id, base::Deadline deadline);
  /// Every live sandbox of a node, for reconciling.
  async::Task<std::vector<SandboxRow>> on_node(std::string node, base::Deadline deadline);
  /// Which of these public ids are of sandboxes that ended, as this database says. One that is
  /// neither here nor live was never made with this database, or so long ago that it is forgotten.
  async::Task<std::vector<std::string>> ended(std::vector<std::string> public_ids,
                                              base::Deadline deadline);
  /// Which of these public ids have no live row; asked before anything is killed.
  async::Task<std::vector<std::string>> without_row(std::vector<std::string> public_ids,
                                                    base::Deadline deadline);

  /// Compare-and-set by the table in domain/sandbox_state.hpp, with the event "sandbox.<new
  /// state>". Not for changes into a terminal state. Loses quietly: see Changed.
  async::Task<Changed> apply(Change change, base::Deadline deadline);

  /// The first half of a change that takes time. Loses quietly: see Changed. `exhausted` when a
  /// restore would overrun the project's quota.
  async::Task<Changed> begin(Begin begin, base::Deadline deadline);

  /// Moves a sandbox that is still `creating` at that epoch to another node, epoch + 1.
  async::Task<Changed> reassign(std::string id,
                                std::uint64_t epoch,
                                std::string node,
                                base::Deadline deadline);

  /// Ends it for good: row → history, usage given back, its unfinished operations finished (deletes
  /// succeed, others fail with the reason), event "sandbox.deleted" or "sandbox.failed". False when
  /// the event may not happen in its state or epoch any more, or it is in the history already.
  async::Task<bool> end(End end, base::Deadline deadline);

  /// Deadline := now + timeout_s (nothing: none; 0: at once), for a sandbox that is running or
  /// paused; in any other state nothing is applied and `now` tells which. With `extend_only` an
  /// earlier deadline than the present one changes nothing at all, and is not applied either.
  async::Task<Changed> set_timeout(std::string id,
                                   std::optional<std::uint32_t> timeout_s,
                                   bool extend_only,
                                   std::string actor,
                                   base::Deadline deadline);

  /// The next token generation. Only applied when it is still at `generation`.
  async::Task<Changed> rotate_token(std::string id,
                                    std::uint32_t generation,
                                    std::string token_sha256,
                                    std::string actor,
                                    base::Deadline deadline);

  async::Task<void> replace_metadata(std::string id,
                                     std::map<std::string, std::string> metadata,
                                     base::Deadline deadline);

  /// Sandboxes whose deadline has passed and that are to be deleted, and suspended ones that their
  /// project does not keep any longer: each is moved to `deleting` with its reason and given an
  /// operation leased to `lease_owner`, in this one statement. So a deadline fires exactly once,
  /// whoever asks and however often. At most `limit`.
  async::Task<std::vector<DueSandbox>> claim_due(std::string lease_owner,
                                                 std::chrono::seconds lease,
                                                 std::uint32_t limit,
                                                 base::Deadline deadline);
  /// The same for suspends: moved to `suspending`, each with its operation.
  async::Task<std::vector<DueSandbox>> claim_suspends(DueSuspends which,
                                                      std::string lease_owner,
                                                      std::chrono::seconds lease,
                                                      std::uint32_t limit,
                                                      base::Deadline deadline);
  /// What its worker knows against its suspended state; it stays suspended.
  async::Task<void> set_problem(std::string id, std::string problem, base::Deadline deadline);
  /// An event for each suspended one that is deleted within `before`, once. How many.
  async::Task<std::uint64_t> tell_expiries(std::chrono::seconds before, base::Deadline deadline);
  /// Somebody uses these now (public ids). One statement for a whole process.
  async::Task<void> touch(std::vector<std::string> public_ids, base::Deadline deadline);
  /// When the next deadline is due, for sleeping until then; nothing when there is none.
  async::Task<std::optional<base::WallTime>> next_due(base::Deadline deadline);

  /// Drops history older than `keep`; returns how many rows. At most 1,000 at a time.
  async::Task<std::uint64_t> trim_history(std::chrono::hours keep, base::Deadline deadline);

 private:
  async::Task<std::vector<std::string>> ids_of(Statement const* statement,
                                               std::vector<std::string> public_ids,
                                               base::Deadline deadline);
  async::Task<std::optional<SandboxRow>> find_row(std::string id, base::Deadline deadline);
  async::Task<std::optional<SandboxRow>> find_one(Statement const* statement,
                                                  Params params,
                                                  base::Deadline deadline);
  async::Task<Changed> changed_or_now(base::Result<Rows> rows,
                                      std::string id,
                                      base::Deadline deadline);
  Database& database_;
};

}  // namespace store
