#pragma once

#include "cli/client.hpp"

#include <optional>

/// The verbs about what sandboxes may reach, what they may use, and what was decided.
namespace cli {

/// "packages.example", "api.llm.example:POST,GET:/v1/**", "db.example:8443" → a rule of a policy.
base::Result<json::object> parse_allow(std::string_view text);
/// Rules of `allow` after each other, or the JSON in a file ("-" is stdin); nothing when both are
/// empty.
base::Result<std::optional<json::object>> policy_of(std::vector<std::string> const& allow,
                                                    std::string const& policy_file);
/// A policy that allows nothing yet.
json::object empty_policy();
/// The elements of an array with commas between; "" when it is none.
std::string joined(json::value const& list);
/// The rule as one would write it after --allow; "" when it says more than that.
std::string allow_text(json::value const& rule);

/// `target`: a sandbox's id, or platform, organisation, project, template:NAME; the middle two also
/// with :ID.
asio::awaitable<int> policy_show(Session session, std::string target);

struct PolicySetOptions {
  std::string target;
  std::vector<std::string> allow;
  std::string policy_file;
  bool add = false;  // beside the rules that are there
};

asio::awaitable<int> policy_set(Session session, PolicySetOptions options);
asio::awaitable<int> policy_remove(Session session, std::string target);
asio::awaitable<int> policy_versions(Session session, std::string target);

struct ExplainOptions {
  std::string sandbox, url, method;
};

/// 0 when it would be allowed, 1 when not.
asio::awaitable<int> policy_explain(Session session, ExplainOptions options);

struct WatchOptions {
  std::string sandbox;
  std::size_t count = 0;  // 0: until interrupted
};

asio::awaitable<int> policy_watch(Session session, WatchOptions options);
asio::awaitable<int> policy_suggest(Session session, std::string sandbox);

struct CredentialOptions {
  std::string name, profile, header, form, username, file;
  std::vector<std::string> hosts, paths, methods;
  std::vector<std::uint16_t> ports;
  std::vector<std::string> projects, sandboxes;  // grants
  bool organisation = false;
  std::string of_template;           // "": of the whole project
  std::uint32_t requests_per_s = 0;  // 0: not said, as with the next two
  std::uint32_t concurrent = 0;
  std::uint64_t requests_per_day = 0;
};

/// The value comes from `file`, or from stdin.
asio::awaitable<int> credential_put(Session session, CredentialOptions options);
asio::awaitable<int> credential_rotate(Session session, CredentialOptions options);
asio::awaitable<int> credential_grant(Session session, CredentialOptions options);
asio::awaitable<int> credential_release(Session session, CredentialOptions options);
asio::awaitable<int> credential_revoke(Session session, CredentialOptions options);
asio::awaitable<int> credential_remove(Session session, CredentialOptions options);
asio::awaitable<int> credential_list(Session session);
asio::awaitable<int> credential_profiles(Session session);

/// Of this host; needs to read the worker's directory, hence root.
struct AuditOptions {
  std::string directory;  // "": this installation's
  std::string file;       // export: where to, "-" is stdout
  bool to_syslog = false;
  std::string syslog_socket = "/dev/log";
  std::string sandbox;
  std::uint64_t after = 0;  // export: from the line behind this sequence number on
  std::string state_file;   // export: where that number is kept from one run to the next
  std::string node;  // verify: whose checkpoints the control plane is asked for; "": nobody is
  std::string checkpoint_file;  // verify: what was there the last time
  std::optional<std::uint64_t> keep_mib;
  std::optional<std::uint32_t> keep_days;
};

/// Without the control plane: the chain, and the checkpoint in a file.
int audit_verify(AuditOptions const& options, bool as_json);
/// The same, compared with what the control plane keeps of the node.
asio::awaitable<int> audit_verify_kept(Session session, AuditOptions options);
/// After a look at the node: what it shows next is taken.
asio::awaitable<int> audit_accept(Session session, std::string node);
int audit_export(AuditOptions const& options);
/// Says how much is kept; changes it when asked to.
int audit_retain(AuditOptions const& options, bool as_json);

}  // namespace cli
