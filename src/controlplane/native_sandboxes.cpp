#include "controlplane/native.hpp"
#include "controlplane/views.hpp"
#include "domain/labels.hpp"

#include <charconv>
#include <cmath>

namespace controlplane {
namespace {

using base::Code;
using domain::SandboxState;

struct CreateSandbox {
  std::string template_ = "base";
  std::optional<std::uint32_t> vcpus, memory_mib, disk_mib;
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> env;
  std::optional<std::int64_t> timeout_s;
  std::string on_timeout = "delete";
  std::optional<std::int64_t> idle_timeout_s;
  std::string snapshot;
  bool auto_resume = true;
  bool secure = true;
  std::optional<wire::Policy> policy;
};
BOOST_DESCRIBE_STRUCT(CreateSandbox,
                      (),
                      (vcpus,
                       memory_mib,
                       disk_mib,
                       metadata,
                       env,
                       timeout_s,
                       on_timeout,
                       idle_timeout_s,
                       snapshot,
                       auto_resume,
                       secure,
                       policy))

struct UpdateSandbox {
  std::optional<std::int64_t> timeout_s;
  std::optional<std::map<std::string, std::string>> metadata;
};
BOOST_DESCRIBE_STRUCT(UpdateSandbox, (), (timeout_s, metadata))

/// `timeout_s` as it was sent: absent, null for none, or a number from `least` on.
struct Timeout {
  bool present = false;
  std::optional<std::uint32_t> seconds;
};

base::Result<Timeout> timeout_of(json::object const& body,
                                 std::optional<std::int64_t> value,
                                 std::int64_t least) {
  Timeout timeout;
  timeout.present = body.contains("timeout_s");
  if (!value) return timeout;
  if (*value < least || *value > std::numeric_limits<std::int32_t>::max()) {
    return base::fail(
        Code::invalid_argument,
        fmt::format("timeout_s: expected a number of seconds from {} on, or null for no timeout",
                    least));
  }
  timeout.seconds = static_cast<std::uint32_t>(*value);
  return timeout;
}

/// "template" is no name for a member in C++, so it is taken out first.
base::Result<CreateSandbox> decode_create(json::object body) {
  std::string name = "base";
  if (auto const* value = body.if_contains("template")) {
    auto const* text = value->if_string();
    if (!text) return base::fail(Code::invalid_argument, "template: expected a string");
    name = std::string(*text);
    body.erase("template");
  }
  auto decoded = wire::decode<CreateSandbox>(body);
  if (decoded) decoded->template_ = std::move(name);
  return decoded;
}

base::Result<json::object> object_of(Call const& call) {
  auto value = body_of(call);
  if (!value) return base::passing(value);
  if (!value->is_object()) return base::fail(Code::invalid_argument, "body: expected an object");
  return std::move(value->get_object());
}

/// Where the next page begins: "<microseconds>-<id>".
std::string cursor_of(store::SandboxRow const& row) {
  auto const micros =
      std::chrono::duration_cast<std::chrono::microseconds>(row.created_at.time_since_epoch());
  return fmt::format("{}-{}", micros.count(), row.public_id);
}

base::Result<void> set_cursor(store::SandboxFilter& filter, std::string_view text) {
  std::int64_t micros = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), micros);
  auto const rest = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || micros < 0 || micros > 253'402'300'800'000'000 ||
      !rest.starts_with('-') || !base::is_short_id('i', rest.substr(1))) {
    return base::fail(Code::invalid_argument, "cursor: expected next_cursor of the page before");
  }
  filter.after_time = base::WallTime(std::chrono::microseconds(micros));
  filter.after_id = std::string(rest.substr(1));
  return {};
}

base::Result<void> set_states(store::SandboxFilter& filter, std::string_view text) {
  std::size_t ended = 0;
  for (;;) {
    auto const comma = text.find(',');
    auto const name = text.substr(0, comma);
    auto const state = domain::state_named(name);
    if (!state)
      return base::fail(Code::invalid_argument,
                        fmt::format("state: \"{}\" is no state of a sandbox", name.substr(0, 40)));
    if (domain::is_terminal(*state)) ++ended;
    filter.states.push_back(*state);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  filter.history = ended > 0;
  if (filter.history && ended != filter.states.size()) {
    return base::fail(
        Code::invalid_argument,
        "state: ask for live states, or for deleted and failed, but not both at once");
  }
  return {};
}

base::Result<store::SandboxFilter> filter_of(Call const& call) {
  store::SandboxFilter filter;
  filter.project_id = call.owner.project_id;
  auto limit = limit_of(call);
  if (!limit) return base::passing(limit);
  filter.limit = *limit;
  if (auto const text = call.query_value("state")) {
    if (auto ok = set_states(filter, *text); !ok) return base::passing(ok);
  }
  if (auto const text = call.query_value("cursor")) {
    if (auto ok = set_cursor(filter, *text); !ok) return base::passing(ok);
  }
  filter.template_or_name = call.query_value("template").value_or("");
  for (auto const& [name, value] : call.query) {
    if (name != "metadata") continue;
    auto const equals = value.find('=');
    if (equals == std::string::npos || equals == 0)
      return base::fail(Code::invalid_argument, "metadata: expected KEY=VALUE");
    filter.metadata[value.substr(0, equals)] = value.substr(equals + 1);
  }
  if (auto ok = domain::check_metadata(filter.metadata); !ok) return base::passing(ok);
  return filter;
}

double number_in(json::value const& value, std::string_view name) {
  auto const* object = value.if_object();
  auto const* field = object ? object->if_contains(name) : nullptr;
  if (!field || !field->is_number()) return 0;
  auto const number = field->to_number<double>();
  return std::isfinite(number) && number >= 0 && number < 1e18 ? number : 0;
}

std::uint64_t count_in(json::value const& value, std::string_view name) {
  return static_cast<std::uint64_t>(number_in(value, name));
}

}  // namespace

json::object Native::full_view(Call const& call, store::SandboxRow const& row) const {
  auto view = view_of(row);
  view["domain"] = options_.domain;
  if (call.owner.role == store::Role::reader || domain::is_terminal(row.state)) return view;
  auto const access = service_.access_token(row);
  if (!access.empty()) view["access_token"] = access;
  auto const traffic = service_.traffic_token(row);
  if (!traffic.empty()) view["traffic_token"] = traffic;
  return view;
}

async::Task<Reply> Native::list_sandboxes(Call& call) {
  if (auto ok = call.allow_query({"state", "template", "metadata", "limit", "cursor"}); !ok)
    co_return base::passing(ok);
  auto filter = filter_of(call);
  if (!filter) co_return base::passing(filter);
  auto const limit = filter->limit++;  // one more tells whether there is another page
  auto rows = co_await store_.sandboxes.list(std::move(*filter), call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > limit;
  if (more) rows->resize(limit);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  json::object page{{"sandboxes", std::move(array)}};
  if (more) page["next_cursor"] = cursor_of(rows->back());
  co_return json_reply(200, page);
}

async::Task<Reply> Native::create_sandbox(Call& call) {
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  auto const wait = wait_of(call, options_.wait_max);
  if (!wait) co_return std::unexpected(wait.error());
  auto object = object_of(call);
  if (!object) co_return base::passing(object);
  auto body = decode_create(*object);
  if (!body) co_return base::passing(body);
  auto const timeout = timeout_of(*object, body->timeout_s, 1);
  if (!timeout) co_return std::unexpected(timeout.error());
  if (auto ok = domain::check_environment(body->env, "env"); !ok) co_return base::passing(ok);
  CreateSpec spec;
  spec.template_name = std::move(body->template_);
  spec.vcpus = body->vcpus;
  spec.memory_mib = body->memory_mib;
  spec.disk_mib = body->disk_mib;
  spec.metadata = std::move(body->metadata);
  spec.env = std::move(body->env);
  spec.timeout_s = timeout->present ? timeout->seconds.value_or(0) : options_.default_timeout_s;
  spec.on_timeout = std::move(body->on_timeout);
  if (body->idle_timeout_s) {
    if (*body->idle_timeout_s < 0 ||
        *body->idle_timeout_s > std::numeric_limits<std::int32_t>::max())
      co_return base::fail(Code::invalid_argument,
                           "idle_timeout_s: expected a number of seconds, or 0 for never");
    spec.idle_timeout_s = static_cast<std::uint32_t>(*body->idle_timeout_s);
  }
  spec.snapshot = std::move(body->snapshot);
  if (!spec.snapshot.empty() && object->contains("template"))
    co_return base::fail(Code::invalid_argument, "snapshot: give it or a template, not both");
  spec.auto_resume = body->auto_resume;
  spec.secure = body->secure;
  spec.policy = std::move(body->policy);
  auto started = co_await service_.create(asker_of(call), std::move(spec), call.deadline);
  if (!started) co_return base::passing(started);
  auto reply = co_await answer_change(call, std::move(*started), *wait, 201);
  co_return reply;
}

/// 202, or what came of it within `wait`.
async::Task<Reply> Native::answer_change(Call& call,
                                         Started started,
                                         std::chrono::milliseconds wait,
                                         int done_status) {
  if (!started.operation.done() && wait.count() > 0) {
    auto waited = co_await service_.wait_for(std::move(started), base::system_clock().in(wait));
    if (!waited) co_return base::passing(waited);
    started = std::move(*waited);
  }
  auto const& operation = started.operation;
  if (operation.state == "failed") {
    co_return base::fail(
        base::code_named(operation.error_code),
        fmt::format("{} {}: {}", operation.kind, operation.sandbox, operation.error_message));
  }
  json::object body{{"sandbox", full_view(call, started.sandbox)},
                    {"operation", view_of(operation)}};
  auto reply = json_reply(operation.done() ? done_status : 202, body);
  if (started.replayed) reply.headers.add("Idempotency-Replayed", "true");
  co_return reply;
}

async::Task<Reply> Native::get_sandbox(Call& call) {
  auto row = co_await service_.get(
      call.owner.project_id, call.param("sandbox"), SandboxService::Ended::show, call.deadline);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"timeline"}); !ok) co_return base::passing(ok);
  auto const timeline = call.query_value("timeline").value_or("0");
  if (timeline != "0" && timeline != "1")
    co_return base::fail(Code::invalid_argument, "timeline: expected 0 or 1");
  auto view = full_view(call, *row);
  if (timeline == "1")
    view["timeline"] = row->timeline.is_array() ? row->timeline : json::value(json::array());
  co_return json_reply(200, view);
}

async::Task<Reply> Native::update_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  auto object = object_of(call);
  if (!object) co_return base::passing(object);
  auto body = wire::decode<UpdateSandbox>(*object);
  if (!body) co_return base::passing(body);
  auto const timeout = timeout_of(*object, body->timeout_s, 0);
  if (!timeout) co_return std::unexpected(timeout.error());
  if (body->metadata) {
    if (auto ok = domain::check_metadata(*body->metadata); !ok) co_return base::passing(ok);
  }
  if (timeout->present) {
    auto set = co_await service_.set_timeout(
        asker_of(call), row->public_id, timeout->seconds, false, call.deadline);
    if (!set) co_return base::passing(set);
  }
  if (body->metadata) {
    auto set = co_await store_.sandboxes.replace_metadata(
        row->id, std::move(*body->metadata), call.deadline);
    if (!set) co_return base::passing(set);
  }
  auto now = co_await service_.get(
      call.owner.project_id, row->public_id, SandboxService::Ended::show, call.deadline);
  if (!now) co_return base::passing(now);
  co_return json_reply(200, full_view(call, *now));
}

async::Task<Reply> Native::delete_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"wait"}); !ok) co_return base::passing(ok);
  auto const wait = wait_of(call, options_.wait_max);
  if (!wait) co_return std::unexpected(wait.error());
  auto started = co_await service_.remove(asker_of(call), row->public_id, call.deadline);
  if (!started) co_return base::passing(started);
  auto reply = co_await answer_change(call, std::move(*started), *wait, 200);
  co_return reply;
}

async::Task<Reply> Native::rotate_sandbox_token(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  auto object = object_of(call);
  if (!object) co_return base::passing(object);
  if (!object->empty()) co_return base::fail(Code::invalid_argument, "body: expected none");
  auto rotated = co_await service_.rotate_token(asker_of(call), row->public_id, call.deadline);
  if (!rotated) co_return base::passing(rotated);
  auto reply = json_reply(200, full_view(call, *rotated));
  reply.kept_body = wire::to_text(view_of(*rotated));
  co_return reply;
}

async::Task<Reply> Native::get_sandbox_metrics(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  if (row->state != SandboxState::running) {
    co_return base::fail(
        Code::conflict,
        fmt::format("the sandbox is {}; it has to run for this", domain::name_of(row->state)));
  }
  auto said = co_await workers_.metrics(row->node_address, row->public_id, call.deadline);
  if (!said) co_return base::passing(said);
  co_return json_reply(200,
                       json::object{{"at", base::to_rfc3339(base::system_clock().wall_now())},
                                    {"cpu_count", count_in(*said, "cpu_count")},
                                    {"cpu_used_pct", number_in(*said, "cpu_used_pct")},
                                    {"memory_total_bytes", count_in(*said, "mem_total")},
                                    {"memory_used_bytes", count_in(*said, "mem_used")},
                                    {"memory_cache_bytes", count_in(*said, "mem_cache")},
                                    {"disk_total_bytes", count_in(*said, "disk_total")},
                                    {"disk_used_bytes", count_in(*said, "disk_used")}});
}

async::Task<Reply> Native::get_sandbox_console(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto text = co_await workers_.console(row->node_address, row->public_id, call.deadline);
  if (!text) co_return base::passing(text);
  Reply reply;
  // Text, whatever a guest writes there, and never sniffed into something else by a browser.
  reply.headers.add("Content-Type", "text/plain; charset=utf-8");
  reply.headers.add("X-Content-Type-Options", "nosniff");
  reply.body = std::move(*text);
  co_return reply;
}

}  // namespace controlplane
