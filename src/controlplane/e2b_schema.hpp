#pragma once

#include "store/store.hpp"
#include "wire/codec.hpp"
#include "wire/policy.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

/// The JSON of E2B's control API, as its clients 2.21.1 to 2.63 send and read it. Members are in
/// their spelling. Requests ignore keys that we do not know: newer clients send more than older
/// servers need.
namespace controlplane::e2b {

namespace json = boost::json;

/// Legacy, required by every client, the same everywhere.
inline constexpr std::string_view client_id = "6532622b";

struct AutoResume {
  bool enabled = false;
};
BOOST_DESCRIBE_STRUCT(AutoResume, (), (enabled))

struct NewSandbox {
  std::string templateID;
  std::optional<std::int64_t> timeout;
  std::optional<std::map<std::string, std::string>> metadata;
  std::optional<std::map<std::string, std::string>> envVars;
  std::optional<bool> secure;
  std::optional<bool> allow_internet_access;
  std::optional<bool> autoPause;
  std::optional<AutoResume> autoResume;
  std::optional<bool> autoPauseMemory;
  json::value network;  // checked by network_of()
  json::value volumeMounts;
  json::value iam;

  static bool required(std::string_view name) { return name == "templateID"; }
};
BOOST_DESCRIBE_STRUCT(NewSandbox,
                      (),
                      (templateID,
                       timeout,
                       metadata,
                       envVars,
                       secure,
                       allow_internet_access,
                       autoPause,
                       autoResume,
                       autoPauseMemory,
                       network,
                       volumeMounts,
                       iam))

struct SetTimeout {
  std::int64_t timeout = 0;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SetTimeout, (), (timeout))

struct Refresh {
  std::optional<std::int64_t> duration;
};
BOOST_DESCRIBE_STRUCT(Refresh, (), (duration))

struct Connect {
  std::optional<std::int64_t> timeout;
};
BOOST_DESCRIBE_STRUCT(Connect, (), (timeout))

struct Pause {
  std::optional<bool> memory;
};
BOOST_DESCRIBE_STRUCT(Pause, (), (memory))

struct TakeSnapshot {
  std::optional<std::string> name;
  std::optional<bool> memory;
};
BOOST_DESCRIBE_STRUCT(TakeSnapshot, (), (name, memory))

struct Fork {
  std::optional<std::int64_t> timeout;
  std::optional<std::int64_t> count;
};
BOOST_DESCRIBE_STRUCT(Fork, (), (timeout, count))

/// "running" or "paused", the only states that clients can read; nothing for a sandbox that does
/// not exist for them (not yet, or no more).
std::optional<std::string_view> shown_state(domain::SandboxState state) noexcept;
/// The states behind a shown one.
std::vector<domain::SandboxState> states_shown_as(std::string_view shown);

/// What goes into the row's `network`: null when there is nothing to remember. Checks every list;
/// refuses (invalid_argument, with the clients' wording where they know one) what would not be
/// kept.
base::Result<json::value> network_of(NewSandbox const& request, bool secure);
/// What network_of() kept as a policy: without a word about it the internet is open, as these
/// clients expect, and every level above can narrow that.
wire::Policy egress_of(json::value const& kept);

/// The reply of create and connect.
json::value sandbox_reply(store::SandboxRow const& row,
                          std::string const& access_token,
                          std::string const& traffic_token,
                          std::string const& domain);
json::object listed_reply(store::SandboxRow const& row);
json::object detail_reply(store::SandboxRow const& row,
                          std::string const& access_token,
                          std::string const& domain);
/// "s…:default", as clients expect a snapshot to be called.
std::string snapshot_id_of(store::SnapshotRow const& row);
json::object snapshot_reply(store::SnapshotRow const& row);
json::value metric_reply(store::MetricRow const& row);
json::value template_reply(store::TemplateRow const& row);

/// {"code":…,"message":…}
std::string error_body(int status, std::string_view message);

/// Callers' times are any numbers; ours end in 2262. Clamped to the years 1970 to 2200, which
/// selects the same.
base::WallTime wall_time_of(std::chrono::microseconds since_1970) noexcept;

/// RFC 3339 with any offset, clamped likewise; nothing when it is none.
std::optional<base::WallTime> parse_rfc3339(std::string_view text);

/// Opaque for clients. A cursor made for one order is refused in the other.
struct Cursor {
  base::WallTime time;
  std::string sandbox;
};

std::string cursor_text(Cursor const& cursor, bool oldest_first);
base::Result<Cursor> parse_cursor(std::string_view text, bool oldest_first);

}  // namespace controlplane::e2b
