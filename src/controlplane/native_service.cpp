// What is about the installation: who am I, templates, nodes, operations, events.
#include "controlplane/native.hpp"
#include "controlplane/openapi.hpp"
#include "controlplane/views.hpp"

#include <boost/describe/enum_to_string.hpp>

namespace controlplane {

using base::Code;

async::Task<Reply> Native::get_health(Call&) {
  co_return empty_reply(204);
}

async::Task<Reply> Native::get_openapi(Call&) {
  Reply reply;
  reply.body = std::string(openapi_json());
  co_return reply;
}

async::Task<Reply> Native::get_me(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(
      200,
      json::object{{"key", call.owner.key_public_id},
                   {"project", call.owner.project_public_id},
                   {"organisation", call.owner.organisation_public_id},
                   {"role", boost::describe::enum_to_string(call.owner.role, "reader")},
                   {"installation", call.owner.installation},
                   {"domain", options_.domain}});
}

async::Task<Reply> Native::list_templates(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto rows = co_await store_.templates.list(call.owner.project_id, call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  co_return json_reply(200, json::object{{"templates", std::move(array)}});
}

async::Task<Reply> Native::get_template(Call& call) {
  auto const& name = call.param("template");
  auto row = co_await store_.templates.find(call.owner.project_id, name, call.deadline);
  if (!row) co_return base::passing(row);
  if (!*row)
    co_return base::fail(Code::not_found, fmt::format("there is no template \"{}\"", name));
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto builds = co_await store_.templates.builds((*row)->id, call.deadline);
  if (!builds) co_return base::passing(builds);
  auto tags = co_await store_.templates.tags((*row)->id, call.deadline);
  if (!tags) co_return base::passing(tags);
  json::array build_views;
  for (auto const& build : *builds)
    build_views.push_back(view_of(build));
  json::array tag_views;
  for (auto const& tag : *tags)
    tag_views.push_back({{"tag", tag.tag}, {"build_id", tag.build_id}});
  co_return json_reply(200,
                       json::object{{"template", view_of(**row)},
                                    {"builds", std::move(build_views)},
                                    {"tags", std::move(tag_views)}});
}

async::Task<Reply> Native::list_nodes(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  json::array array;
  for (auto const& [name, seen] : nodes_.all())
    array.push_back(view_of(seen));
  co_return json_reply(200, json::object{{"nodes", std::move(array)}});
}

async::Task<Reply> Native::get_node(Call& call) {
  auto const& name = call.param("node");
  auto const found = nodes_.all().find(name);
  if (found == nodes_.all().end())
    co_return base::fail(Code::not_found, fmt::format("there is no node \"{}\"", name));
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(200, view_of(found->second));
}

async::Task<Reply> Native::list_operations(Call& call) {
  if (auto ok = call.allow_query({"sandbox", "limit", "cursor"}); !ok) co_return base::passing(ok);
  auto const limit = limit_of(call);
  if (!limit) co_return std::unexpected(limit.error());
  auto const cursor = call.query_value("cursor").value_or("");
  if (!cursor.empty() && !base::is_short_id('x', cursor)) {
    co_return base::fail(Code::invalid_argument, "cursor: expected next_cursor of the page before");
  }
  auto rows = co_await store_.operations.list(call.owner.project_id,
                                              call.query_value("sandbox").value_or(""),
                                              *limit + 1,
                                              cursor,
                                              call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > *limit;
  if (more) rows->resize(*limit);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  json::object page{{"operations", std::move(array)}};
  if (more) page["next_cursor"] = rows->back().public_id;
  co_return json_reply(200, page);
}

async::Task<Reply> Native::get_operation(Call& call) {
  auto const wait = wait_of(call, options_.wait_max);
  auto const now = base::system_clock().steady_now();
  auto const until = now + wait.value_or(std::chrono::milliseconds(0));
  auto const& id = call.param("operation");
  auto first = co_await service_.wait(call.owner.project_id, id, now);
  if (!first) co_return base::passing(first);
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  if (!wait) co_return std::unexpected(wait.error());
  auto row = co_await service_.wait(call.owner.project_id, id, until);
  if (!row) co_return base::passing(row);
  co_return json_reply(200, view_of(*row));
}

async::Task<Reply> Native::stream_events(Call& call) {
  return stream_feed(call, std::string());
}

async::Task<Reply> Native::stream_sandbox_events(Call& call) {
  auto row = co_await service_.get(
      call.owner.project_id, call.param("sandbox"), SandboxService::Ended::show, call.deadline);
  if (!row) co_return base::passing(row);
  auto reply = co_await stream_feed(call, row->public_id);
  co_return reply;
}

async::Task<Reply> Native::stream_feed(Call& call, std::string sandbox) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  store::EventCursor from;
  if (auto const text = call.request.head.headers.find("last-event-id")) {
    auto cursor = store::parse_cursor(*text);
    if (!cursor) co_return base::passing(cursor);
    from = *cursor;
  } else {
    auto head = co_await hub_.head(call.deadline);
    if (!head) co_return base::passing(head);
    from = *head;
  }
  auto begun = co_await begin_events(call);
  if (!begun) co_return base::passing(begun);
  if (is_head_only(call)) co_return co_await finish_stream(call);
  auto following =
      follow(call, EventHub::Feed(hub_, call.owner.project_id, std::move(sandbox), from));
  auto gone = call.response.wait_client_gone();
  co_await async::race(std::move(following), std::move(gone));
  co_return streamed_reply();
}

asio::awaitable<void> Native::follow(Call& call, EventHub::Feed feed) {
  for (;;) {
    auto events = co_await feed.next(base::system_clock().in(options_.heartbeat));
    if (!events) co_return;  // cut: the client comes back with Last-Event-ID
    base::Result<void> sent;
    if (events->empty()) sent = co_await http::sse_comment(call.response, "alive");
    for (auto const& event : *events) {
      sent = co_await http::sse_event(
          call.response, store::to_text(event.cursor), event.type, wire::to_text(view_of(event)));
      if (!sent) co_return;
    }
    if (!sent) co_return;
  }
}

}  // namespace controlplane
