#include "cli/verbs.hpp"
#include "wire/codec.hpp"

namespace cli {
namespace {

using namespace std::chrono_literals;

std::string share_of(json::value const& node, std::string_view what) {
  return fmt::format(
      "{}/{}", number_of(member_of(node, "used"), what), number_of(member_of(node, "total"), what));
}

std::string key_state(json::value const& key) {
  if (!text_of(key, "revoked_at").empty()) return "revoked";
  auto const expires = text_of(key, "expires_at");
  if (expires.empty()) return "valid";
  auto const left = age_of(expires, seconds_now());
  return left.ends_with("ago") ? "expired" : "valid";
}

/// A list of the API as JSON or as a table with one row per item.
asio::awaitable<int> show_list(Session session,
                               std::string target,
                               std::string member,
                               std::vector<std::string> head,
                               std::function<std::vector<std::string>(json::value const&)> row) {
  auto all = co_await list_all(session, std::move(target), member);
  if (!all) co_return session.out.fail(all.error());
  if (session.out.as_json()) {
    json::object document;
    document[member] = std::move(*all);
    session.out.document(document);
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  for (auto const& one : *all)
    rows.push_back(row(one));
  session.out.table(head, rows);
  co_return 0;
}

}  // namespace

asio::awaitable<int> key_create(Session session, KeyOptions options) {
  json::object body{{"name", options.name}};
  if (!options.role.empty()) body["role"] = options.role;
  if (!options.project.empty()) body["project"] = options.project;
  if (options.installation) body["installation"] = true;
  if (!options.expires_in.empty()) {
    auto seconds = parse_duration(options.expires_in);
    if (!seconds) co_return session.out.fail(seconds.error());
    body["expires_in_s"] = *seconds;
  }
  auto key = co_await session.api.call("POST", "/v1/keys", std::move(body), in_a_minute());
  if (!key) co_return session.out.fail(key.error());
  if (session.out.as_json()) {
    session.out.document(*key);
    co_return 0;
  }
  session.out.line(text_of(*key, "key"));
  session.out.note(
      fmt::format("This is the only time that the key is shown. Use it: export SPACE_API_KEY=…   "
                  "Revoke it: space key revoke {}",
                  text_of(*key, "id")));
  co_return 0;
}

asio::awaitable<int> key_list(Session session) {
  auto const now = seconds_now();
  auto row = [now](json::value const& one) -> std::vector<std::string> {
    auto const used = text_of(one, "last_used_at");
    return {text_of(one, "id"),
            text_of(one, "name"),
            text_of(one, "role"),
            text_of(one, "prefix"),
            key_state(one),
            used.empty() ? "never" : age_of(used, now)};
  };
  std::vector<std::string> head = {"ID", "NAME", "ROLE", "PREFIX", "STATE", "USED"};
  return show_list(session, "/v1/keys", "keys", std::move(head), row);
}

asio::awaitable<int> key_revoke(Session session, std::string id) {
  auto key = co_await session.api.call("DELETE", path_of("keys", id), nullptr, in_a_minute());
  if (!key) co_return session.out.fail(key.error(), "See the keys: space key list");
  if (session.out.as_json())
    session.out.document(*key);
  else
    session.out.line(text_of(*key, "id"));
  co_return 0;
}

asio::awaitable<int> template_list(Session session) {
  auto const now = seconds_now();
  auto row = [now](json::value const& one) -> std::vector<std::string> {
    auto const& build = member_of(one, "latest");
    return {text_of(one, "name"),
            text_of(one, "id"),
            fmt::format("{}", number_of(build, "vcpus")),
            fmt::format("{}", number_of(build, "memory_mib")),
            fmt::format("{}", number_of(build, "disk_mib")),
            fmt::format("{}", number_of(one, "builds")),
            age_of(text_of(one, "updated_at"), now)};
  };
  std::vector<std::string> head = {
      "NAME", "ID", "VCPUS", "MEMORY_MIB", "DISK_MIB", "BUILDS", "CHANGED"};
  return show_list(session, "/v1/templates", "templates", std::move(head), row);
}

asio::awaitable<int> node_list(Session session) {
  auto row = [](json::value const& one) -> std::vector<std::string> {
    auto const boundary =
        member_of(one, "boundary").is_bool() && member_of(one, "boundary").as_bool();
    auto const draining =
        member_of(one, "draining").is_bool() && member_of(one, "draining").as_bool();
    return {text_of(one, "name"),
            draining ? "draining" : text_of(one, "state"),
            fmt::format("{}+{}", text_of(one, "driver"), text_of(one, "accelerator")),
            boundary ? "yes" : "no",
            share_of(one, "sandboxes"),
            share_of(one, "vcpus"),
            share_of(one, "memory_mib"),
            share_of(one, "disk_mib")};
  };
  std::vector<std::string> head = {
      "NAME", "STATE", "DRIVER", "BOUNDARY", "SANDBOXES", "VCPUS", "MEMORY_MIB", "DISK_MIB"};
  return show_list(session, "/v1/nodes", "nodes", std::move(head), row);
}

asio::awaitable<int> operation_show(Session session, std::string id, std::string wait) {
  std::uint32_t seconds = 0;
  if (!wait.empty()) {
    auto parsed = parse_duration(wait);
    if (!parsed) co_return session.out.fail(parsed.error());
    seconds = std::min<std::uint32_t>(*parsed, 600);
  }
  auto const deadline = base::system_clock().in(std::chrono::seconds(seconds) + 30s);
  auto operation = co_await session.api.call(
      "GET", path_of("operations", id, fmt::format("?wait={}", seconds)), nullptr, deadline);
  if (!operation) co_return session.out.fail(operation.error());
  auto const state = text_of(*operation, "state");
  if (session.out.as_json()) {
    session.out.document(*operation);
  } else {
    session.out.table({"ID", "KIND", "SANDBOX", "STATE", "CREATED"},
                      {{text_of(*operation, "id"),
                        text_of(*operation, "kind"),
                        text_of(*operation, "sandbox"),
                        state,
                        text_of(*operation, "created_at")}});
  }
  if (state == "failed") {
    auto const& error = member_of(*operation, "error");
    co_return session.out.fail(
        {base::code_named(text_of(error, "code")), text_of(error, "message")});
  }
  if (state == "running" && seconds > 0)
    co_return base::exit_code_of(base::Code::deadline_exceeded);
  co_return 0;
}

asio::awaitable<int> events(Session session, EventOptions options) {
  std::size_t shown = 0;
  auto last = options.from;
  for (auto pause = 100ms;; pause = std::min<std::chrono::milliseconds>(pause * 2, 5s)) {
    auto target = options.sandbox.empty() ? std::string("/v1/events")
                                          : path_of("sandboxes", options.sandbox, "/events");
    http::Headers headers{{"Accept", "text/event-stream"}};
    if (!last.empty()) headers.add("Last-Event-ID", last);
    auto exchange = co_await session.api.stream(
        "GET", std::move(target), {}, std::move(headers), in_a_minute());
    if (!exchange && !base::may_retry(exchange.error().code()))
      co_return session.out.fail(exchange.error());
    if (!exchange && shown == 0 && last.empty())
      co_return session.out.fail(exchange.error(), "What is wrong: space doctor");
    EventParser parser;
    std::string buffer(65536, '\0');
    while (exchange) {
      auto got = co_await (*exchange)->body().read_some(buffer);
      if (!got || *got == 0) break;
      std::vector<ServerEvent> arrived;
      if (!parser.feed(std::string_view(buffer).substr(0, *got), arrived))
        co_return session.out.fail({base::Code::internal, "the event stream is broken"});
      for (auto const& event : arrived) {
        auto data = wire::parse_json(event.data, 8U << 20);
        auto const value = data ? *data : json::value(nullptr);
        if (session.out.as_json())
          session.out.document(value);
        else
          session.out.line(fmt::format("{}  {:<24} {}  {}",
                                       text_of(value, "at"),
                                       event.type,
                                       text_of(value, "sandbox"),
                                       text_of(value, "actor")));
        last = event.id;
        pause = 100ms;
        if (++shown == options.count) co_return 0;
      }
    }
    // Cut: go on where it was, without gap or repeat.
    co_await async::sleep_for(pause);
  }
}

}  // namespace cli
