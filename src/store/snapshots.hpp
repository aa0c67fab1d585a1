#pragma once

#include "store/database.hpp"

/// Snapshots of sandboxes: what new sandboxes can start from. Their files are on one node.
namespace store {

struct SnapshotRow {
  std::string id;         // UUID
  std::string public_id;  // 's…'
  std::string project_id;
  std::string name;   // "" or as its owner calls it; not unique, the newest counts
  std::string state;  // creating, ready, deleting
  bool hidden = false;
  std::string node, node_address;
  std::string build_id, build;  // of the template that it goes back to
  std::string template_public_id, template_name;
  std::string default_user, default_workdir;
  std::uint32_t vcpus = 1, memory_mib = 512, disk_mib = 4096;
  std::uint64_t bytes = 0;
  std::string source;     // public id of the sandbox
  std::string operation;  // public id
  std::string actor;
  base::WallTime created_at;
  std::optional<base::WallTime> expires_at;
};

struct NewSnapshot {
  std::string public_id;
  std::string sandbox_id;  // UUID of the sandbox that it is taken of
  std::string name;
  bool hidden = false;
  std::optional<std::uint32_t> expires_in_s;
  // Its operation, of kind sandbox.snapshot.
  std::string operation;
  std::string lease_owner;
  std::chrono::seconds lease{15};
  std::string actor;
  std::string idempotency_key;
  std::string request_sha256;
};

struct SnapshotFilter {
  std::string project_id;
  std::string source;  // "" any
  std::string name;    // "" any
  std::uint32_t limit = 100;
  // Where to go on: the last row's created_at and public id. Newest first.
  std::optional<base::WallTime> after_time;
  std::string after_id;
};

class Snapshots {
 public:
  explicit Snapshots(Database& database) : database_(database) {}

  /// The row (`creating`) with its operation and event, while the sandbox is running or paused and
  /// the project's quota allows. Errors: conflict (not in such a state), exhausted (quota),
  /// conflict with sqlstate 23505 when idempotency_key was used before.
  async::Task<SnapshotRow> create(NewSnapshot snapshot, base::Deadline deadline);
  /// creating → ready, its operation succeeds. False when it is not `creating` any more.
  async::Task<bool> settle(std::string id, std::uint64_t bytes, base::Deadline deadline);
  /// Was not taken: the row goes, its operation fails. False when it is not `creating` any more.
  async::Task<bool> fail(std::string id,
                         std::string error_code,
                         std::string error_message,
                         base::Deadline deadline);
  /// By public id or by name (the newest). Ready ones that are not hidden.
  async::Task<std::optional<SnapshotRow>> find(std::string project_id,
                                               std::string id_or_name,
                                               base::Deadline deadline);
  /// Of any state, hidden or not.
  async::Task<std::optional<SnapshotRow>> find_by_operation(std::string operation,
                                                            base::Deadline deadline);
  async::Task<std::vector<SnapshotRow>> list(SnapshotFilter filter, base::Deadline deadline);
  /// → deleting. From here on nothing starts from it; false when it is gone or going already.
  async::Task<bool> begin_delete(std::string id, base::Deadline deadline);
  /// Are sandboxes being created from it? Their worker still reads its files, so that these stay
  /// until it is done; claim_due() waits for the same.
  async::Task<bool> has_starts(std::string public_id, base::Deadline deadline);
  /// The node has none of its files any more: the row goes.
  async::Task<void> remove(std::string id, base::Deadline deadline);
  /// Expired ones, hidden ones that their fork left behind, and those that stayed in `deleting`:
  /// moved to `deleting`, for the caller to remove. Not while has_starts().
  async::Task<std::vector<SnapshotRow>> claim_due(std::uint32_t limit, base::Deadline deadline);
  /// Which of these snapshots were begun with this database, of those sandboxes: what has no row
  /// any more and is here was deleted, or not taken. As far back as events are kept.
  async::Task<std::vector<std::string>> begun(std::vector<std::string> public_ids,
                                              std::vector<std::string> sandboxes,
                                              base::Deadline deadline);
  /// Which of these public ids have no row; asked before files are removed.
  async::Task<std::vector<std::string>> without_row(std::vector<std::string> public_ids,
                                                    base::Deadline deadline);

 private:
  async::Task<std::optional<SnapshotRow>> find_one(Statement const* statement,
                                                   Params params,
                                                   base::Deadline deadline);
  Database& database_;
};

}  // namespace store
