#pragma once

#include "store/database.hpp"
#include "wire/credential.hpp"

/// Credentials as the broker sealed them. No function here ever sees a value.
namespace store {

/// Who may use one, beside the sandboxes of its own project.
struct CredentialGrants {
  std::vector<std::string> projects;   // public ids; "*" = every project of the organisation
  std::vector<std::string> sandboxes;  // public ids
};
BOOST_DESCRIBE_STRUCT(CredentialGrants, (), (projects, sandboxes))

struct CredentialRow {
  std::string id;  // UUID
  std::string organisation_public_id;
  std::string project_public_id;   // "": of the organisation
  std::string template_public_id;  // "": of the whole project
  std::string name;
  wire::CredentialBinding binding;
  std::string profile;
  std::optional<CredentialGrants> grants;
  std::string state = "active";  // active, revoked, quarantined
  std::uint32_t version = 1;
  std::string created_by;
  base::WallTime created_at, updated_at;
};

/// Whose it is, beside the project: nearer ones are meant first by their name.
struct CredentialScope {
  bool of_organisation = false;
  std::string template_public_id;  // of the project's sandboxes those that were made from it
};

struct NewCredential {
  std::string id;          // of the one that is replaced, or a fresh UUID
  std::string project_id;  // whose organisation it is of
  CredentialScope scope;
  std::string name;
  std::string profile;
  std::optional<CredentialGrants> grants;
  wire::Sealed sealed;  // of version 1, or the next one
  std::string actor;
};

/// One that a sandbox brings along, for itself alone.
struct SandboxCredential {
  std::string name;  // as its policy calls it; has a colon, which no name that users give has
  wire::Sealed sealed;
};

class Credentials {
 public:
  explicit Credentials(Database& database) : database_(database) {}

  /// The project's own, its templates' and, after them, its organisation's; without deleted ones.
  async::Task<std::vector<CredentialRow>> list(std::string project_id, base::Deadline deadline);
  async::Task<std::optional<CredentialRow>> find(std::string project_id,
                                                 CredentialScope scope,
                                                 std::string name,
                                                 base::Deadline deadline);
  /// Makes it at version 1. conflict (23505) when the name is taken.
  async::Task<CredentialRow> create(NewCredential credential, base::Deadline deadline);
  /// Version `sealed.version` follows the one before it and is active; nothing when somebody else
  /// was first. Earlier versions' ciphertexts are dropped.
  async::Task<std::optional<CredentialRow>> rotate(NewCredential credential,
                                                   base::Deadline deadline);
  async::Task<std::optional<CredentialRow>> set_state(std::string id,
                                                      std::string state,
                                                      base::Deadline deadline);
  /// Because a server sent this version back to that sandbox, at that time. The row when it is in
  /// quarantine now, with an event when it was not before; nothing when that version is no more, or
  /// the same reflection (or a later one) put it there before and somebody let it out.
  async::Task<std::optional<CredentialRow>> quarantine(std::string id,
                                                       std::uint32_t version,
                                                       std::string sandbox,
                                                       std::string host,
                                                       base::WallTime at,
                                                       base::Deadline deadline);
  /// Out of quarantine, with its event; nothing when it is not there.
  async::Task<std::optional<CredentialRow>> release(std::string id,
                                                    std::string actor,
                                                    base::Deadline deadline);
  async::Task<std::optional<CredentialRow>> set_grants(std::string id,
                                                       std::optional<CredentialGrants> grants,
                                                       base::Deadline deadline);
  async::Task<void> remove(std::string id, base::Deadline deadline);

  struct Leasable {
    CredentialRow row;
    wire::Sealed sealed;  // the current version
  };

  /// Of these names, what exists for the project's sandboxes of the template, nearest first: the
  /// template's before the project's before its organisation's.
  async::Task<std::vector<Leasable>> named(std::string project_id,
                                           std::string template_public_id,
                                           std::vector<std::string> names,
                                           base::Deadline deadline);

  /// All that the sandbox brings along.
  async::Task<std::vector<SandboxCredential>> of_sandbox(std::string sandbox,
                                                         base::Deadline deadline);
  /// In the place of all that it had. The sandbox may be one that is only about to exist; they go
  /// with it (Sandboxes::end), or within a day or so when it never came to be (Policies::trim).
  async::Task<void> replace_of_sandbox(std::string sandbox,
                                       std::vector<SandboxCredential> credentials,
                                       base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
