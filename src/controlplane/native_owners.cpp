// Organisations, projects, keys, usage, audit.
#include "controlplane/native.hpp"
#include "controlplane/tokens.hpp"
#include "controlplane/views.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

struct QuotaBody {
  std::optional<std::uint64_t> sandboxes, vcpus, memory_mib, disk_mib, snapshots, snapshot_mib;

  std::string check() const {
    constexpr std::uint64_t most = 1'000'000'000'000;
    for (auto const limit : {sandboxes, vcpus, memory_mib, disk_mib, snapshots, snapshot_mib})
      if (limit && *limit > most) return "a limit is at most 1000000000000; leave it out for none";
    return {};
  }
};
BOOST_DESCRIBE_STRUCT(QuotaBody,
                      (),
                      (sandboxes, vcpus, memory_mib, disk_mib, snapshots, snapshot_mib))

struct CreateOrganisation {
  std::string name;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(CreateOrganisation, (), (name))

struct CreateProject {
  std::string name;
  std::string organisation;
  std::optional<QuotaBody> quota;

  static bool required(std::string_view name) { return name == "name"; }
};
BOOST_DESCRIBE_STRUCT(CreateProject, (), (name, organisation, quota))

struct UpdateProject {
  std::optional<QuotaBody> quota;
  std::optional<std::int64_t> idle_timeout_s;
  std::optional<std::int64_t> suspended_keep_s;
};
BOOST_DESCRIBE_STRUCT(UpdateProject, (), (quota, idle_timeout_s, suspended_keep_s))

/// Less would delete what somebody put to sleep for lunch.
constexpr std::int64_t suspended_keep_s_min = 3600;

std::optional<std::uint32_t> column_of(std::optional<std::int64_t> seconds) {
  if (!seconds) return std::nullopt;
  return static_cast<std::uint32_t>(*seconds);
}

base::Result<void> check(UpdateProject const& update) {
  auto const idle = update.idle_timeout_s.value_or(0);
  if (idle < 0 || idle > std::numeric_limits<std::int32_t>::max())
    return base::fail(Code::invalid_argument,
                      "idle_timeout_s: expected a number of seconds, 0 for never, or null for "
                      "the installation's");
  auto const keep = update.suspended_keep_s.value_or(suspended_keep_s_min);
  if (keep < suspended_keep_s_min || keep > std::numeric_limits<std::int32_t>::max())
    return base::fail(Code::invalid_argument,
                      fmt::format("suspended_keep_s: expected a number of seconds from {} on, or "
                                  "null for as long as nobody deletes them",
                                  suspended_keep_s_min));
  return {};
}

struct CreateKey {
  std::string name;
  store::Role role = store::Role::member;
  std::string project;
  bool installation = false;
  std::optional<std::int64_t> expires_in_s;

  static bool required(std::string_view name) { return name == "name"; }
};
BOOST_DESCRIBE_STRUCT(CreateKey, (), (name, role, project, installation, expires_in_s))

constexpr std::int64_t key_life_max_s = 10LL * 365 * 86'400;
constexpr std::size_t prefix_length = 8;

/// What a project gets when nobody says otherwise.
domain::Limits default_limits() {
  domain::Limits limits;
  limits.sandboxes = 100;
  limits.vcpus = 200;
  limits.memory_mib = 262'144;
  limits.disk_mib = 1'048'576;
  limits.snapshots = 1000;
  limits.snapshot_mib = 1'048'576;
  return limits;
}

domain::Limits limits_of(QuotaBody const& body) {
  domain::Limits limits;
  limits.sandboxes = body.sandboxes;
  limits.vcpus = body.vcpus;
  limits.memory_mib = body.memory_mib;
  limits.disk_mib = body.disk_mib;
  limits.snapshots = body.snapshots;
  limits.snapshot_mib = body.snapshot_mib;
  return limits;
}

/// Whose keys a caller may manage: "" all projects.
std::string reach_of(Call const& call) {
  return call.owner.installation ? std::string() : call.owner.project_public_id;
}

base::Result<std::optional<base::WallTime>> time_cursor(Call const& call) {
  auto const text = call.query_value("cursor");
  if (!text) return std::optional<base::WallTime>();
  std::int64_t micros = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), micros);
  if (error != std::errc() || end != text->data() + text->size() || micros < 0 ||
      micros > 253'402'300'800'000'000) {
    return base::fail(Code::invalid_argument, "cursor: expected next_cursor of the page before");
  }
  return std::optional(base::WallTime(std::chrono::microseconds(micros)));
}

std::unexpected<base::Error> nothing_called(std::string_view what, std::string_view id) {
  return base::fail(Code::not_found, fmt::format("there is no {} \"{}\"", what, id));
}

}  // namespace

async::Task<Reply> Native::list_organisations(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto rows = co_await store_.projects.list_organisations("", call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  co_return json_reply(200, json::object{{"organisations", std::move(array)}});
}

async::Task<Reply> Native::create_organisation(Call& call) {
  auto body = decode_body<CreateOrganisation>(call);
  if (!body) co_return base::passing(body);
  if (auto ok = check_name(body->name); !ok) co_return base::passing(ok);
  auto row = co_await store_.projects.create_organisation(body->name, call.deadline);
  if (!row) co_return base::passing(row);
  co_return json_reply(201, view_of(*row));
}

async::Task<Reply> Native::get_organisation(Call& call) {
  auto const& id = call.param("organisation");
  if (!call.owner.installation && id != call.owner.organisation_public_id)
    co_return nothing_called("organisation", id);
  auto rows = co_await store_.projects.list_organisations(id, call.deadline);
  if (!rows) co_return base::passing(rows);
  if (rows->empty()) co_return nothing_called("organisation", id);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(200, view_of(rows->front()));
}

async::Task<Reply> Native::list_projects(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto rows = co_await store_.projects.list(reach_of(call), call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  co_return json_reply(200, json::object{{"projects", std::move(array)}});
}

async::Task<Reply> Native::create_project(Call& call) {
  auto body = decode_body<CreateProject>(call);
  if (!body) co_return base::passing(body);
  if (auto ok = check_name(body->name); !ok) co_return base::passing(ok);
  if (body->organisation.empty()) body->organisation = call.owner.organisation_public_id;
  auto const limits = body->quota ? limits_of(*body->quota) : default_limits();
  auto row = co_await store_.projects.create(body->organisation, body->name, limits, call.deadline);
  if (!row) co_return base::passing(row);
  co_return json_reply(201, view_of(*row));
}

/// A project that the caller may see.
async::Task<store::ProjectRow> Native::project_for(Call& call, std::string public_id) {
  if (!call.owner.installation && public_id != call.owner.project_public_id)
    co_return nothing_called("project", public_id);
  auto rows = co_await store_.projects.list(public_id, call.deadline);
  if (!rows) co_return base::passing(rows);
  if (rows->empty() || public_id.empty()) co_return nothing_called("project", public_id);
  co_return std::move(rows->front());
}

async::Task<Reply> Native::get_project(Call& call) {
  auto row = co_await project_for(call, call.param("project"));
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(200, view_of(*row));
}

async::Task<Reply> Native::update_project(Call& call) {
  auto row = co_await project_for(call, call.param("project"));
  if (!row) co_return base::passing(row);
  auto body = decode_body<UpdateProject>(call);
  if (!body) co_return base::passing(body);
  auto const raw = body_of(call);
  auto const says = [&raw](std::string_view member) {
    return raw && raw->is_object() && raw->get_object().contains(member);
  };
  bool const sets_idle = says("idle_timeout_s");
  bool const sets_keep = says("suspended_keep_s");
  if (!body->quota && !sets_idle && !sets_keep)
    co_return base::fail(Code::invalid_argument,
                         "body: expected quota, idle_timeout_s or suspended_keep_s");
  if (auto ok = check(*body); !ok) co_return base::passing(ok);
  if (body->quota) {
    auto changed =
        co_await store_.projects.set_limits(row->public_id, limits_of(*body->quota), call.deadline);
    if (!changed) co_return base::passing(changed);
    if (!*changed) co_return nothing_called("project", row->public_id);
    row = std::move(**changed);
  }
  if (sets_idle) {
    auto changed = co_await store_.projects.set_idle_timeout(
        row->public_id, column_of(body->idle_timeout_s), call.deadline);
    if (!changed) co_return base::passing(changed);
    if (!*changed) co_return nothing_called("project", row->public_id);
    row = std::move(**changed);
  }
  if (sets_keep) {
    auto changed = co_await store_.projects.set_suspended_keep(
        row->public_id, column_of(body->suspended_keep_s), call.owner.key_public_id, call.deadline);
    if (!changed) co_return base::passing(changed);
    if (!*changed) co_return nothing_called("project", row->public_id);
    row = std::move(**changed);
  }
  co_return json_reply(200, view_of(*row));
}

async::Task<Reply> Native::get_usage(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto row = co_await project_for(call, call.owner.project_public_id);
  if (!row) co_return base::passing(row);
  co_return json_reply(200,
                       json::object{{"project", row->public_id},
                                    {"used", view_of(row->used)},
                                    {"quota", view_of(row->limits)}});
}

async::Task<Reply> Native::list_keys(Call& call) {
  if (auto ok = call.allow_query({"project"}); !ok) co_return base::passing(ok);
  auto project = call.query_value("project").value_or(call.owner.project_public_id);
  auto known = co_await project_for(call, project);
  if (!known) co_return base::passing(known);
  auto rows = co_await store_.keys.list(std::move(project), call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  co_return json_reply(200, json::object{{"keys", std::move(array)}});
}

async::Task<Reply> Native::create_key(Call& call) {
  auto body = decode_body<CreateKey>(call);
  if (!body) co_return base::passing(body);
  if (auto ok = check_name(body->name); !ok) co_return base::passing(ok);
  if (body->expires_in_s && (*body->expires_in_s < 1 || *body->expires_in_s > key_life_max_s)) {
    co_return base::fail(Code::invalid_argument,
                         fmt::format("expires_in_s: expected 1 to {}", key_life_max_s));
  }
  if (body->installation && !call.owner.installation) {
    co_return base::fail(Code::denied,
                         "installation: only a key of the installation may make another one");
  }
  auto project = co_await project_for(
      call, body->project.empty() ? call.owner.project_public_id : body->project);
  if (!project) co_return base::passing(project);
  auto const secret = make_key();
  store::NewKey wanted;
  wanted.project_public_id = project->public_id;
  wanted.name = body->name;
  wanted.role = body->role;
  wanted.installation = body->installation;
  wanted.key_sha256 = sha256_hex(secret);
  wanted.prefix = secret.substr(0, prefix_length);
  wanted.created_by = call.owner.key_public_id;
  if (body->expires_in_s)
    wanted.expires_at = base::system_clock().wall_now() + std::chrono::seconds(*body->expires_in_s);
  auto row = co_await store_.keys.create(std::move(wanted), call.deadline);
  if (!row) co_return base::passing(row);
  auto view = view_of(*row);
  auto const kept = wire::to_text(view);
  view["key"] = secret;
  auto reply = json_reply(201, view);
  reply.kept_body = kept;
  reply.headers.add("Cache-Control", "no-store");
  co_return reply;
}

async::Task<Reply> Native::get_key(Call& call) {
  auto const& id = call.param("key");
  auto row = co_await store_.keys.find(reach_of(call), id, call.deadline);
  if (!row) co_return base::passing(row);
  if (!*row) co_return nothing_called("key", id);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(200, view_of(**row));
}

async::Task<Reply> Native::revoke_key(Call& call) {
  auto const& id = call.param("key");
  auto row =
      co_await store_.keys.revoke(reach_of(call), id, call.owner.key_public_id, call.deadline);
  if (!row) co_return base::passing(row);
  if (!*row) co_return nothing_called("key", id);
  hub_.poke();
  co_return json_reply(200, view_of(**row));
}

async::Task<Reply> Native::list_audit(Call& call) {
  if (auto ok = call.allow_query({"key", "limit", "cursor"}); !ok) co_return base::passing(ok);
  auto const limit = limit_of(call);
  if (!limit) co_return std::unexpected(limit.error());
  auto const before = time_cursor(call);
  if (!before) co_return std::unexpected(before.error());
  auto rows = co_await store_.keys.list_uses(call.owner.project_id,
                                             call.query_value("key").value_or(""),
                                             *limit + 1,
                                             *before,
                                             call.deadline);
  if (!rows) co_return base::passing(rows);
  bool const more = rows->size() > *limit;
  if (more) rows->resize(*limit);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  json::object page{{"uses", std::move(array)}};
  if (more) {
    auto const last = rows->back().at.time_since_epoch();
    page["next_cursor"] =
        std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(last).count());
  }
  co_return json_reply(200, page);
}

}  // namespace controlplane
