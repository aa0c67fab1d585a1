#pragma once

#include "store/sandboxes.hpp"

/// The stored egress policies: one current text per level and subject, and every text before it. A
/// sandbox is under five of them; the sum of their versions is its generation, which therefore
/// grows with every change of any of them, whatever order changes are seen in.
namespace store {

/// A level's text as it is now. `policy` null: it was taken away.
struct PolicyRow {
  std::string level;    // platform, organisation, project, template, sandbox
  std::string subject;  // public id; "" for the platform
  std::uint64_t version = 0;
  json::value policy;
  std::string actor;  // public id of a key
  base::WallTime updated_at;
};

struct NewPolicy {
  std::string level;
  std::string subject;
  json::value policy;  // null takes it away
  std::string actor;
  std::optional<std::uint64_t> if_version;  // written only over this version; 0: over none
};

class Policies {
 public:
  explicit Policies(Database& database) : database_(database) {}

  /// What a sandbox is under, outermost first: those levels that ever had a text. `sandbox` may be
  /// one that is only about to exist.
  async::Task<std::vector<PolicyRow>> over(std::string project_id,
                                           std::string template_public_id,
                                           std::string sandbox_public_id,
                                           base::Deadline deadline);
  async::Task<std::optional<PolicyRow>> find(std::string level,
                                             std::string subject,
                                             base::Deadline deadline);
  /// The next version, with its place in the history. Nothing when `if_version` is not the current
  /// one.
  async::Task<std::optional<PolicyRow>> put(NewPolicy policy, base::Deadline deadline);
  /// Newest first.
  async::Task<std::vector<PolicyRow>> versions(std::string level,
                                               std::string subject,
                                               std::uint32_t limit,
                                               base::Deadline deadline);
  /// Sandboxes that run, or are about to, under a level: whom a change concerns.
  async::Task<std::vector<SandboxRow>> live_under(std::string level,
                                                  std::string subject,
                                                  base::Deadline deadline);
  /// Keeps what an E2B client said beside the policy that was made of it.
  async::Task<void> note_network(std::string sandbox_id,
                                 json::value network,
                                 base::Deadline deadline);

  struct Scope {
    std::string level, subject;
  };

  /// Whose policies or credentials changed lately: for whoever starts and does not know whether the
  /// one before it was done with them.
  async::Task<std::vector<Scope>> changed_within(std::chrono::seconds age, base::Deadline deadline);
  /// Drops the texts of sandboxes that are no longer on record. At most 1,000 at a time.
  async::Task<std::uint64_t> trim(base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
