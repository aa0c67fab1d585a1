#include "cli/policy_verbs.hpp"

#include "cli/verbs.hpp"
#include "http/message.hpp"
#include "wire/codec.hpp"

namespace cli {
namespace {

using namespace std::chrono_literals;

/// Where the policy of a target is in the API. A bare level is the key's own.
async::Task<std::string> path_of_target(Session session, std::string target) {
  auto const colon = target.find(':');
  auto const level = target.substr(0, colon);
  auto subject = colon == std::string::npos ? std::string() : target.substr(colon + 1);
  if (level == "platform") co_return std::string("/v1/policies/platform/-");
  if (level == "project" || level == "organisation") {
    if (subject.empty()) {
      auto me = co_await session.api.call("GET", "/v1/me", nullptr, in_a_minute());
      if (!me) co_return base::passing(me);
      subject = text_of(*me, level);
    }
    co_return fmt::format("/v1/policies/{}/{}", level, http::percent_encode(subject));
  }
  if (level == "template") {
    if (subject.empty())
      co_return base::fail(base::Code::invalid_argument, "say which template: template:NAME");
    co_return fmt::format("/v1/policies/template/{}", http::percent_encode(subject));
  }
  if (colon != std::string::npos)
    co_return base::fail(base::Code::invalid_argument,
                         fmt::format("\"{}\" is neither a sandbox nor platform, organisation, "
                                     "project or template:NAME",
                                     target));
  co_return path_of("sandboxes", target, "/policy");
}

void add_rows(json::value const& level, std::vector<std::vector<std::string>>& rows) {
  auto const& policy = member_of(level, "policy");
  auto const* rules = member_of(policy, "rules").if_array();
  auto const head = [&](std::string rule, std::string action) -> std::vector<std::string> {
    return {text_of(level, "level"),
            fmt::format("{}", number_of(level, "version")),
            text_of(policy, "posture"),
            std::move(rule),
            std::move(action)};
  };
  auto const& cidr = member_of(policy, "cidr");
  for (auto const* action : {"deny", "allow"}) {
    auto const networks = joined(member_of(cidr, action));
    if (networks.empty()) continue;
    auto row = head("cidr", action);
    for (auto cell : {networks, std::string(), std::string(), std::string(), std::string()})
      row.push_back(std::move(cell));
    rows.push_back(std::move(row));
  }
  if (!rules || rules->empty()) {
    auto row = head("-", "-");
    row.resize(10);
    rows.push_back(std::move(row));
    return;
  }
  for (auto const& rule : *rules) {
    auto row = head(text_of(rule, "id"), text_of(rule, "action"));
    auto const& http = member_of(rule, "http");
    std::string credentials;
    if (auto const* inject = member_of(rule, "inject").if_array())
      for (auto const& one : *inject)
        credentials += (credentials.empty() ? "" : ",") + text_of(one, "credential");
    row.push_back(joined(member_of(rule, "hosts")));
    row.push_back(joined(member_of(rule, "ports")));
    row.push_back(joined(member_of(http, "methods")));
    row.push_back(joined(member_of(http, "paths")));
    row.push_back(std::move(credentials));
    rows.push_back(std::move(row));
  }
}

void show_warnings(Session session, json::value const& answer) {
  if (auto const* warnings = member_of(answer, "warnings").if_array())
    for (auto const& one : *warnings)
      session.out.note(fmt::format("warning: {}", std::string_view(one.as_string())));
  if (auto const note = text_of(answer, "note"); !note.empty()) session.out.note(note);
}

/// What a change came to: its version, what was changed, and every sandbox where it does not hold.
int show_change(Session session, json::value const& answer) {
  if (session.out.as_json()) {
    session.out.document(answer);
    return 0;
  }
  session.out.line(
      fmt::format("{} version {}", text_of(answer, "level"), number_of(answer, "version")));
  if (auto const* diff = member_of(answer, "diff").if_array())
    for (auto const& one : *diff)
      session.out.line(fmt::format("  {}", std::string_view(one.as_string())));
  show_warnings(session, answer);
  if (auto const* sandboxes = member_of(answer, "sandboxes").if_array()) {
    for (auto const& one : *sandboxes) {
      auto const note = text_of(one, "note");
      if (note.empty())
        session.out.note(fmt::format("in force on {} ({} connections, {} cut)",
                                     text_of(one, "sandbox"),
                                     number_of(one, "connections"),
                                     number_of(one, "cut")));
      else
        session.out.note(fmt::format("not in force on {}: {}", text_of(one, "sandbox"), note));
    }
  }
  return 0;
}

/// What the level's sandboxes may do together is nobody's rule, hence in no row.
void show_together(Session session, json::value const& level) {
  auto const& together = member_of(member_of(member_of(level, "policy"), "budgets"), "together");
  if (together.is_object())
    session.out.line(fmt::format("All sandboxes of the {} together on a node: {}",
                                 text_of(level, "level"),
                                 wire::to_text(together)));
}

}  // namespace

asio::awaitable<int> policy_show(Session session, std::string target) {
  auto path = co_await path_of_target(session, target);
  if (!path) co_return session.out.fail(path.error());
  auto answer = co_await session.api.call("GET", *path, nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  if (session.out.as_json()) {
    session.out.document(*answer);
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  bool const effective = answer->as_object().contains("levels");
  if (effective)
    for (auto const& level : member_of(*answer, "levels").as_array())
      add_rows(level, rows);
  else
    add_rows(*answer, rows);
  session.out.table({"LEVEL",
                     "VERSION",
                     "POSTURE",
                     "RULE",
                     "ACTION",
                     "HOSTS",
                     "PORTS",
                     "METHODS",
                     "PATHS",
                     "CREDENTIALS"},
                    rows);
  if (effective)
    for (auto const& level : member_of(*answer, "levels").as_array())
      show_together(session, level);
  else
    show_together(session, *answer);
  if (effective) session.out.note(fmt::format("generation {}", number_of(*answer, "generation")));
  show_warnings(session, *answer);
  co_return 0;
}

asio::awaitable<int> policy_set(Session session, PolicySetOptions options) {
  auto policy = policy_of(options.allow, options.policy_file);
  if (!policy) co_return session.out.fail(policy.error());
  if (!*policy)
    co_return session.out.fail(
        {base::Code::invalid_argument, "say what is allowed: --allow HOST, or --policy FILE"});
  auto path = co_await path_of_target(session, options.target);
  if (!path) co_return session.out.fail(path.error());
  auto wanted = std::move(**policy);
  if (options.add) {
    auto now = co_await session.api.call("GET", *path, nullptr, in_a_minute());
    if (!now && now.error().code() != base::Code::not_found)
      co_return session.out.fail(now.error());
    std::int64_t version = 0;
    json::object own = empty_policy();
    auto const take = [&](json::value const& level) {
      if (!member_of(level, "policy").is_object()) return;
      own = member_of(level, "policy").as_object();
      version = number_of(level, "version");
    };
    if (now && now->as_object().contains("levels")) {
      for (auto const& level : member_of(*now, "levels").as_array())
        if (text_of(level, "level") == "sandbox") take(level);
    } else if (now) {
      take(*now);
    }
    if (!own.contains("rules")) own["rules"] = json::array();
    auto& rules = own["rules"].as_array();
    for (auto& rule : wanted["rules"].as_array()) {
      rule.as_object()["id"] = fmt::format("allow-{}-{}", version + 1, rules.size() + 1);
      rules.push_back(std::move(rule));
    }
    if (auto const* more = member_of(wanted, "cidr").if_object()) {
      auto& cidr = own["cidr"];
      if (!cidr.is_object()) cidr = json::object();
      auto& list = cidr.as_object()["allow"];
      if (!list.is_array()) list = json::array();
      for (auto const& network : more->at("allow").as_array())
        list.as_array().push_back(network);
    }
    if (text_of(own, "posture") == "blocked") own["posture"] = "allowlist";
    wanted = std::move(own);
    // Over nothing else than what was read; one that was taken away has a version all the same.
    if (version > 0) *path += fmt::format("?if_version={}", version);
  }
  auto answer = co_await session.api.call("PUT", *path, std::move(wanted), in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  co_return show_change(session, *answer);
}

asio::awaitable<int> policy_remove(Session session, std::string target) {
  auto path = co_await path_of_target(session, target);
  if (!path) co_return session.out.fail(path.error());
  auto answer = co_await session.api.call("DELETE", *path, nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  co_return show_change(session, *answer);
}

asio::awaitable<int> policy_versions(Session session, std::string target) {
  auto path = co_await path_of_target(session, target);
  if (!path) co_return session.out.fail(path.error());
  if (path->starts_with("/v1/sandboxes/"))
    *path = "/v1/policies/sandbox/" + http::percent_encode(target);
  auto answer = co_await session.api.call("GET", *path + "/versions", nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  if (session.out.as_json()) {
    session.out.document(*answer);
    co_return 0;
  }
  for (auto const& one : member_of(*answer, "versions").as_array()) {
    session.out.line(fmt::format("version {}  {}  {}",
                                 number_of(one, "version"),
                                 text_of(one, "updated_at"),
                                 text_of(one, "actor")));
    for (auto const& line : member_of(one, "diff").as_array())
      session.out.line(fmt::format("  {}", std::string_view(line.as_string())));
  }
  co_return 0;
}

asio::awaitable<int> policy_explain(Session session, ExplainOptions options) {
  auto const method = options.method.empty() ? std::string("GET") : options.method;
  auto const target = path_of("sandboxes",
                              options.sandbox,
                              fmt::format("/policy/explain?url={}&method={}",
                                          http::percent_encode(options.url),
                                          http::percent_encode(method)));
  auto answer = co_await session.api.call("GET", target, nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  bool const allowed =
      member_of(*answer, "allowed").is_bool() && member_of(*answer, "allowed").as_bool();
  if (session.out.as_json()) {
    session.out.document(*answer);
    co_return allowed ? 0 : 1;
  }
  auto const rule = text_of(*answer, "rule");
  session.out.line(fmt::format("{}: {} (level {}{})",
                               allowed ? "allowed" : "refused",
                               text_of(*answer, "reason"),
                               text_of(*answer, "level"),
                               rule.empty() ? "" : ", rule " + rule));
  session.out.line(text_of(*answer, "sentence"));
  if (auto const credentials = joined(member_of(*answer, "credentials")); !credentials.empty())
    session.out.line("With credential " + credentials + ".");
  if (auto const& limits = member_of(*answer, "limits"); limits.is_array())
    for (auto const& one : limits.as_array()) {
      auto const level = text_of(one, "together");
      session.out.line(fmt::format(
          "Limited by {}: {}",
          level.empty() ? "rule " + text_of(one, "rule")
                        : fmt::format("what all sandboxes of the {} may do together", level),
          wire::to_text(member_of(one, "limits"))));
    }
  show_warnings(session, *answer);
  co_return allowed ? 0 : 1;
}

asio::awaitable<int> policy_watch(Session session, WatchOptions options) {
  auto exchange = co_await session.api.stream("GET",
                                              path_of("sandboxes", options.sandbox, "/decisions"),
                                              {},
                                              {{"Accept", "text/event-stream"}},
                                              in_a_minute());
  if (!exchange) co_return session.out.fail(exchange.error());
  EventParser parser;
  std::string buffer(65536, '\0');
  for (std::size_t shown = 0;;) {
    auto got = co_await (*exchange)->body().read_some(buffer);
    if (!got) co_return session.out.fail({base::Code::unavailable, "the stream was cut"});
    if (*got == 0) co_return 0;  // the sandbox has ended
    std::vector<ServerEvent> arrived;
    if (!parser.feed(std::string_view(buffer).substr(0, *got), arrived))
      co_return session.out.fail({base::Code::internal, "the stream is broken"});
    for (auto const& event : arrived) {
      auto one = wire::parse_json(event.data);
      if (!one) continue;
      if (session.out.as_json()) {
        session.out.document(*one);
      } else {
        auto const port = number_of(*one, "port");
        auto const host = text_of(*one, "host");
        auto const rule = text_of(*one, "rule");
        session.out.line(fmt::format("{}  {:<8} {:<12} {}{} {} {}  {}{}",
                                     text_of(*one, "time"),
                                     text_of(*one, "decision"),
                                     text_of(*one, "kind"),
                                     host.empty() ? text_of(*one, "address") : host,
                                     port > 0 ? fmt::format(":{}", port) : "",
                                     text_of(*one, "method"),
                                     text_of(*one, "path"),
                                     text_of(*one, "reason"),
                                     rule.empty() ? "" : " (" + rule + ")"));
      }
      if (++shown == options.count) co_return 0;
    }
  }
}

asio::awaitable<int> policy_suggest(Session session, std::string sandbox) {
  auto answer = co_await session.api.call(
      "GET", path_of("sandboxes", sandbox, "/policy/suggestions"), nullptr, in_a_minute());
  if (!answer) co_return session.out.fail(answer.error());
  if (session.out.as_json()) {
    session.out.document(*answer);
    co_return 0;
  }
  auto const& rules = member_of(*answer, "rules").as_array();
  for (auto const& rule : rules) {
    auto const text = allow_text(rule);
    if (text.empty())
      session.out.line(wire::to_text(rule));
    else
      session.out.line(fmt::format("--allow '{}'", text));
  }
  if (rules.empty())
    session.out.note("Nothing was denied that a rule would allow.");
  else
    session.out.note(fmt::format(
        "Names are as the sandbox wrote them; allow only what you know. Take one: space policy "
        "allow {} HOST",
        sandbox));
  show_warnings(session, *answer);
  co_return 0;
}

}  // namespace cli
