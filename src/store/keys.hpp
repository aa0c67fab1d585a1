#pragma once

#include "domain/quota.hpp"
#include "store/database.hpp"

#include <boost/describe/enum.hpp>

/// Organisations, projects and keys: who owns things and who may do what.
namespace store {

BOOST_DEFINE_ENUM_CLASS(Role, reader, member, admin)

struct OrganisationRow {
  std::string id, public_id, name;
  base::WallTime created_at;
};

struct ProjectRow {
  std::string id, public_id, name;
  std::string organisation_public_id;
  domain::Limits limits;
  domain::Amounts used;
  std::optional<std::uint32_t> idle_timeout_s;  // of its new sandboxes; nothing: the installation's
  std::optional<std::uint32_t> suspended_keep_s;  // nothing: suspended ones are kept for good
  base::WallTime created_at;
};

struct KeyRow {
  std::string id, public_id, name;
  std::string project_id, project_public_id;
  Role role = Role::member;
  bool installation = false;  // may also manage organisations, projects and nodes
  std::string prefix;         // first characters of the key, for display
  std::string created_by;     // public id of a key, "" for the first
  base::WallTime created_at;
  std::optional<base::WallTime> expires_at, revoked_at, last_used_at;
};

/// Whom a key speaks for.
struct KeyOwner {
  std::string key_public_id;
  std::string project_id, project_public_id;
  std::string organisation_public_id;
  Role role = Role::reader;
  bool installation = false;
};

struct NewKey {
  std::string project_public_id;
  std::string name;
  Role role = Role::member;
  bool installation = false;
  std::string key_sha256;  // lower-case hex
  std::string prefix;
  std::optional<base::WallTime> expires_at;
  std::string created_by;
};

struct KeyUse {
  std::string key_public_id;
  std::string project_id;
  base::WallTime at;
  std::string method, route, target;  // route: the pattern; target: the path, ids only
  int status = 0;
  std::string request_id;
  std::string peer;
  bool keep = true;  // false: only last_used_at is touched, no audit row
};

class Keys {
 public:
  explicit Keys(Database& database) : database_(database) {}

  /// Nothing for a key that is unknown, revoked or over. Asked for every request, never cached: a
  /// revocation acts at once everywhere.
  async::Task<std::optional<KeyOwner>> authenticate(std::string key_sha256,
                                                    base::Deadline deadline);
  /// not_found when the project does not exist.
  async::Task<KeyRow> create(NewKey key, base::Deadline deadline);
  /// project_public_id "": those of all projects.
  async::Task<std::vector<KeyRow>> list(std::string project_public_id, base::Deadline deadline);
  async::Task<std::optional<KeyRow>> find(std::string project_public_id,
                                          std::string public_id,
                                          base::Deadline deadline);
  /// Nothing when there is no such key (in that project, unless that is ""). Revoking twice is
  /// fine.
  async::Task<std::optional<KeyRow>> revoke(std::string project_public_id,
                                            std::string public_id,
                                            std::string actor,
                                            base::Deadline deadline);
  /// All keys of the installation of that name, in every project.
  async::Task<void> revoke_installation(std::string name, base::Deadline deadline);
  /// Sets last_used_at and writes the audit rows, in one statement for many requests.
  async::Task<void> record_uses(std::vector<KeyUse> uses, base::Deadline deadline);
  /// Newest first; `before`: microseconds since 1970 of the last one seen.
  async::Task<std::vector<KeyUse>> list_uses(std::string project_id,
                                             std::string key_public_id,
                                             std::uint32_t limit,
                                             std::optional<base::WallTime> before,
                                             base::Deadline deadline);
  async::Task<std::uint64_t> trim_uses(std::chrono::hours keep, base::Deadline deadline);

 private:
  Database& database_;
};

class Projects {
 public:
  explicit Projects(Database& database) : database_(database) {}

  /// conflict when the name is taken.
  async::Task<OrganisationRow> create_organisation(std::string name, base::Deadline deadline);
  /// public_id "": all of them.
  async::Task<std::vector<OrganisationRow>> list_organisations(std::string public_id,
                                                               base::Deadline deadline);
  /// not_found without that organisation, conflict when the name is taken in it.
  async::Task<ProjectRow> create(std::string organisation_public_id,
                                 std::string name,
                                 domain::Limits limits,
                                 base::Deadline deadline);
  /// public_id "": all of them.
  async::Task<std::vector<ProjectRow>> list(std::string public_id, base::Deadline deadline);
  async::Task<std::optional<ProjectRow>> set_limits(std::string public_id,
                                                    domain::Limits limits,
                                                    base::Deadline deadline);
  /// Of sandboxes made from now on. Nothing: the installation's; 0: never.
  async::Task<std::optional<ProjectRow>> set_idle_timeout(std::string public_id,
                                                          std::optional<std::uint32_t> seconds,
                                                          base::Deadline deadline);
  /// What is suspended for that long is deleted. Those that are already count from when they were
  /// suspended, but have another day from now on. Nothing: never.
  async::Task<std::optional<ProjectRow>> set_suspended_keep(std::string public_id,
                                                            std::optional<std::uint32_t> seconds,
                                                            std::string actor,
                                                            base::Deadline deadline);

 private:
  async::Task<std::optional<ProjectRow>> change(Statement const* statement,
                                                Params params,
                                                base::Deadline deadline);
  Database& database_;
};

}  // namespace store
