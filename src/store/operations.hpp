#pragma once

#include "store/database.hpp"

/// Asynchronous changes that callers wait for, poll or stream. An unfinished operation belongs to
/// whoever holds its lease; when that one dies, a controller takes it over and finishes or undoes
/// it.
namespace store {

struct OperationRow {
  std::string id;         // UUIDv7
  std::string public_id;  // 'x…'
  std::string project_id;
  std::string kind;               // sandbox.create, sandbox.delete, …
  std::string sandbox;            // the sandbox's public id
  std::string state = "running";  // running, succeeded, failed
  std::string error_code;         // base::Code's name, when failed
  std::string error_message;
  std::string lease_owner;
  std::uint32_t attempts = 1;
  std::string idempotency_key;
  std::string request_sha256;
  std::string actor;
  base::WallTime created_at;
  std::optional<base::WallTime> finished_at;

  bool done() const noexcept { return state != "running"; }
};

struct NewOperation {
  std::string public_id;
  std::string project_id;
  std::string kind;
  std::string sandbox;
  std::string lease_owner;
  std::chrono::seconds lease{15};
  std::string actor;
  std::string idempotency_key;
  std::string request_sha256;
};

class Operations {
 public:
  explicit Operations(Database& database) : database_(database) {}

  /// conflict with sqlstate 23505 when idempotency_key was used before.
  async::Task<OperationRow> create(NewOperation operation, base::Deadline deadline);
  async::Task<std::optional<OperationRow>> find(std::string project_id,
                                                std::string public_id,
                                                base::Deadline deadline);
  async::Task<std::optional<OperationRow>> find_by_key(std::string project_id,
                                                       std::string idempotency_key,
                                                       base::Deadline deadline);
  /// The operation of that kind which is under way for a sandbox.
  async::Task<std::optional<OperationRow>> find_unfinished(std::string sandbox,
                                                           std::string kind,
                                                           base::Deadline deadline);
  /// Newest first; `before` is the public id of the last one seen, "" at the start.
  async::Task<std::vector<OperationRow>> list(std::string project_id,
                                              std::string sandbox,
                                              std::uint32_t limit,
                                              std::string before,
                                              base::Deadline deadline);
  /// False when it was finished already: the first word counts. `error_code` "" means success.
  async::Task<bool> finish(std::string public_id,
                           std::string error_code,
                           std::string error_message,
                           base::Deadline deadline);

  /// Renews the leases of these, as far as they are still this owner's. One statement every few
  /// seconds for a whole process.
  async::Task<std::uint64_t> renew(std::string lease_owner,
                                   std::vector<std::string> public_ids,
                                   std::chrono::seconds lease,
                                   base::Deadline deadline);
  /// Gives a lease up at once: a controller goes on with it.
  async::Task<void> hand_over(std::string lease_owner,
                              std::string public_id,
                              base::Deadline deadline);
  /// Takes over unfinished operations whose lease is over (skip locked), oldest first; attempts
  /// + 1.
  async::Task<std::vector<OperationRow>> claim_stale(std::string lease_owner,
                                                     std::chrono::seconds lease,
                                                     std::uint32_t limit,
                                                     base::Deadline deadline);
  async::Task<std::uint64_t> trim(std::chrono::hours keep, base::Deadline deadline);

 private:
  async::Task<std::optional<OperationRow>> find_one(Statement const* statement,
                                                    Params params,
                                                    base::Deadline deadline);
  Database& database_;
};

}  // namespace store
