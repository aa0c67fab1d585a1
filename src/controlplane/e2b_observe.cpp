// Metrics and logs.
#include "controlplane/e2b_routes.hpp"
#include "domain/template_name.hpp"

#include <algorithm>

namespace controlplane::e2b {
namespace {

using base::Code;

constexpr std::uint32_t samples_max = 5000;  // six hours at one in five seconds
constexpr std::size_t many_max = 100;
constexpr std::int64_t log_entries_max = 1000;
constexpr std::int64_t far_future_s = 253'402'300'799;  // the year 9999

base::WallTime at_seconds(std::int64_t seconds) {
  return wall_time_of(std::chrono::seconds(seconds));
}

std::int64_t milliseconds_of(base::WallTime time) {
  return std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

std::string_view level_of(store::EventRow const& event) {
  return event.type == "sandbox.failed" ? "error" : "info";
}

/// "sandbox.deleted: its timeout was over"
std::string message_of(store::EventRow const& event) {
  auto const* data = event.data.if_object();
  auto const* detail = data ? data->if_contains("detail") : nullptr;
  if (!detail || !detail->is_string() || detail->as_string().empty()) return event.type;
  return event.type + ": " + std::string(detail->as_string());
}

json::object entry_of(store::EventRow const& event) {
  json::object fields{{"logger", "space"}, {"actor", event.actor}};
  return {{"timestamp", base::to_rfc3339(event.created_at)},
          {"message", message_of(event)},
          {"level", level_of(event)},
          {"fields", std::move(fields)}};
}

int rank_of(std::string_view level) {
  constexpr std::array<std::string_view, 4> levels{"debug", "info", "warn", "error"};
  auto const found = std::ranges::find(levels, level);
  return found == levels.end() ? -1 : static_cast<int>(found - levels.begin());
}

}  // namespace

void E2b::add_observe_routes(Router& router) {
  auto const add = [&](std::string pattern, Handler handler) {
    add_route(router, "GET", std::move(pattern), std::move(handler));
  };
  add("/sandboxes/metrics", [this](Call& call) { return metrics_of_many(call); });
  add("/sandboxes/{id}/metrics", [this](Call& call) { return metrics(call); });
  add("/sandboxes/{id}/logs", [this](Call& call) { return logs(call); });
  add("/v2/sandboxes/{id}/logs", [this](Call& call) { return logs_v2(call); });
}

async::Task<Reply> E2b::metrics(Call& call) {
  auto const start = query_number(call, "start", 0, far_future_s);
  if (!start) co_return std::unexpected(start.error());
  auto const end = query_number(call, "end", 0, far_future_s);
  if (!end) co_return std::unexpected(end.error());
  if (*start && *end && **start > **end)
    co_return base::fail(Code::invalid_argument, "start: must not be after end");
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  auto const time_of = [](std::optional<std::int64_t> seconds) {
    return seconds ? std::optional(at_seconds(*seconds)) : std::nullopt;
  };
  auto samples = co_await store_.metrics.list(
      row->public_id, time_of(*start), time_of(*end), samples_max, call.deadline);
  if (!samples) co_return base::passing(samples);
  json::array array;
  for (auto const& sample : *samples)
    array.push_back(metric_reply(sample));
  co_return json_reply(200, array);
}

async::Task<Reply> E2b::metrics_of_many(Call& call) {
  std::vector<std::string> asked;
  for (auto const& [name, value] : call.query) {
    if (name != "sandbox_ids") continue;
    for (std::string_view rest = value; !rest.empty();) {
      auto const comma = rest.find(',');
      auto const id = domain::sandbox_id_in(rest.substr(0, comma));
      if (id.empty())
        co_return base::fail(Code::invalid_argument,
                             "sandbox_ids: expected sandbox ids, with commas between them");
      asked.emplace_back(id);
      rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    }
  }
  if (asked.size() > many_max)
    co_return base::fail(Code::invalid_argument, fmt::format("sandbox_ids: at most {}", many_max));
  std::vector<std::string> own;
  for (auto const& id : asked) {
    auto row = co_await service_.get(
        call.owner.project_id, id, SandboxService::Ended::hide, call.deadline);
    if (row) own.push_back(id);
    if (!row && row.error().code() != Code::not_found) co_return base::passing(row);
  }
  auto samples = co_await store_.metrics.latest(std::move(own), call.deadline);
  if (!samples) co_return base::passing(samples);
  json::object by_id;
  for (auto const& sample : *samples)
    by_id[sample.sandbox] = metric_reply(sample);
  co_return json_reply(200, json::object{{"sandboxes", std::move(by_id)}});
}

/// What happened to the sandbox, as log lines. There are few, so that one read gets them all.
async::Task<Reply> E2b::logs(Call& call) {
  auto const start = query_number(call, "start", 0, far_future_s * 1000);
  if (!start) co_return std::unexpected(start.error());
  auto const limit = query_number(call, "limit", 1, log_entries_max);
  if (!limit) co_return std::unexpected(limit.error());
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  auto events = co_await store_.events.read_of(
      call.owner.project_id, row->public_id, {}, log_entries_max, call.deadline);
  if (!events) co_return base::passing(events);
  json::array lines;
  json::array entries;
  for (auto const& event : *events) {
    if (milliseconds_of(event.created_at) < start->value_or(0)) continue;
    if (static_cast<std::int64_t>(entries.size()) >= limit->value_or(log_entries_max)) break;
    lines.push_back(json::object{{"timestamp", base::to_rfc3339(event.created_at)},
                                 {"line", message_of(event)}});
    entries.push_back(entry_of(event));
  }
  co_return json_reply(
      200, json::object{{"logs", std::move(lines)}, {"logEntries", std::move(entries)}});
}

async::Task<Reply> E2b::logs_v2(Call& call) {
  auto const cursor = query_number(call, "cursor", 0, far_future_s * 1000);
  if (!cursor) co_return std::unexpected(cursor.error());
  auto const limit = query_number(call, "limit", 1, log_entries_max);
  if (!limit) co_return std::unexpected(limit.error());
  auto const direction = call.query_value("direction").value_or("forward");
  if (direction != "forward" && direction != "backward") {
    co_return base::fail(Code::invalid_argument, "direction: expected forward or backward");
  }
  auto const level = call.query_value("level").value_or("debug");
  if (rank_of(level) < 0)
    co_return base::fail(Code::invalid_argument, "level: expected debug, info, warn or error");
  auto const search = call.query_value("search").value_or("");
  if (search.size() > 256)
    co_return base::fail(Code::invalid_argument, "search: at most 256 characters");
  auto row = co_await visible(call);
  if (!row) co_return base::passing(row);
  auto events = co_await store_.events.read_of(
      call.owner.project_id, row->public_id, {}, log_entries_max, call.deadline);
  if (!events) co_return base::passing(events);
  bool const backward = direction == "backward";
  if (backward) std::ranges::reverse(*events);
  json::array entries;
  for (auto const& event : *events) {
    auto const at = milliseconds_of(event.created_at);
    if (*cursor && (backward ? at > **cursor : at < **cursor)) continue;
    if (rank_of(level_of(event)) < rank_of(level) || !message_of(event).contains(search)) continue;
    if (static_cast<std::int64_t>(entries.size()) >= limit->value_or(log_entries_max)) break;
    entries.push_back(entry_of(event));
  }
  co_return json_reply(200, json::object{{"logs", std::move(entries)}});
}

}  // namespace controlplane::e2b
