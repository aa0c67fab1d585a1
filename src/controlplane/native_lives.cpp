// Pause, suspend, resume, fork, snapshots, draining.
#include "controlplane/native.hpp"
#include "controlplane/views.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

struct Resume {
  std::optional<std::int64_t> timeout_s;
};
BOOST_DESCRIBE_STRUCT(Resume, (), (timeout_s))

struct Fork {
  std::int64_t count = 1;
  std::optional<std::int64_t> timeout_s;
};
BOOST_DESCRIBE_STRUCT(Fork, (), (count, timeout_s))

struct TakeSnapshot {
  std::string name;
  std::optional<std::int64_t> expires_in_s;
};
BOOST_DESCRIBE_STRUCT(TakeSnapshot, (), (name, expires_in_s))

struct Drain {
  bool on = true;
};
BOOST_DESCRIBE_STRUCT(Drain, (), (on))

constexpr std::chrono::seconds fork_wait_max{300};

base::Result<std::optional<std::uint32_t>> seconds_of(std::string_view name,
                                                      std::optional<std::int64_t> value) {
  if (!value) return std::optional<std::uint32_t>();
  if (*value < 1 || *value > std::numeric_limits<std::int32_t>::max())
    return base::fail(Code::invalid_argument,
                      fmt::format("{}: expected a number of seconds from 1 on", name));
  return std::optional(static_cast<std::uint32_t>(*value));
}

/// Where the next page begins: "<microseconds>-<id>".
std::string cursor_of(store::SnapshotRow const& row) {
  auto const micros =
      std::chrono::duration_cast<std::chrono::microseconds>(row.created_at.time_since_epoch());
  return fmt::format("{}-{}", micros.count(), row.public_id);
}

base::Result<void> set_cursor(store::SnapshotFilter& filter, std::string_view text) {
  std::int64_t micros = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), micros);
  auto const rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || micros < 0 || micros > 253'402'300'800'000'000 ||
      !rest.starts_with('-') || !base::is_short_id('s', rest.substr(1))) {
    return base::fail(Code::invalid_argument, "cursor: expected next_cursor of the page before");
  }
  filter.after_time = base::WallTime(std::chrono::microseconds(micros));
  filter.after_id = std::string(rest.substr(1));
  return {};
}

}  // namespace

// clang-format off
std::vector<Native::Row> Native::lives_table() {
  return {
      {"POST", "/v1/sandboxes/{sandbox}/pause", "pauseSandbox", Permission::write, Repeat::handler, &Native::pause_sandbox},
      {"POST", "/v1/sandboxes/{sandbox}/suspend", "suspendSandbox", Permission::write, Repeat::handler, &Native::suspend_sandbox},
      {"POST", "/v1/sandboxes/{sandbox}/resume", "resumeSandbox", Permission::write, Repeat::handler, &Native::resume_sandbox},
      {"POST", "/v1/sandboxes/{sandbox}/fork", "forkSandbox", Permission::write, Repeat::replay, &Native::fork_sandbox},
      {"POST", "/v1/sandboxes/{sandbox}/snapshots", "takeSnapshot", Permission::write, Repeat::handler, &Native::take_snapshot},
      {"GET", "/v1/snapshots", "listSnapshots", Permission::read, Repeat::none, &Native::list_snapshots},
      {"GET", "/v1/snapshots/{snapshot}", "getSnapshot", Permission::read, Repeat::none, &Native::get_snapshot},
      {"DELETE", "/v1/snapshots/{snapshot}", "deleteSnapshot", Permission::write, Repeat::none, &Native::delete_snapshot},
      {"POST", "/v1/nodes/{node}/drain", "drainNode", Permission::installation, Repeat::replay, &Native::drain_node},
  };
}

// clang-format on

async::Task<Reply> Native::stop_sandbox(Call& call, Stop stop) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  auto const wait = wait_of(call, options_.wait_max);
  if (!wait) co_return std::unexpected(wait.error());
  auto started = co_await (service_.*stop)(asker_of(call), row->public_id, call.deadline);
  if (!started) co_return base::passing(started);
  auto reply = co_await answer_change(call, std::move(*started), *wait, 200);
  co_return reply;
}

async::Task<Reply> Native::pause_sandbox(Call& call) {
  return stop_sandbox(call, &SandboxService::pause);
}

async::Task<Reply> Native::suspend_sandbox(Call& call) {
  return stop_sandbox(call, &SandboxService::suspend);
}

async::Task<Reply> Native::resume_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  auto const wait = wait_of(call, options_.wait_max);
  if (!wait) co_return std::unexpected(wait.error());
  auto body = decode_body<Resume>(call);
  if (!body) co_return base::passing(body);
  auto const timeout = seconds_of("timeout_s", body->timeout_s);
  if (!timeout) co_return std::unexpected(timeout.error());
  auto started = co_await service_.resume(asker_of(call), row->public_id, *timeout, call.deadline);
  if (!started) co_return base::passing(started);
  auto reply = co_await answer_change(call, std::move(*started), *wait, 200);
  co_return reply;
}

async::Task<Reply> Native::fork_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto body = decode_body<Fork>(call);
  if (!body) co_return base::passing(body);
  if (body->count < 1 || body->count > 100)
    co_return base::fail(Code::invalid_argument, "count: expected 1 to 100");
  auto const timeout = seconds_of("timeout_s", body->timeout_s);
  if (!timeout) co_return std::unexpected(timeout.error());
  auto copies = co_await service_.fork(asker_of(call),
                                       row->public_id,
                                       static_cast<std::uint32_t>(body->count),
                                       *timeout,
                                       base::system_clock().in(fork_wait_max));
  if (!copies) co_return base::passing(copies);
  json::array shown;
  json::array kept;  // a replay shows no tokens
  for (auto const& copy : *copies) {
    if (copy) {
      shown.push_back(json::object{{"sandbox", full_view(call, copy->sandbox)}});
      kept.push_back(json::object{{"sandbox", view_of(copy->sandbox)}});
      continue;
    }
    json::object const error{{"code", base::name_of(copy.error().code())},
                             {"message", copy.error().message()}};
    shown.push_back(json::object{{"error", error}});
    kept.push_back(json::object{{"error", error}});
  }
  auto reply = json_reply(201, json::object{{"forks", std::move(shown)}});
  reply.kept_body = wire::to_text(json::object{{"forks", std::move(kept)}});
  co_return reply;
}

async::Task<Reply> Native::take_snapshot(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  auto const wait = wait_of(call, options_.wait_max);
  if (!wait) co_return std::unexpected(wait.error());
  auto body = decode_body<TakeSnapshot>(call);
  if (!body) co_return base::passing(body);
  if (!body->name.empty()) {
    if (auto ok = check_name(body->name); !ok) co_return base::passing(ok);
  }
  auto const expires = seconds_of("expires_in_s", body->expires_in_s);
  if (!expires) co_return std::unexpected(expires.error());
  SnapshotSpec spec;
  spec.name = std::move(body->name);
  spec.expires_in_s = *expires;
  auto started =
      co_await service_.snapshot(asker_of(call), row->public_id, std::move(spec), call.deadline);
  if (!started) co_return base::passing(started);
  if (wait->count() > 0 && !started->operation.done()) {
    auto waited = co_await service_.wait(
        call.owner.project_id, started->operation.public_id, base::system_clock().in(*wait));
    if (!waited) co_return base::passing(waited);
    started->operation = std::move(*waited);
  }
  auto const& operation = started->operation;
  if (operation.state == "failed") {
    co_return base::fail(
        base::code_named(operation.error_code),
        fmt::format("{} {}: {}", operation.kind, operation.sandbox, operation.error_message));
  }
  if (operation.done()) {
    auto now = co_await service_.get_snapshot(call.owner.project_id,
                                              started->snapshot.public_id,
                                              base::system_clock().in(std::chrono::seconds(5)));
    if (now) started->snapshot = std::move(*now);
  }
  co_return json_reply(
      operation.done() ? 201 : 202,
      json::object{{"snapshot", view_of(started->snapshot)}, {"operation", view_of(operation)}});
}

async::Task<Reply> Native::list_snapshots(Call& call) {
  if (auto ok = call.allow_query({"sandbox", "name", "limit", "cursor"}); !ok)
    co_return base::passing(ok);
  store::SnapshotFilter filter;
  filter.project_id = call.owner.project_id;
  filter.source = call.query_value("sandbox").value_or("");
  filter.name = call.query_value("name").value_or("");
  auto const limit = limit_of(call);
  if (!limit) co_return std::unexpected(limit.error());
  filter.limit = *limit + 1;  // one more tells whether there is another page
  if (auto const text = call.query_value("cursor")) {
    if (auto ok = set_cursor(filter, *text); !ok) co_return base::passing(ok);
  }
  auto rows = co_await store_.snapshots.list(std::move(filter), call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > *limit;
  if (more) rows->resize(*limit);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  json::object page{{"snapshots", std::move(array)}};
  if (more) page["next_cursor"] = cursor_of(rows->back());
  co_return json_reply(200, page);
}

async::Task<Reply> Native::get_snapshot(Call& call) {
  auto row =
      co_await service_.get_snapshot(call.owner.project_id, call.param("snapshot"), call.deadline);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(200, view_of(*row));
}

async::Task<Reply> Native::delete_snapshot(Call& call) {
  auto row =
      co_await service_.get_snapshot(call.owner.project_id, call.param("snapshot"), call.deadline);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto removed = co_await service_.remove_snapshot(asker_of(call), row->public_id, call.deadline);
  if (!removed) co_return base::passing(removed);
  co_return empty_reply(204);
}

/// Only says so: the worker refuses new ones, and a controller suspends what runs.
async::Task<Reply> Native::drain_node(Call& call) {
  auto const& name = call.param("node");
  auto const found = nodes_.all().find(name);
  if (found == nodes_.all().end())
    co_return base::fail(Code::not_found, fmt::format("there is no node \"{}\"", name));
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto body = decode_body<Drain>(call);
  if (!body) co_return base::passing(body);
  auto set = co_await store_.nodes.set_draining(name, body->on, call.deadline);
  if (!set) co_return base::passing(set);
  // At once; a worker that does not answer now is told by a controller.
  auto const address = nodes_.address_of(name);
  (void)(co_await workers_.drain(
             address, body->on, base::system_clock().in(std::chrono::seconds(2))))
      .has_value();
  co_await nodes_.refresh();
  auto const now = nodes_.all().find(name);
  if (now == nodes_.all().end())
    co_return base::fail(Code::not_found, fmt::format("there is no node \"{}\"", name));
  co_return json_reply(200, view_of(now->second));
}

}  // namespace controlplane
