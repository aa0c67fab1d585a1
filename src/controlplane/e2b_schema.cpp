#include "controlplane/e2b_schema.hpp"

#include "base/base64.hpp"
#include "base/id.hpp"
#include "wire/agent.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace controlplane::e2b {
namespace {

using domain::SandboxState;

/// A sandbox without a deadline (made natively) needs some end: clients cannot read none.
constexpr std::string_view no_end = "2999-12-31T23:59:59Z";

json::object labels(std::map<std::string, std::string> const& map) {
  json::object object;
  for (auto const& [key, value] : map)
    object[key] = value;
  return object;
}

std::int64_t unix_seconds(base::WallTime time) {
  return std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count();
}

bool number_at(std::string_view text, std::size_t at, std::size_t digits, int& out) {
  if (at + digits > text.size()) return false;
  out = 0;
  for (char const c : text.substr(at, digits)) {
    if (c < '0' || c > '9') return false;
    out = out * 10 + (c - '0');
  }
  return true;
}

/// "Z", "+02:00" at the end of a time; minutes east of UTC.
std::optional<int> offset_of(std::string_view zone) {
  if (zone == "Z" || zone == "z") return 0;
  int hours = 0;
  int minutes = 0;
  if (zone.size() != 6 || zone[3] != ':' || (zone[0] != '+' && zone[0] != '-')) return std::nullopt;
  if (!number_at(zone, 1, 2, hours) || !number_at(zone, 4, 2, minutes) || hours > 23 ||
      minutes > 59)
    return std::nullopt;
  return (zone[0] == '-' ? -1 : 1) * (hours * 60 + minutes);
}

}  // namespace

std::optional<std::string_view> shown_state(SandboxState state) noexcept {
  switch (state) {
    case SandboxState::running:
      return "running";
    // E2B's pause is our suspended; one that is on its way there, or back, is paused already, or
    // still.
    case SandboxState::pausing:
    case SandboxState::paused:
    case SandboxState::resuming:
    case SandboxState::suspending:
    case SandboxState::suspended:
    case SandboxState::restoring:
      return "paused";
    case SandboxState::creating:
    case SandboxState::deleting:
    case SandboxState::deleted:
    case SandboxState::failed:
      return std::nullopt;
  }
  return std::nullopt;
}

std::vector<SandboxState> states_shown_as(std::string_view shown) {
  std::vector<SandboxState> states;
  for (auto const state : {SandboxState::running,
                           SandboxState::pausing,
                           SandboxState::paused,
                           SandboxState::resuming,
                           SandboxState::suspending,
                           SandboxState::suspended,
                           SandboxState::restoring}) {
    if (shown_state(state) == shown) states.push_back(state);
  }
  return states;
}

json::value sandbox_reply(store::SandboxRow const& row,
                          std::string const& access_token,
                          std::string const& traffic_token,
                          std::string const& domain) {
  json::object reply{{"templateID", row.template_public_id},
                     {"sandboxID", row.public_id},
                     {"clientID", client_id},
                     {"envdVersion", wire::envd_version},
                     {"alias", row.template_name},
                     {"domain", domain}};
  if (!access_token.empty()) reply["envdAccessToken"] = access_token;
  if (!traffic_token.empty()) reply["trafficAccessToken"] = traffic_token;
  return reply;
}

json::object listed_reply(store::SandboxRow const& row) {
  return {{"templateID", row.template_public_id},
          {"sandboxID", row.public_id},
          {"clientID", client_id},
          {"startedAt", base::to_rfc3339(row.started_at.value_or(row.created_at))},
          // Of a paused one, when that was.
          {"endAt",
           row.suspended_at  ? base::to_rfc3339(*row.suspended_at)
           : row.deadline_at ? base::to_rfc3339(*row.deadline_at)
                             : std::string(no_end)},
          {"cpuCount", row.vcpus},
          {"memoryMB", row.memory_mib},
          {"diskSizeMB", row.disk_mib},
          {"state", shown_state(row.state).value_or("running")},
          {"envdVersion", wire::envd_version},
          {"alias", row.template_name},
          {"metadata", labels(row.metadata)},
          {"volumeMounts", json::array()}};
}

json::object detail_reply(store::SandboxRow const& row,
                          std::string const& access_token,
                          std::string const& domain) {
  auto reply = listed_reply(row);
  if (!access_token.empty()) reply["envdAccessToken"] = access_token;
  if (shown_state(row.state) == "running") {
    reply["domain"] = domain;
  } else {
    reply["domain"] = nullptr;
  }
  reply["allowInternetAccess"] = nullptr;
  if (auto const* network = row.network.if_object()) {
    json::object echo = *network;
    if (auto const* internet = echo.if_contains("allowInternetAccess")) {
      reply["allowInternetAccess"] = *internet;
      echo.erase("allowInternetAccess");
    }
    echo.erase("policy");  // of a native create: not in E2B's language
    if (!echo.empty()) reply["network"] = std::move(echo);
  }
  bool const pauses = row.on_timeout == "suspend";
  reply["lifecycle"] = {{"autoResume", row.auto_resume && pauses},
                        {"onTimeout", pauses ? "pause" : "kill"}};
  return reply;
}

std::string snapshot_id_of(store::SnapshotRow const& row) {
  return row.public_id + ":default";
}

json::object snapshot_reply(store::SnapshotRow const& row) {
  json::array names;
  if (!row.name.empty()) names.emplace_back(row.name);
  return {{"snapshotID", snapshot_id_of(row)}, {"names", std::move(names)}};
}

json::value metric_reply(store::MetricRow const& row) {
  return {{"timestamp", base::to_rfc3339(row.at)},
          {"timestampUnix", unix_seconds(row.at)},
          {"cpuCount", row.cpu_count},
          {"cpuUsedPct", row.cpu_used_pct},
          {"memUsed", row.memory_used},
          {"memTotal", row.memory_total},
          {"memCache", row.memory_cache},
          {"diskUsed", row.disk_used},
          {"diskTotal", row.disk_total}};
}

json::value template_reply(store::TemplateRow const& row) {
  store::BuildRow const none;
  auto const& build = row.latest ? *row.latest : none;
  json::object reply{{"templateID", row.public_id},
                     {"buildID", build.id},
                     {"cpuCount", build.vcpus},
                     {"memoryMB", build.memory_mib},
                     {"diskSizeMB", build.disk_mib},
                     {"public", row.is_public || row.project_id.empty()},
                     {"aliases", json::array{row.name}},
                     {"names", json::array{row.name}},
                     {"createdAt", base::to_rfc3339(row.created_at)},
                     {"updatedAt", base::to_rfc3339(row.updated_at)},
                     {"createdBy", nullptr},
                     {"lastSpawnedAt", nullptr},
                     {"spawnCount", row.spawn_count},
                     {"buildCount", row.build_count},
                     {"envdVersion", wire::envd_version},
                     {"buildStatus", row.latest ? "ready" : "building"}};
  return reply;
}

std::string error_body(int status, std::string_view message) {
  return wire::to_text(json::object{{"code", status}, {"message", message}});
}

std::optional<base::WallTime> parse_rfc3339(std::string_view text) {
  // 2030-01-02T03:04:05[.digits](Z|+hh:mm)
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  if (text.size() < 20 || text.size() > 40 || text[4] != '-' || text[7] != '-' || text[13] != ':' ||
      text[16] != ':') {
    return std::nullopt;
  }
  if (text[10] != 'T' && text[10] != 't' && text[10] != ' ') return std::nullopt;
  bool const read = number_at(text, 0, 4, year) && number_at(text, 5, 2, month) &&
                    number_at(text, 8, 2, day) && number_at(text, 11, 2, hour) &&
                    number_at(text, 14, 2, minute) && number_at(text, 17, 2, second);
  if (!read || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  std::chrono::year_month_day const date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  std::size_t at = 19;
  std::int64_t micros = 0;
  if (text[at] == '.') {
    std::int64_t unit = 100'000;
    std::size_t digits = 0;
    for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at, ++digits) {
      micros += (text[at] - '0') * unit;
      unit /= 10;
    }
    if (digits == 0) return std::nullopt;
  }
  auto const offset = offset_of(text.substr(at));
  if (!offset) return std::nullopt;
  auto const days = std::chrono::sys_days(date).time_since_epoch();
  std::chrono::microseconds const time =
      days + std::chrono::hours(hour) + std::chrono::minutes(minute - *offset) +
      std::chrono::seconds(second) + std::chrono::microseconds(micros);
  return wall_time_of(time);
}

base::WallTime wall_time_of(std::chrono::microseconds since_1970) noexcept {
  constexpr std::chrono::microseconds latest =
      std::chrono::seconds(7'258'118'400);  // the year 2200
  return base::WallTime(std::clamp(since_1970, std::chrono::microseconds(0), latest));
}

std::string cursor_text(Cursor const& cursor, bool oldest_first) {
  auto const micros =
      std::chrono::duration_cast<std::chrono::microseconds>(cursor.time.time_since_epoch()).count();
  auto text =
      base::base64_of(fmt::format("{}__{}{}", micros, cursor.sandbox, oldest_first ? "__asc" : ""));
  std::erase(text, '=');  // digits, letters and underscores: nothing of it has + or /
  return text;
}

base::Result<Cursor> parse_cursor(std::string_view text, bool oldest_first) {
  auto const wrong = [] {
    return base::fail(base::Code::invalid_argument,
                      "nextToken: expected the X-Next-Token of an earlier page of this list");
  };
  auto const plain = base::base64_decoded(text.substr(0, 200));
  if (!plain) return wrong();
  std::string_view rest = *plain;
  if (rest.ends_with("__asc") != oldest_first) return wrong();
  if (oldest_first) rest.remove_suffix(5);
  std::int64_t micros = 0;
  auto const [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), micros);
  if (error != std::errc() || micros < 0) return wrong();
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  if (!rest.starts_with("__") || !base::is_short_id('i', rest.substr(2))) return wrong();
  return Cursor{wall_time_of(std::chrono::microseconds(micros)), std::string(rest.substr(2))};
}

}  // namespace controlplane::e2b
