// What a sandbox's policy says about one request, what its gateway decided, what an owner may want
// to allow.
#include "controlplane/native_policies.hpp"
#include "domain/egress_policy.hpp"

#include <arpa/inet.h>

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t decisions_bytes_max = 8 << 20;
constexpr std::size_t line_bytes_max = 64 << 10;
constexpr std::size_t asked_path_max = 2048;
constexpr std::size_t suggestions_max = 256;

std::optional<std::uint32_t> ipv4_of(std::string const& text) {
  in_addr address{};
  if (::inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

json::object view_of(domain::Decision const& decision) {
  json::object view{{"allowed", decision.allowed},
                    {"reason", domain::name_of(decision.reason)},
                    {"sentence", domain::sentence_of(decision.reason)},
                    {"level", decision.level},
                    {"rule", decision.rule}};
  json::array credentials;
  if (decision.allowed && decision.rule_text) {
    view["rule"] = decision.rule_text->id;
    for (auto const& one : decision.rule_text->inject)
      credentials.emplace_back(one.credential);
  }
  view["credentials"] = std::move(credentials);
  json::array limits;
  for (auto const* rule : decision.limited) {
    if (!decision.allowed || !rule) break;
    limits.push_back(json::object{{"rule", rule->id}, {"limits", wire::encode(*rule->limits)}});
  }
  view["limits"] = std::move(limits);
  return view;
}

/// The records that can be read; a newer worker may say more.
std::vector<wire::GatewayDecision> denied_in(std::string_view lines) {
  std::vector<wire::GatewayDecision> out;
  while (!lines.empty()) {
    auto const end = lines.find('\n');
    auto const line = lines.substr(0, end);
    if (!line.empty()) {
      auto one = wire::decode_text<wire::GatewayDecision>(line, wire::UnknownKeys::ignore);
      if (one && one->decision == "denied") out.push_back(std::move(*one));
    }
    if (end == std::string_view::npos) break;
    lines.remove_prefix(end + 1);
  }
  return out;
}

/// Was it allowed since?
bool is_allowed_now(domain::EgressPolicy const& policy, wire::GatewayDecision const& one) {
  auto const host = domain::HostName::parse(one.host);
  if (!host) return false;
  if (one.kind == "dns") return policy.knows_name(*host);
  auto const port = one.port == 0 ? std::uint16_t{443} : one.port;
  if (one.kind == "request")
    return policy.judge_request({*host, port, one.method, one.path}).allowed;
  return policy.judge_connection(*host, port).allowed;
}

template <class T> void add_once(std::vector<T>& list, T const& value) {
  if (std::ranges::find(list, value) == list.end() && list.size() < 64) list.push_back(value);
}

}  // namespace

std::vector<wire::PolicyRule> suggested_rules(std::vector<wire::GatewayDecision> const& denied) {
  std::map<std::string, wire::PolicyRule> by_host;
  for (auto const& one : denied) {
    bool const missing = one.reason == "name_not_allowed" || one.reason == "no_rule" ||
                         one.reason == "posture_blocked" || one.reason == "method_not_allowed" ||
                         one.reason == "path_not_allowed";
    auto const name = domain::HostName::parse(one.host);
    if (!missing || !name) continue;
    if (!by_host.contains(name->str()) && by_host.size() >= suggestions_max) continue;
    auto& rule = by_host[name->str()];
    rule.hosts = {name->str()};
    bool const special = one.kind != "dns" && one.port != 0 && one.port != 443 && one.port != 80;
    if (special) add_once(rule.ports, one.port);
    if (one.kind != "request" || one.method.empty()) continue;
    if (!rule.http) rule.http.emplace();
    add_once(rule.http->methods, one.method);
    if (!one.path.empty() && !domain::is_ambiguous_path(one.path) &&
        one.path.find('*') == std::string::npos)
      add_once(rule.http->paths, one.path);
  }
  std::vector<wire::PolicyRule> out;
  for (auto& [host, rule] : by_host) {
    rule.id = fmt::format("allow-{}", host).substr(0, 64);
    out.push_back(std::move(rule));
  }
  return out;
}

base::Result<AskedUrl> parse_url(std::string_view text) {
  AskedUrl out;
  auto const bad = [] {
    return base::fail(Code::invalid_argument,
                      "url: expected something like https://api.example/v1/messages");
  };
  auto const colon = text.find("://");
  auto const scheme = text.substr(0, colon);
  if (colon == std::string_view::npos) return bad();
  if (scheme == "http" || scheme == "ws") {
    out.tls = false;
    out.port = 80;
  } else if (scheme != "https" && scheme != "wss") {
    return bad();
  }
  out.websocket = scheme == "ws" || scheme == "wss";
  text.remove_prefix(colon + 3);
  auto const end = text.find_first_of("/?#");
  auto authority = text.substr(0, end);
  if (end != std::string_view::npos && text[end] == '/') {
    auto const rest = text.substr(end);
    out.path = rest.substr(0, rest.find_first_of("?#"));
  }
  if (auto const at = authority.rfind(':'); at != std::string_view::npos) {
    auto const digits = authority.substr(at + 1);
    auto const [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
    if (error != std::errc() || stop != digits.data() + digits.size() || out.port == 0)
      return bad();
    authority = authority.substr(0, at);
  }
  if (authority.empty() || authority.find('@') != std::string_view::npos) return bad();
  if (out.path.size() > asked_path_max)
    return base::fail(Code::invalid_argument, "url: its path has at most 2048 bytes");
  out.host = authority;
  return out;
}

async::Task<Reply> PolicyRoutes::explain(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"url", "method"}); !ok) co_return base::passing(ok);
  auto const url = parse_url(call.query_value("url").value_or(""));
  if (!url) co_return std::unexpected(url.error());
  auto const method = call.query_value("method").value_or("GET");
  if (method.empty() || !std::ranges::all_of(method, [](char c) { return c >= 'A' && c <= 'Z'; }))
    co_return base::fail(Code::invalid_argument, "method: expected an upper-case word, like POST");
  auto plan = co_await network_.plan(network_of(*row), {}, call.deadline);
  if (!plan) co_return base::passing(plan);
  auto compiled = domain::EgressPolicy::compile(plan->policy);
  if (!compiled) co_return base::passing(compiled);
  auto const& policy = **compiled;
  domain::Decision decision;
  if (auto const address = ipv4_of(url->host)) {
    decision = policy.judge_address(*address, url->port);
  } else {
    auto host = domain::HostName::parse(url->host);
    if (!host) co_return base::passing(host, "url");
    decision = policy.judge_connection(*host, url->port);
    if (decision.allowed && decision.flow == domain::Flow::http)
      decision = policy.judge_request({*host, url->port, method, url->path, url->websocket});
  }
  auto view = view_of(decision);
  if (decision.allowed) {
    auto& limits = view["limits"].as_array();
    for (auto const& level : plan->policy.levels)
      if (auto const& together = level.policy.budgets.together)
        limits.push_back(
            json::object{{"together", level.level}, {"limits", wire::encode(*together)}});
  }
  view["generation"] = plan->policy.generation;
  view["uplink"] = network_.has_uplink();
  for (auto const& trouble : plan->troubles)
    if (decision.allowed && trouble.rule == decision.rule) view["note"] = trouble.sentence;
  if (!url->tls && !view["credentials"].as_array().empty())
    view["note"] = "a credential is sent over TLS only: this request is refused by its gateway";
  if (!network_.has_uplink()) view["note"] = offline_note;
  co_return json_reply(200, view);
}

async::Task<Reply> PolicyRoutes::suggest(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  if (row->state != domain::SandboxState::running)
    co_return base::fail(Code::conflict, "what it was denied is remembered while it runs");
  auto exchange =
      co_await workers_.decisions(row->node_address, row->public_id, false, call.deadline);
  if (!exchange) co_return base::passing(exchange);
  auto text = co_await async::with_deadline(call.deadline,
                                            (*exchange)->body().read_all(decisions_bytes_max));
  if (!text) co_return base::passing(text, "read the decisions");
  auto plan = co_await network_.plan(network_of(*row), {}, call.deadline);
  if (!plan) co_return base::passing(plan);
  auto policy = domain::EgressPolicy::compile(plan->policy);
  if (!policy) co_return base::passing(policy);
  auto denied = denied_in(*text);
  std::erase_if(denied, [&](auto const& one) { return is_allowed_now(**policy, one); });
  json::array rules;
  for (auto const& rule : suggested_rules(denied))
    rules.push_back(wire::encode(rule));
  json::object view{{"denied", denied.size()}, {"rules", std::move(rules)}};
  if (!network_.has_uplink()) view["note"] = offline_note;
  co_return json_reply(200, view);
}

/// Of the log on its worker's disk, also after it has ended.
async::Task<Reply> PolicyRoutes::list_audit(Call& call) {
  auto row = co_await service_.get(
      call.owner.project_id, call.param("sandbox"), SandboxService::Ended::show, call.deadline);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"after", "limit"}); !ok) co_return base::passing(ok);
  auto const limit = limit_of(call);
  if (!limit) co_return std::unexpected(limit.error());
  auto const text = call.query_value("after").value_or("0");
  std::uint64_t after = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), after);
  if (error != std::errc() || end != text.data() + text.size())
    co_return base::fail(Code::invalid_argument, "after: expected next_after of the page before");
  auto page =
      co_await workers_.audit(row->node_address, row->public_id, after, *limit, call.deadline);
  if (!page) co_return base::passing(page);
  co_return json_reply(200, *page);
}

async::Task<Reply> PolicyRoutes::stream_decisions(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"follow"}); !ok) co_return base::passing(ok);
  auto const follow = call.query_value("follow").value_or("1");
  if (follow != "0" && follow != "1")
    co_return base::fail(Code::invalid_argument, "follow: expected 0 or 1");
  if (row->state != domain::SandboxState::running)
    co_return base::fail(Code::conflict, "decisions are there while it runs; later see the audit");
  auto exchange =
      co_await workers_.decisions(row->node_address, row->public_id, follow == "1", call.deadline);
  if (!exchange) co_return base::passing(exchange);
  auto begun = co_await begin_events(call);
  if (!begun) co_return base::passing(begun);
  if (is_head_only(call)) co_return co_await finish_stream(call);
  auto relayed = co_await relay_decisions(call, std::move(*exchange));
  // Cut: the client sees it by the missing end.
  if (relayed) relayed = co_await call.response.finish();
  static_cast<void>(relayed);
  co_return streamed_reply();
}

async::Task<void> PolicyRoutes::relay_decisions(Call& call,
                                                std::unique_ptr<http::Exchange> exchange) {
  std::string pending;
  std::array<char, 16 * 1024> chunk{};
  for (;;) {
    // The worker says something every five seconds, if only an empty line.
    auto got = co_await async::with_deadline(base::system_clock().in(std::chrono::seconds(20)),
                                             exchange->body().read_some(chunk));
    if (!got) co_return base::passing(got);
    if (*got == 0) co_return base::Result<void>();
    pending.append(chunk.data(), *got);
    std::size_t start = 0;
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n', start)) {
      auto const line = pending.substr(start, end - start);
      start = end + 1;
      base::Result<void> sent;
      if (line.empty())
        sent = co_await http::sse_comment(call.response, "alive");
      else
        sent = co_await http::sse_event(call.response, "", "decision", line);
      if (!sent) co_return sent;
    }
    pending.erase(0, start);
    if (pending.size() > line_bytes_max)
      co_return base::fail(Code::internal, "a record of the worker is too long");
  }
}

}  // namespace controlplane
