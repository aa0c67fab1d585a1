#include "cli/life_verbs.hpp"

#include "http/message.hpp"

namespace cli {
namespace {

using namespace std::chrono_literals;

constexpr int wait_seconds = 300;

std::string_view next_step_for(base::Code code) {
  switch (code) {
    case base::Code::not_found:
      return "See what there is: space sandbox list";
    case base::Code::conflict:
      return "See how it is: space sandbox show ID";
    case base::Code::exhausted:
      return "Make room: space sandbox list; space sandbox suspend ID; space sandbox rm ID";
    case base::Code::unavailable:
      return "What is wrong: space doctor";
    default:
      return {};
  }
}

base::Deadline in_long() {
  return base::system_clock().in(std::chrono::seconds(wait_seconds + 30));
}

}  // namespace

asio::awaitable<int> sandbox_move(Session session, MoveOptions options) {
  json::object body;
  if (!options.timeout.empty()) {
    auto seconds = parse_duration(options.timeout);
    if (!seconds) co_return session.out.fail(seconds.error());
    body["timeout_s"] = *seconds;
  }
  int worst = 0;
  for (auto const& id : options.ids) {
    auto const below = fmt::format(
        "/{}{}", options.verb, options.no_wait ? "" : fmt::format("?wait={}", wait_seconds));
    json::value const sent = body.empty() ? json::value(nullptr) : json::value(body);
    auto done = co_await session.api.call("POST", path_of("sandboxes", id, below), sent, in_long());
    if (!done) {
      worst = session.out.fail(done.error(), next_step_for(done.error().code()));
      continue;
    }
    if (session.out.as_json())
      session.out.document(*done);
    else
      session.out.line(id);
    bool const under_way = text_of(member_of(*done, "operation"), "state") == "running";
    if (under_way && !options.no_wait) {
      session.out.note(
          fmt::format("It takes longer. Wait for it: space operation show {} --wait 60s",
                      text_of(member_of(*done, "operation"), "id")));
      worst = base::exit_code_of(base::Code::deadline_exceeded);
    }
  }
  co_return worst;
}

asio::awaitable<int> sandbox_fork(Session session, ForkOptions options) {
  json::object body{{"count", options.count}};
  if (!options.timeout.empty()) {
    auto seconds = parse_duration(options.timeout);
    if (!seconds) co_return session.out.fail(seconds.error());
    body["timeout_s"] = *seconds;
  }
  auto forked = co_await session.api.call(
      "POST", path_of("sandboxes", options.sandbox, "/fork"), std::move(body), in_long());
  if (!forked) co_return session.out.fail(forked.error(), next_step_for(forked.error().code()));
  if (session.out.as_json()) session.out.document(*forked);
  int worst = 0;
  auto const* copies = member_of(*forked, "forks").if_array();
  for (auto const& one : copies ? *copies : json::array()) {
    auto const id = text_of(member_of(one, "sandbox"), "id");
    if (!id.empty() && !session.out.as_json()) session.out.line(id);
    if (!id.empty()) continue;
    auto const& error = member_of(one, "error");
    worst = session.out.fail({base::code_named(text_of(error, "code")), text_of(error, "message")});
  }
  co_return worst;
}

asio::awaitable<int> sandbox_snapshot(Session session, SnapshotOptions options) {
  json::object body;
  if (!options.name.empty()) body["name"] = options.name;
  if (!options.expires_in.empty()) {
    auto seconds = parse_duration(options.expires_in);
    if (!seconds) co_return session.out.fail(seconds.error());
    body["expires_in_s"] = *seconds;
  }
  auto const below = fmt::format("/snapshots?wait={}", wait_seconds);
  auto taken = co_await session.api.call(
      "POST", path_of("sandboxes", options.sandbox, below), std::move(body), in_long());
  if (!taken) co_return session.out.fail(taken.error(), next_step_for(taken.error().code()));
  if (session.out.as_json())
    session.out.document(*taken);
  else
    session.out.line(text_of(member_of(*taken, "snapshot"), "id"));
  co_return 0;
}

asio::awaitable<int> snapshot_list(Session session, std::string sandbox) {
  std::string target = "/v1/snapshots?limit=100";
  if (!sandbox.empty()) target += "&sandbox=" + http::percent_encode(sandbox);
  auto all = co_await list_all(session, std::move(target), "snapshots");
  if (!all) co_return session.out.fail(all.error());
  if (session.out.as_json()) {
    session.out.document(json::object{{"snapshots", std::move(*all)}});
    co_return 0;
  }
  std::vector<std::vector<std::string>> rows;
  auto const now = seconds_now();
  for (auto const& one : *all) {
    auto const expires = text_of(one, "expires_at");
    rows.push_back({text_of(one, "id"),
                    text_of(one, "name"),
                    text_of(one, "state"),
                    text_of(one, "source"),
                    text_of(one, "template"),
                    fmt::format("{}", number_of(one, "bytes") >> 20),
                    age_of(text_of(one, "created_at"), now),
                    expires.empty() ? "never" : age_of(expires, now)});
  }
  session.out.table({"ID", "NAME", "STATE", "OF", "TEMPLATE", "MIB", "TAKEN", "EXPIRES"}, rows);
  co_return 0;
}

asio::awaitable<int> snapshot_remove(Session session, std::vector<std::string> ids) {
  int worst = 0;
  for (auto const& id : ids) {
    auto done =
        co_await session.api.call("DELETE", path_of("snapshots", id), nullptr, in_a_minute());
    if (!done) {
      worst = session.out.fail(done.error(), "See what there is: space snapshot list");
      continue;
    }
    if (!session.out.as_json()) session.out.line(id);
  }
  co_return worst;
}

asio::awaitable<int> node_drain(Session session, DrainOptions options) {
  auto const path = path_of("nodes", options.node, "/drain");
  auto node =
      co_await session.api.call("POST", path, json::object{{"on", !options.off}}, in_a_minute());
  if (!node) co_return session.out.fail(node.error(), "See the hosts: space node list");
  auto const until = base::system_clock().in(std::chrono::seconds(wait_seconds));
  bool const waits = !options.off && !options.no_wait;
  auto const used = [&node] { return number_of(member_of(*node, "used"), "sandboxes"); };
  while (waits && used() > 0 && base::system_clock().steady_now() < until) {
    co_await async::sleep_for(1s);
    auto now =
        co_await session.api.call("GET", path_of("nodes", options.node), nullptr, in_a_minute());
    if (!now) co_return session.out.fail(now.error());
    *node = std::move(*now);
  }
  if (session.out.as_json())
    session.out.document(*node);
  else
    session.out.line(options.node);
  if (waits && used() > 0) {
    co_return session.out.fail(
        {base::Code::deadline_exceeded, fmt::format("{} sandboxes still run there", used())},
        "Why: space events; space operation show ID");
  }
  co_return 0;
}

}  // namespace cli
