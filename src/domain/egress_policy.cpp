#include "domain/egress_policy.hpp"

#include <arpa/inet.h>

#include <charconv>
#include <unordered_map>

namespace domain {
namespace {

using base::Code;
using wire::PolicyRule;

constexpr std::size_t rules_max = 10'000;
constexpr std::size_t hosts_per_rule_max = 256;
/// Of texts that each record of a decision repeats, in the memory of the host and in its audit.
constexpr std::size_t name_bytes_max = 512;
constexpr std::size_t levels_max = decltype(Decision::limited){}.size();

struct Cidr {
  std::uint32_t network;
  std::uint32_t mask;

  bool contains(std::uint32_t address) const noexcept { return (address & mask) == network; }
};

base::Result<Cidr> parse_cidr(std::string const& text) {
  auto const slash = text.find('/');
  unsigned bits = 32;
  if (slash != std::string::npos) {
    auto const* const end = text.data() + text.size();
    auto const [stop, error] = std::from_chars(text.data() + slash + 1, end, bits);
    if (error != std::errc() || stop != end || bits > 32) {
      return base::fail(Code::invalid_argument,
                        fmt::format("\"{}\" is no CIDR: the length is 0 to 32", text));
    }
  }
  in_addr parsed{};
  if (inet_pton(AF_INET, text.substr(0, slash).c_str(), &parsed) != 1) {
    return base::fail(Code::invalid_argument, fmt::format("\"{}\" is no IPv4 CIDR", text));
  }
  std::uint32_t const mask = bits == 0 ? 0 : ~std::uint32_t{0} << (32 - bits);
  auto const network = ntohl(parsed.s_addr);
  if ((network & mask) != network) {
    return base::fail(Code::invalid_argument,
                      fmt::format("\"{}\" has bits set beyond its length", text));
  }
  return Cidr{network, mask};
}

/// Rules of one level by what they name. Values are indices into the level's rules.
struct Index {
  std::unordered_map<std::string, std::vector<std::uint32_t>> exact;
  std::unordered_map<std::string, std::vector<std::uint32_t>> below;
  std::vector<std::uint32_t> any;
};

struct Level {
  std::string name;
  wire::Policy policy;
  Index allow;
  Index deny;
  std::vector<Cidr> cidr_allow;
  std::vector<Cidr> cidr_deny;
};

bool names_port(PolicyRule const& rule, std::uint16_t port) {
  if (rule.ports.empty())
    return rule.protocol == wire::RuleProtocol::http && (port == 443 || port == 80);
  return std::ranges::find(rule.ports, port) != rule.ports.end();
}

Flow flow_of(PolicyRule const& rule) {
  if (rule.protocol == wire::RuleProtocol::tcp) return Flow::tcp;
  return rule.tls == wire::RuleTls::passthrough ? Flow::passthrough : Flow::http;
}

/// Calls `visit(indices, rank)` for the rules that name `host`: exact first, then longer suffixes
/// before shorter ones, then `*`. Stops when it returns true.
template <class Visit> void for_each_match(Index const& index, HostName const& host, Visit visit) {
  if (auto const it = index.exact.find(host.str()); it != index.exact.end() && visit(it->second))
    return;
  std::string_view rest = host.str();
  while (true) {
    auto const dot = rest.find('.');
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
    if (auto const it = index.below.find(std::string(rest));
        it != index.below.end() && visit(it->second))
      return;
  }
  if (!index.any.empty()) visit(index.any);
}

std::size_t literal_length(std::string_view glob) {
  return std::min(glob.find('*'), glob.size());
}

bool method_fits(PolicyRule const& rule, std::string_view method) {
  if (!rule.http || rule.http->methods.empty()) return true;
  return std::ranges::find(rule.http->methods, method) != rule.http->methods.end();
}

bool looks_at_paths(PolicyRule const& rule) {
  return rule.http && (!rule.http->paths.empty() || !rule.http->deny_paths.empty());
}

/// Length of the longest literal prefix among the globs that match, plus one; 0 = no match.
std::size_t path_rank(PolicyRule const& rule, std::string_view path) {
  if (!looks_at_paths(rule)) return 1;
  auto const plain = plain_path(path);
  for (auto const& glob : rule.http->deny_paths)
    if (path_matches(glob, path) || path_matches(glob, plain)) return 0;
  if (rule.http->paths.empty()) return 1;
  std::size_t best = 0;
  for (auto const& glob : rule.http->paths)
    if (path_matches(glob, path) && path_matches(glob, plain))
      best = std::max(best, literal_length(glob) + 1);
  return best;
}

bool same_injection(PolicyRule const& a, PolicyRule const& b) {
  return wire::encode_text(a.inject) == wire::encode_text(b.inject);
}

Decision denied(Reason reason, Level const& level, std::string rule = {}) {
  Decision decision;
  decision.reason = reason;
  decision.level = level.name;
  decision.rule = std::move(rule);
  return decision;
}

Decision allowed(Level const& level, PolicyRule const* rule) {
  Decision decision;
  decision.allowed = true;
  decision.reason = Reason::allowed;
  decision.level = level.name;
  if (rule) {
    decision.rule = rule->id;
    decision.flow = flow_of(*rule);
    decision.rule_text = rule;
  }
  return decision;
}

std::optional<Decision> find_denial(Level const& level,
                                    HostName const& host,
                                    std::uint16_t port,
                                    RequestTuple const* request) {
  std::optional<Decision> found;
  for_each_match(level.deny, host, [&](std::vector<std::uint32_t> const& indices) {
    for (auto const i : indices) {
      auto const& rule = level.policy.rules[i];
      if (!rule.ports.empty() && !names_port(rule, port)) continue;
      // A deny rule with an `http` part speaks of requests only; without one it closes the host.
      if (rule.http && (!request || !method_fits(rule, request->method))) continue;
      if (rule.http && looks_at_paths(rule) && !is_ambiguous_path(request->path) &&
          path_rank(rule, request->path) == 0 && path_rank(rule, plain_path(request->path)) == 0)
        continue;
      found = denied(Reason::denied_by_rule, level, rule.id);
      return true;
    }
    return false;
  });
  return found;
}

Decision allow_connection(Level const& level, HostName const& host, std::uint16_t port) {
  if (level.policy.posture == wire::Posture::blocked) return denied(Reason::posture_blocked, level);
  Decision decision = denied(Reason::no_rule, level);
  for_each_match(level.allow, host, [&](std::vector<std::uint32_t> const& indices) {
    for (auto const i : indices) {
      auto const& rule = level.policy.rules[i];
      if (!names_port(rule, port)) continue;
      // Of several rules of one rank the one that sees most decides the kind of flow: never less
      // inspection.
      if (!decision.allowed || flow_of(rule) < decision.flow) decision = allowed(level, &rule);
    }
    return decision.allowed;
  });
  if (!decision.allowed && level.policy.posture == wire::Posture::open)
    return allowed(level, nullptr);
  return decision;
}

struct Best {
  PolicyRule const* rule = nullptr;
  std::size_t rank = 0;
  bool conflict = false;
  Reason nearest = Reason::no_rule;
};

void consider(PolicyRule const& rule, RequestTuple const& request, Best& best) {
  if (flow_of(rule) != Flow::http) {
    if (!best.rule && best.nearest == Reason::no_rule) best.nearest = Reason::wrong_protocol;
    return;
  }
  if (!method_fits(rule, request.method) ||
      (request.websocket && !(rule.http && rule.http->websocket))) {
    best.nearest = Reason::method_not_allowed;
    return;
  }
  if (looks_at_paths(rule) && is_ambiguous_path(request.path)) {
    best.nearest = Reason::path_ambiguous;
    return;
  }
  auto const rank = path_rank(rule, request.path);
  if (rank == 0) {
    best.nearest = Reason::path_not_allowed;
    return;
  }
  if (rank > best.rank) {
    best.rule = &rule;
    best.rank = rank;
    best.conflict = false;
  } else if (rank == best.rank && best.rule && !same_injection(rule, *best.rule)) {
    best.conflict = true;
  }
}

Decision allow_request(Level const& level, RequestTuple const& request) {
  if (level.policy.posture == wire::Posture::blocked) return denied(Reason::posture_blocked, level);
  Best best;
  std::string seen_rule;
  for_each_match(level.allow, request.host, [&](std::vector<std::uint32_t> const& indices) {
    for (auto const i : indices) {
      auto const& rule = level.policy.rules[i];
      if (!names_port(rule, request.port)) continue;
      seen_rule = rule.id;
      consider(rule, request, best);
    }
    // The most specific host decides alone: a wildcard does not give back what an exact rule leaves
    // out.
    return !seen_rule.empty();
  });
  if (best.conflict) return denied(Reason::conflicting_rules, level, best.rule->id);
  if (best.rule) return allowed(level, best.rule);
  // In the open posture a host without any rule is free; a host with rules is held to them.
  if (level.policy.posture == wire::Posture::open && seen_rule.empty())
    return allowed(level, nullptr);
  return denied(best.nearest, level, seen_rule);
}

base::Result<void> check_hosts(PolicyRule const& rule) {
  if (rule.hosts.empty())
    return base::fail(Code::invalid_argument,
                      fmt::format("rule {}: hosts must not be empty", rule.id));
  if (rule.hosts.size() > hosts_per_rule_max) {
    return base::fail(Code::invalid_argument,
                      fmt::format("rule {}: at most {} hosts", rule.id, hosts_per_rule_max));
  }
  for (auto const& host : rule.hosts) {
    bool const wild = host == "*" || host.starts_with("*.");
    if (wild && !rule.inject.empty()) {
      return base::fail(
          Code::invalid_argument,
          fmt::format("rule {}: a credential needs exact hosts, not {}", rule.id, host));
    }
    if (host == "*") continue;
    auto const name = HostName::parse(host.starts_with("*.") ? std::string_view(host).substr(2)
                                                             : std::string_view(host));
    if (!name)
      return base::fail(
          Code::invalid_argument,
          fmt::format("rule {}: host \"{}\": {}", rule.id, host, name.error().message()));
    if (wild && name->str().find('.') == std::string::npos) {
      return base::fail(Code::invalid_argument,
                        fmt::format("rule {}: {} is a whole top-level domain", rule.id, host));
    }
  }
  return {};
}

base::Result<void> check_http(PolicyRule const& rule) {
  auto const bad = [&](std::string what) {
    return base::fail(Code::invalid_argument, fmt::format("rule {}: {}", rule.id, what));
  };
  bool const raw = flow_of(rule) != Flow::http;
  if (raw && (rule.http || !rule.inject.empty()))
    return bad("methods, paths and credentials need terminated HTTP");
  if (rule.protocol == wire::RuleProtocol::tcp && rule.action == wire::RuleAction::allow) {
    if (rule.ports.empty()) return bad("protocol tcp needs ports");
    for (auto const& host : rule.hosts)
      if (host.starts_with('*')) return bad("protocol tcp needs exact hosts");
  }
  if (rule.tls == wire::RuleTls::passthrough) {
    for (auto const& host : rule.hosts)
      if (host.starts_with('*')) return bad("tls passthrough needs exact hosts");
  }
  if (std::ranges::find(rule.ports, 0) != rule.ports.end()) return bad("port 0");
  for (auto const& one : rule.inject) {
    if (one.credential.empty()) return bad("inject.credential is empty");
    if (one.credential.size() > name_bytes_max)
      return bad("inject.credential has at most 512 bytes");
  }
  if (raw && rule.limits && rule.limits->requests_per_s)
    return bad("limits.requests_per_s needs terminated HTTP");
  if (rule.limits && rule.action == wire::RuleAction::deny)
    return bad("limits are those of an allow rule");
  if (!rule.http) return {};
  for (auto const& method : rule.http->methods) {
    if (method == "CONNECT" || method == "TRACE" || method == "TRACK")
      return bad(method + " is refused everywhere");
    if (method.empty() || !std::ranges::all_of(method, [](char c) { return c >= 'A' && c <= 'Z'; }))
      return bad("methods are upper-case words");
  }
  for (auto const* list : {&rule.http->paths, &rule.http->deny_paths}) {
    for (auto const& glob : *list) {
      if (!glob.starts_with('/') || glob.size() > path_glob_bytes_max)
        return bad("paths begin with '/' and have at most 1024 bytes");
    }
  }
  return {};
}

void add_to(Index& index, PolicyRule const& rule, std::uint32_t number) {
  for (auto const& host : rule.hosts) {
    if (host == "*") {
      index.any.push_back(number);
    } else if (host.starts_with("*.")) {
      index.below[HostName::parse(std::string_view(host).substr(2))->str()].push_back(number);
    } else {
      index.exact[HostName::parse(host)->str()].push_back(number);
    }
  }
}

template <class Number>
void narrow(std::optional<Number>& mine, std::optional<Number> const& other) {
  if (other) mine = std::min(mine.value_or(*other), *other);
}

/// Collects the limiting rule of each level on the way to a decision.
struct Limited {
  void add(Decision const& decision) {
    if (decision.rule_text && decision.rule_text->limits) rules[count++] = decision.rule_text;
  }

  decltype(Decision::limited) rules{};
  std::size_t count = 0;
};

base::Result<Level> compile_level(wire::PolicyLevel text) {
  Level level;
  level.name = std::move(text.level);
  level.policy = std::move(text.policy);
  for (std::uint32_t i = 0; i < level.policy.rules.size(); ++i) {
    auto& rule = level.policy.rules[i];
    if (rule.id.empty()) rule.id = fmt::format("{}-{}", level.name, i + 1);
    if (rule.id.size() > name_bytes_max)
      return base::fail(Code::invalid_argument,
                        fmt::format("rule {}: its id has at most 512 bytes", i + 1));
    if (auto checked = check_hosts(rule); !checked) return base::passing(checked);
    if (auto checked = check_http(rule); !checked) return base::passing(checked);
    add_to(rule.action == wire::RuleAction::allow ? level.allow : level.deny, rule, i);
  }
  for (auto const& text_of_one : level.policy.cidr.allow) {
    auto cidr = parse_cidr(text_of_one);
    if (!cidr) return base::passing(cidr);
    level.cidr_allow.push_back(*cidr);
  }
  for (auto const& text_of_one : level.policy.cidr.deny) {
    auto cidr = parse_cidr(text_of_one);
    if (!cidr) return base::passing(cidr);
    level.cidr_deny.push_back(*cidr);
  }
  return level;
}

}  // namespace

struct EgressPolicy::Impl {
  wire::EffectivePolicy text;
  std::vector<Level> levels;
  wire::Binding binding = wire::Binding::name;
  wire::PolicyBudgets budgets;
  std::string shared_levels;
};

EgressPolicy::EgressPolicy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EgressPolicy::~EgressPolicy() = default;

base::Result<std::shared_ptr<EgressPolicy const>> EgressPolicy::compile(
    wire::EffectivePolicy text) {
  std::size_t rules = 0;
  for (auto const& level : text.levels)
    rules += level.policy.rules.size();
  if (text.levels.size() > levels_max)
    return base::fail(Code::invalid_argument, fmt::format("at most {} levels", levels_max));
  if (rules > rules_max)
    return base::fail(Code::invalid_argument,
                      fmt::format("{} rules; at most {}", rules, rules_max));
  auto impl = std::make_unique<Impl>();
  impl->text = std::move(text);
  bool first = true;
  for (auto const& one : impl->text.levels) {
    auto level = compile_level(one);
    if (!level) return base::passing(level, one.level);
    auto const& budgets = level->policy.budgets;
    if (first) impl->budgets = budgets;
    auto& mine = impl->budgets;
    // Narrowing: the smallest of each level; strict wins over name.
    mine.connections = std::min(mine.connections, budgets.connections);
    mine.dns_names = std::min(mine.dns_names, budgets.dns_names);
    mine.handshakes_per_s = std::min(mine.handshakes_per_s, budgets.handshakes_per_s);
    mine.requests_per_s = std::min(mine.requests_per_s, budgets.requests_per_s);
    narrow(mine.host_requests_per_s, budgets.host_requests_per_s);
    narrow(mine.up_bytes, budgets.up_bytes);
    narrow(mine.down_bytes, budgets.down_bytes);
    if (budgets.together)
      impl->shared_levels += (impl->shared_levels.empty() ? "" : ",") + one.level;
    if (level->policy.binding == wire::Binding::strict) impl->binding = wire::Binding::strict;
    impl->levels.push_back(std::move(*level));
    first = false;
  }
  return std::shared_ptr<EgressPolicy const>(new EgressPolicy(std::move(impl)));
}

std::uint64_t EgressPolicy::generation() const noexcept {
  return impl_->text.generation;
}

wire::Binding EgressPolicy::binding() const noexcept {
  return impl_->binding;
}

wire::PolicyBudgets const& EgressPolicy::budgets() const noexcept {
  return impl_->budgets;
}

std::string const& EgressPolicy::shared_levels() const noexcept {
  return impl_->shared_levels;
}

wire::EffectivePolicy const& EgressPolicy::text() const noexcept {
  return impl_->text;
}

void EgressPolicy::for_each_limited(
    std::function<void(std::string const&, wire::PolicyRule const&)> const& visit) const {
  for (auto const& level : impl_->levels)
    for (auto const& rule : level.policy.rules)
      if (rule.limits) visit(level.name, rule);
}

Decision EgressPolicy::judge_connection(HostName const& host, std::uint16_t port) const {
  Decision decision;
  Limited limited;
  decision.reason = Reason::posture_blocked;  // no level at all = no network
  for (auto const& level : impl_->levels)
    if (auto denial = find_denial(level, host, port, nullptr)) return *denial;
  for (auto const& level : impl_->levels) {
    auto const flow_so_far = decision.flow;
    bool const had_rule = decision.allowed && decision.rule_text != nullptr;
    auto next = allow_connection(level, host, port);
    if (!next.allowed) return next;
    limited.add(next);
    // Levels that disagree on the kind of flow: the one that inspects more holds.
    if (had_rule && next.rule_text && flow_so_far < next.flow) next.flow = flow_so_far;
    if (had_rule && !next.rule_text) continue;
    decision = next;
  }
  decision.limited = limited.rules;
  return decision;
}

Decision EgressPolicy::judge_request(RequestTuple const& request) const {
  Decision decision;
  Limited limited;
  decision.reason = Reason::posture_blocked;
  for (auto const& level : impl_->levels)
    if (auto denial = find_denial(level, request.host, request.port, &request)) return *denial;
  for (auto const& level : impl_->levels) {
    auto next = allow_request(level, request);
    if (!next.allowed) return next;
    limited.add(next);
    if (decision.allowed && decision.rule_text && !next.rule_text) continue;
    decision = next;
  }
  decision.limited = limited.rules;
  return decision;
}

Decision EgressPolicy::judge_address(std::uint32_t address, std::uint16_t port) const {
  static_cast<void>(port);  // CIDR rules speak of whole addresses
  Decision decision;
  decision.reason = Reason::posture_blocked;
  auto const in = [&](std::vector<Cidr> const& list) {
    return std::ranges::any_of(list, [&](Cidr const& c) { return c.contains(address); });
  };
  for (auto const& level : impl_->levels) {
    if (level.policy.posture == wire::Posture::blocked)
      return denied(Reason::posture_blocked, level);
    // An allowed CIDR beats a denied one within a level, as E2B users expect.
    if (in(level.cidr_allow)) {
      decision = allowed(level, nullptr);
    } else if (in(level.cidr_deny)) {
      return denied(Reason::denied_by_rule, level, "cidr.deny");
    } else if (level.policy.posture == wire::Posture::open) {
      decision = allowed(level, nullptr);
    } else {
      return denied(Reason::no_rule, level);
    }
    decision.flow = Flow::tcp;
  }
  return decision;
}

bool EgressPolicy::knows_name(HostName const& host) const {
  if (impl_->levels.empty()) return false;
  for (auto const& level : impl_->levels) {
    if (level.policy.posture == wire::Posture::blocked) return false;
    if (find_denial(level, host, 0, nullptr)) return false;
    bool named = level.policy.posture == wire::Posture::open;
    for_each_match(
        level.allow, host, [&](std::vector<std::uint32_t> const&) { return named = true; });
    if (!named) return false;
  }
  return true;
}

std::string_view name_of(Reason reason) noexcept {
  switch (reason) {
    case Reason::allowed:
      return "allowed";
    case Reason::posture_blocked:
      return "posture_blocked";
    case Reason::no_rule:
      return "no_rule";
    case Reason::denied_by_rule:
      return "denied_by_rule";
    case Reason::method_not_allowed:
      return "method_not_allowed";
    case Reason::path_not_allowed:
      return "path_not_allowed";
    case Reason::path_ambiguous:
      return "path_ambiguous";
    case Reason::conflicting_rules:
      return "conflicting_rules";
    case Reason::wrong_protocol:
      return "wrong_protocol";
  }
  return "no_rule";
}

std::string sentence_of(Reason reason) {
  static constexpr std::string_view tail =
      " Another address, port, proxy or name for the same thing is refused too; ask the owner of "
      "the sandbox for a rule.";
  auto const text = [&](std::string_view head) { return std::string(head) + std::string(tail); };
  switch (reason) {
    case Reason::allowed:
      return "Allowed.";
    case Reason::posture_blocked:
      return text("This sandbox has no network.");
    case Reason::no_rule:
      return text("No rule of this sandbox's policy allows this destination.");
    case Reason::denied_by_rule:
      return text("A rule of this sandbox's policy forbids this destination.");
    case Reason::method_not_allowed:
      return text("The policy allows this host, but not this method.");
    case Reason::path_not_allowed:
      return text("The policy allows this host, but not this path.");
    case Reason::path_ambiguous:
      return text(
          "The path can be read in two ways and the policy looks at paths: send it in its plain "
          "form.");
    case Reason::conflicting_rules:
      return text("Two rules of the policy contradict each other for this request.");
    case Reason::wrong_protocol:
      return text("The policy allows this host for another protocol only.");
  }
  return {};
}

}  // namespace domain
