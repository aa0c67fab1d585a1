#pragma once

#include "store/database.hpp"
#include "wire/audit.hpp"

/// Checkpoints of the audit logs of workers, with each node's key.
namespace store {

struct AuditNode {
  bool known = false;      // the node itself
  std::string public_key;  // "": none was shown yet
  std::string problem;     // "": none; the first one stays until forget()
  std::optional<base::WallTime> problem_at;
  std::optional<wire::AuditCheckpoint> latest;
};

class AuditCheckpoints {
 public:
  explicit AuditCheckpoints(Database& database) : database_(database) {}

  async::Task<AuditNode> find(std::string node, base::Deadline deadline);
  /// The first key stays: nothing happens when there is one.
  async::Task<void> enroll(std::string node, std::string public_key, base::Deadline deadline);
  /// In their order. Whatever is behind the latest one that is there is left out, so that two
  /// controllers do not undo each other.
  async::Task<void> add(std::string node,
                        std::vector<wire::AuditCheckpoint> checkpoints,
                        base::Deadline deadline);
  /// Notes the first problem, with an event `audit.broken` of the installation's first project.
  /// False: there was one already.
  async::Task<bool> complain(std::string node, std::string problem, base::Deadline deadline);
  /// Those behind that number, in their order.
  async::Task<std::vector<wire::AuditCheckpoint>> list(std::string node,
                                                       std::uint64_t after,
                                                       std::uint32_t limit,
                                                       base::Deadline deadline);
  /// An administrator has looked: key, checkpoints and problem go, what the node shows next is
  /// taken. With an event `audit.accepted`. False: nothing was known.
  async::Task<bool> forget(std::string node, std::string actor, base::Deadline deadline);
  /// Those of lines that retention has taken, and of an hour all but the last once they are older
  /// than a week.
  async::Task<std::uint64_t> trim(base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
