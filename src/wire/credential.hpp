#pragma once

#include "wire/policy.hpp"

/// What the API, the worker, the gateway and the broker say to each other about credentials. Values
/// travel once, from the API to the broker (`Seal`); from then on everybody but the broker sees
/// ciphertext. broker.sock (HTTP; API and worker):
///   POST   /seal              Seal  → Sealed            (API)
///   PUT    /leases            Lease → 204               (worker; replaces one of the same sandbox
///   and credential) DELETE /leases/{sandbox}        → 204               (worker; also
///   ?credential=NAME) DELETE /gateways/{user id}      → 204               (worker; leases of
///   whoever had this user id before)
/// use.sock (JSON lines; gateways, told apart by their user id):
///   Use → Used               (answered in the order of the questions; no answer to `done`)
namespace wire {

/// One of a provider's endpoints.
struct Endpoint {
  std::string method;  // "" = any
  std::string path;    // a glob as in a policy, in lower case

  static bool required(std::string_view field) { return field == "path"; }
};
BOOST_DESCRIBE_STRUCT(Endpoint, (), (method, path))

/// Where a credential may go. Belongs to the credential; a policy can only narrow it.
struct CredentialBinding {
  std::vector<std::string> hosts;    // exact names
  std::vector<std::uint16_t> ports;  // empty = 443
  std::vector<std::string> methods;  // empty = all
  std::vector<std::string> paths;    // globs as in a policy; empty = all
  std::string header;                // "x-api-key", "authorization"
  std::string form =
      "header";          // header (the value itself), bearer, basic; plain: header, and no secret
  std::string username;  // with form basic
  std::optional<std::vector<Endpoint>> deny;  // where new credentials are given out: never there
  // Of all sandboxes of a node together, as SharedBudget:
  std::optional<std::uint32_t> requests_per_s;
  std::optional<std::uint32_t> concurrent;
  std::optional<std::uint64_t> requests_per_day;

  static bool required(std::string_view field) { return field == "hosts" || field == "header"; }
};
BOOST_DESCRIBE_STRUCT(CredentialBinding,
                      (),
                      (hosts,
                       ports,
                       methods,
                       paths,
                       header,
                       form,
                       username,
                       deny,
                       requests_per_s,
                       concurrent,
                       requests_per_day))

struct Seal {
  std::string credential;  // its inside id
  std::uint32_t version = 1;
  std::string value;
  CredentialBinding binding;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(Seal, (), (credential, version, value, binding))

struct Sealed {
  std::string credential;
  std::uint32_t version = 1;
  CredentialBinding binding;
  std::string key_id;
  std::string wrapped_key;  // hex
  std::string ciphertext;   // hex

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(Sealed, (), (credential, version, binding, key_id, wrapped_key, ciphertext))

/// Of a credential; or, with `budget`, of a part in what many sandboxes may do together. That has
/// no value: its `sealed` says only whose budget it is, and which version of it.
struct Lease {
  std::string sandbox;
  std::uint32_t gateway_uid = 0;
  std::string name;  // as policies call it; a budget's: budget_lease_name()
  Sealed sealed;
  std::uint32_t seconds = 900;  // at most 900
  std::optional<SharedBudget> budget = std::nullopt;

  static bool required(std::string_view field) { return field != "seconds" && field != "budget"; }
};
BOOST_DESCRIBE_STRUCT(Lease, (), (sandbox, gateway_uid, name, sealed, seconds, budget))

/// No credential that users name has a colon.
inline constexpr std::string_view budget_scheme = "budget";

inline std::string budget_lease_name(std::string_view level) {
  return std::string(budget_scheme) + ":" + std::string(level);
}

/// One request's tuple. The sandbox is not in it: it is the peer's user id.
struct Use {
  std::string credential;  // of scheme budget: the levels whose budgets it needs, with commas
  std::string scheme;      // https; budget: may the request be sent at all?
  std::string host;
  std::uint16_t port = 443;
  std::string method;
  std::string path;
  std::uint64_t question = 0;  // comes back in the answer: many may be under way
  std::optional<std::uint64_t> done =
      std::nullopt;  // nothing is asked: the request of that question is over

  static bool required(std::string_view field) { return field != "question" && field != "done"; }
};
BOOST_DESCRIBE_STRUCT(Use, (), (credential, scheme, host, port, method, path, question, done))

struct Used {
  bool ok = false;
  std::string code;  // when not ok: denied, not_found, exhausted (later_s)
  std::string message;
  std::string header;
  std::string value;
  std::string id;  // credential id and version, for the audit; which level's budget is exhausted
  std::uint32_t version = 0;
  bool plain = false;  // no secret: an answer may have the same words
  std::uint64_t question = 0;
  std::uint32_t later_s = 0;  // exhausted: so long no use of it will be admitted; 0: soon
  bool held = false;          // counted as under way until `done` is said, or the connection ends
};
BOOST_DESCRIBE_STRUCT(
    Used, (), (ok, code, message, header, value, id, version, plain, question, later_s, held))

}  // namespace wire
