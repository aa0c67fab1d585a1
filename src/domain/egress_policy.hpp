#pragma once

#include "domain/host_name.hpp"
#include "wire/policy.hpp"

#include <array>
#include <functional>
#include <memory>
#include <span>

namespace domain {

/// What a policy may say no or yes to. A connection is judged first (host and port, before a byte
/// of it is read), then each request on it (method and path).
enum class Flow : std::uint8_t { http, tcp, passthrough };

/// Why: stable codes for the audit, the refusal that the guest reads, and `space policy explain`.
enum class Reason : std::uint8_t {
  allowed,
  posture_blocked,     // a level blocks everything
  no_rule,             // no allow rule of some level names this host and port
  denied_by_rule,      // a deny rule names it
  method_not_allowed,  // rules name the host, none the method
  path_not_allowed,
  path_ambiguous,     // a rule looks at paths and this one could be read in two ways
  conflicting_rules,  // two equally specific rules inject different credentials
  wrong_protocol,     // the rule is for another kind of flow
};
std::string_view name_of(Reason reason) noexcept;
/// One sentence for the guest and the owner: what was refused and that another way will not help.
std::string sentence_of(Reason reason);

struct Decision {
  bool allowed = false;
  Reason reason = Reason::no_rule;
  std::string level;  // which level decided
  std::string rule;   // its rule id, "" when no rule did
  Flow flow = Flow::http;
  wire::PolicyRule const* rule_text =
      nullptr;  // the innermost allow rule (owned by the policy); null when denied or open
  /// Of every level the allow rule, where it has `limits`; null from the first unused one on.
  std::array<wire::PolicyRule const*, 8> limited{};
};

struct RequestTuple {
  HostName host;
  std::uint16_t port = 443;
  std::string method;
  std::string path;  // without query, as judged and as sent
  bool websocket = false;
};

/// A compiled, immutable effective policy. Deciding takes a few hash look-ups, whatever the number
/// of rules.
///
/// Order: a deny rule of any level beats every allow; then every level that has a policy must allow
/// (a level can only narrow); within a level the most specific host wins (exact, longest suffix,
/// `*`), then the longest literal path prefix; equal rank with different injection is a refusal.
class EgressPolicy {
 public:
  /// Refuses what cannot be enforced as written: bad host patterns, ports, paths, CIDRs,
  /// credentials on wildcards, injection without TLS termination, too many rules (10,000) or bytes.
  static base::Result<std::shared_ptr<EgressPolicy const>> compile(wire::EffectivePolicy text);
  ~EgressPolicy();
  EgressPolicy(EgressPolicy const&) = delete;
  EgressPolicy& operator=(EgressPolicy const&) = delete;

  std::uint64_t generation() const noexcept;
  wire::Binding binding() const noexcept;
  wire::PolicyBudgets const& budgets() const noexcept;
  wire::EffectivePolicy const& text() const noexcept;
  /// The levels whose sandboxes have a budget together, with commas; "" when there is none.
  std::string const& shared_levels() const noexcept;
  /// Every rule with `limits`, as decisions name them.
  void for_each_limited(std::function<void(std::string const& level,
                                           wire::PolicyRule const& rule)> const& visit) const;

  /// May a connection to this name and port exist at all, and as what?
  Decision judge_connection(HostName const& host, std::uint16_t port) const;
  /// May this request be sent? For connections judged `http`.
  Decision judge_request(RequestTuple const& request) const;
  /// May this literal IPv4 address (host byte order) be dialled raw? Special-purpose addresses are
  /// refused elsewhere (gateway::AddressFilter), whatever a policy says.
  Decision judge_address(std::uint32_t address, std::uint16_t port) const;
  /// Should the DNS front answer this name? True when some port of it could be allowed.
  bool knows_name(HostName const& host) const;

 private:
  struct Impl;
  explicit EgressPolicy(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Things that are legal and probably not meant: shadowed rules, wildcards over hosting suffixes,
/// passthrough's price, credentials without a path. Sentences with the rule's id.
std::vector<std::string> lint(wire::Policy const& policy);

/// Compares two texts rule by rule: "+ rule …", "- rule …", "~ rule … (changed)".
std::vector<std::string> diff(wire::Policy const& before, wire::Policy const& after);

/// A longer one matches nothing, and no text that is taken in has one.
constexpr std::size_t path_glob_bytes_max = 1024;

/// Anchored glob over a path: `*` within a segment, `**` across. At most glob × path steps of a
/// few, whatever they are.
bool path_matches(std::string_view glob, std::string_view path) noexcept;

/// A path that two servers could read differently: dot segments, encoded slashes, dots or percent
/// signs, backslashes, doubled slashes, control bytes, ';' parameters. Refused when a rule looks at
/// paths.
bool is_ambiguous_path(std::string_view path) noexcept;

/// The path with what could stand plainly in it (`+`, `@`, `:`, …) standing plainly: how a server
/// may read it. What is denied is denied in both readings, what is allowed must be so in both.
std::string plain_path(std::string_view path);

}  // namespace domain
