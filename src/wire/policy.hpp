#pragma once

#include "wire/codec.hpp"

/// The egress policy of one level (platform, organisation, project, template, sandbox) as users
/// write it. A level may only narrow the levels above it: a connection must be allowed by every
/// level that has a policy. Meaning and order of rules: src/domain/egress_policy.hpp.
namespace wire {

enum class Posture : std::uint8_t { blocked, allowlist, open };
BOOST_DESCRIBE_ENUM(Posture, blocked, allowlist, open)

/// strict: the destination address must be one that our DNS front gave out. name: TLS and HTTP
/// connections to any address are judged (and dialled) by the name in SNI and Host; for E2B
/// clients.
enum class Binding : std::uint8_t { strict, name };
BOOST_DESCRIBE_ENUM(Binding, strict, name)

enum class RuleAction : std::uint8_t { allow, deny };
BOOST_DESCRIBE_ENUM(RuleAction, allow, deny)

enum class RuleProtocol : std::uint8_t { http, tcp };
BOOST_DESCRIBE_ENUM(RuleProtocol, http, tcp)

enum class RuleTls : std::uint8_t { terminate, passthrough };
BOOST_DESCRIBE_ENUM(RuleTls, terminate, passthrough)

enum class GuestAuth : std::uint8_t { keep, strip };
BOOST_DESCRIBE_ENUM(GuestAuth, keep, strip)

struct HttpMatch {
  std::vector<std::string> methods;     // upper case; empty = all but CONNECT, TRACE, TRACK
  std::vector<std::string> paths;       // anchored; `*` within a segment, `**` across; empty = all
  std::vector<std::string> deny_paths;  // win over `paths`
  bool websocket = false;
};
BOOST_DESCRIBE_STRUCT(HttpMatch, (), (methods, paths, deny_paths, websocket))

/// Which credential goes along. Header, form and where it may go belong to the credential itself
/// (wire/credential.hpp); a rule can only narrow that.
struct Injection {
  std::string credential;

  static bool required(std::string_view field) { return field == "credential"; }
};
BOOST_DESCRIBE_STRUCT(Injection, (), (credential))

/// What the sandbox may do by one rule. A connection ends where its bytes are used up; a request
/// that comes too early waits for at most a second, else it is refused (429). The rule of each
/// level that admits counts by itself.
struct RuleLimits {
  std::optional<std::uint64_t> up_bytes;
  std::optional<std::uint64_t> down_bytes;
  std::optional<std::uint32_t> requests_per_s;
};
BOOST_DESCRIBE_STRUCT(RuleLimits, (), (up_bytes, down_bytes, requests_per_s))

struct PolicyRule {
  std::string id;                    // unique within its level; shown in refusals and audit
  std::vector<std::string> hosts;    // "a.example", "*.a.example" (below it, not itself), "*"
  std::vector<std::uint16_t> ports;  // empty = 443 and 80 for http
  RuleProtocol protocol = RuleProtocol::http;
  RuleTls tls = RuleTls::terminate;
  RuleAction action = RuleAction::allow;
  std::optional<HttpMatch> http;
  std::vector<Injection> inject;
  GuestAuth guest_auth = GuestAuth::keep;
  std::vector<std::string> drop_response_headers;
  std::optional<RuleLimits> limits;

  static bool required(std::string_view field) { return field == "hosts"; }
};
BOOST_DESCRIBE_STRUCT(PolicyRule,
                      (),
                      (id,
                       hosts,
                       ports,
                       protocol,
                       tls,
                       action,
                       http,
                       inject,
                       guest_auth,
                       drop_response_headers,
                       limits))

struct PolicyCidrs {
  std::vector<std::string> allow;  // "203.0.113.0/28"
  std::vector<std::string> deny;
};
BOOST_DESCRIBE_STRUCT(PolicyCidrs, (), (allow, deny))

/// What may be done together by many sandboxes of a node: counted by its broker, of which there is
/// one. Days begin at 00:00 UTC. Of several levels each holds.
struct SharedBudget {
  std::optional<std::uint32_t> requests_per_s;
  std::optional<std::uint32_t> concurrent;  // under way at once
  std::optional<std::uint64_t> requests_per_day;

  static constexpr std::uint32_t concurrent_max = 100'000;

  std::string check() const {
    if (requests_per_s == 0U) return "requests_per_s: at least 1; without it there is no limit";
    if (requests_per_day == std::uint64_t(0))
      return "requests_per_day: at least 1; without it there is no limit";
    if (concurrent && (*concurrent == 0 || *concurrent > concurrent_max))
      return "concurrent: 1 to 100000; without it there is no limit";
    return {};
  }
};
BOOST_DESCRIBE_STRUCT(SharedBudget, (), (requests_per_s, concurrent, requests_per_day))

/// What each sandbox under the level may do; of several levels the smallest holds.
struct PolicyBudgets {
  std::uint32_t connections = 512;
  std::uint32_t dns_names = 4096;
  std::uint32_t handshakes_per_s = 50;
  std::uint32_t requests_per_s = 500;
  std::optional<std::uint32_t> host_requests_per_s;  // to each host
  std::optional<std::uint64_t> up_bytes;
  std::optional<std::uint64_t> down_bytes;
  std::optional<SharedBudget> together;  // all sandboxes under the level
};
BOOST_DESCRIBE_STRUCT(PolicyBudgets,
                      (),
                      (connections,
                       dns_names,
                       handshakes_per_s,
                       requests_per_s,
                       host_requests_per_s,
                       up_bytes,
                       down_bytes,
                       together))

struct Policy {
  Posture posture = Posture::blocked;
  Binding binding = Binding::strict;
  std::vector<PolicyRule> rules;
  PolicyCidrs cidr;
  PolicyBudgets budgets;
};
BOOST_DESCRIBE_STRUCT(Policy, (), (posture, binding, rules, cidr, budgets))

/// One level with its name, outermost first, as the gateway gets them.
struct PolicyLevel {
  std::string level;  // platform, organisation, project, template, sandbox
  Policy policy;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(PolicyLevel, (), (level, policy))

/// What is in force for one sandbox. The generation grows with every change of any level.
struct EffectivePolicy {
  std::uint64_t generation = 0;
  std::vector<PolicyLevel> levels;
};
BOOST_DESCRIBE_STRUCT(EffectivePolicy, (), (generation, levels))

}  // namespace wire
