#include "store/keys.hpp"

#include "base/id.hpp"
#include "wire/codec.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view columns =
    " k.id, k.public_id, k.name, k.project_id, p.public_id, k.role, k.installation, k.prefix, "
    "k.created_by,"
    " space_us(k.created_at), space_us(k.expires_at), space_us(k.revoked_at), "
    "space_us(k.last_used_at) ";

Statement const authenticate_statement{
    "keys.authenticate",
    "select k.public_id, p.id, p.public_id, o.public_id, k.role, k.installation from api_keys k"
    " join projects p on p.id = k.project_id join organisations o on o.id = p.organisation_id"
    " where k.key_sha256 = $1 and k.revoked_at is null and (k.expires_at is null or k.expires_at > "
    "now())",
    Kind::read};

Statement const create_statement{
    "keys.create",
    fmt::format("with made as (insert into api_keys (id, public_id, project_id, name, role, "
                "installation, key_sha256,"
                " prefix, expires_at, created_by)"
                " select $1::uuid, $2, p.id, $4, $5, $6, $7, $8, space_time($9), $10 from projects "
                "p where p.public_id = $3"
                " returning *),"
                " event as (insert into events (project_id, sandbox, type, actor, data)"
                " select project_id, '', 'key.created', $10, jsonb_build_object('key', public_id, "
                "'name', name, 'role', role)"
                " from made)"
                " select {} from made k join projects p on p.id = k.project_id",
                columns)};

Statement const list_statement{
    "keys.list",
    fmt::format(
        "select {} from api_keys k join projects p on p.id = k.project_id"
        " where ($1 = '' or p.public_id = $1) and ($2 = '' or k.public_id = $2) order by k.id",
        columns),
    Kind::read};

// Whoever reaches one project alone does not end a key of the installation that lives there.
Statement const revoke_statement{
    "keys.revoke",
    fmt::format("with gone as (update api_keys k set revoked_at = coalesce(k.revoked_at, now()) "
                "from projects p"
                " where p.id = k.project_id and k.public_id = $2 and ($1 = '' or (p.public_id = $1 "
                "and not k.installation)) returning k.*),"
                " event as (insert into events (project_id, sandbox, type, actor, data)"
                " select project_id, '', 'key.revoked', $3, jsonb_build_object('key', public_id, "
                "'name', name) from gone)"
                " select {} from gone k join projects p on p.id = k.project_id",
                columns)};

Statement const revoke_named_statement{"keys.revoke_named",
                                       "update api_keys set revoked_at = now() where name = $1 and "
                                       "installation and revoked_at is null"};

Statement const record_statement{
    "keys.record_uses",
    "with used as (select * from jsonb_to_recordset($1::jsonb) as u (key text, project uuid, at "
    "bigint, method text,"
    "   route text, target text, status int, request text, peer text, keep boolean)),"
    " last as (update api_keys k set last_used_at = space_time(newest.at)"
    "   from (select key, max(at) as at from used group by key) newest"
    "   where k.public_id = newest.key and (k.last_used_at is null or k.last_used_at < "
    "space_time(newest.at)))"
    " insert into key_uses (key_public_id, project_id, at, method, route, target, status, "
    "request_id, peer)"
    " select key, project, space_time(at), method, route, target, status, request, peer from used "
    "where keep"};

Statement const list_uses_statement{"keys.list_uses",
                                    "select key_public_id, project_id, space_us(at), method, "
                                    "route, target, status, request_id, peer from key_uses"
                                    " where project_id = $1 and ($2 = '' or key_public_id = $2) "
                                    "and ($3::bigint is null or at < space_time($3))"
                                    " order by at desc limit $4",
                                    Kind::read};

Statement const trim_uses_statement{"keys.trim_uses",
                                    "delete from key_uses where id in (select id from key_uses "
                                    "where at < now() - $1 * interval '1 hour' limit 5000)"};

Role role_named(std::string const& name) {
  Role role = Role::reader;
  boost::describe::enum_from_string(name.c_str(), role);
  return role;
}

KeyRow read_key(Rows const& rows, std::size_t index) {
  RowReader reader(rows, index);
  KeyRow key;
  key.id = reader.text();
  key.public_id = reader.text();
  key.name = reader.text();
  key.project_id = reader.text();
  key.project_public_id = reader.text();
  key.role = role_named(reader.text());
  key.installation = reader.boolean();
  key.prefix = reader.text();
  key.created_by = reader.text();
  key.created_at = reader.time();
  key.expires_at = reader.time_or_nothing();
  key.revoked_at = reader.time_or_nothing();
  key.last_used_at = reader.time_or_nothing();
  return key;
}

}  // namespace

async::Task<std::optional<KeyOwner>> Keys::authenticate(std::string key_sha256,
                                                        base::Deadline deadline) {
  Params params;
  params.text(key_sha256);
  auto rows = co_await database_.run(authenticate_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<KeyOwner> owner;
  if (!rows->empty()) {
    RowReader reader(*rows, 0);
    owner.emplace();
    owner->key_public_id = reader.text();
    owner->project_id = reader.text();
    owner->project_public_id = reader.text();
    owner->organisation_public_id = reader.text();
    owner->role = role_named(reader.text());
    owner->installation = reader.boolean();
  }
  co_return owner;
}

async::Task<KeyRow> Keys::create(NewKey key, base::Deadline deadline) {
  Params params;
  params.text(base::make_uuid7())
      .text(base::make_short_id('k'))
      .text(key.project_public_id)
      .text(key.name);
  params.text(boost::describe::enum_to_string(key.role, "reader"))
      .boolean(key.installation)
      .text(key.key_sha256);
  params.text(key.prefix).time_or_null(key.expires_at).text(key.created_by);
  auto rows = co_await database_.run(create_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  if (rows->empty()) co_return base::fail(base::Code::not_found, "the project does not exist");
  co_return read_key(*rows, 0);
}

async::Task<std::vector<KeyRow>> Keys::list(std::string project_public_id,
                                            base::Deadline deadline) {
  Params params;
  params.text(project_public_id).text("");
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<KeyRow> keys;
  for (std::size_t i = 0; i < rows->size(); ++i)
    keys.push_back(read_key(*rows, i));
  co_return keys;
}

async::Task<std::optional<KeyRow>> Keys::find(std::string project_public_id,
                                              std::string public_id,
                                              base::Deadline deadline) {
  Params params;
  params.text(project_public_id).text(public_id);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<KeyRow> found;
  if (!rows->empty()) found = read_key(*rows, 0);
  co_return found;
}

async::Task<std::optional<KeyRow>> Keys::revoke(std::string project_public_id,
                                                std::string public_id,
                                                std::string actor,
                                                base::Deadline deadline) {
  Params params;
  params.text(project_public_id).text(public_id).text(actor);
  auto rows = co_await database_.run(revoke_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<KeyRow> gone;
  if (!rows->empty()) gone = read_key(*rows, 0);
  co_return gone;
}

async::Task<void> Keys::revoke_installation(std::string name, base::Deadline deadline) {
  Params params;
  params.text(name);
  auto rows = co_await database_.run(revoke_named_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<void> Keys::record_uses(std::vector<KeyUse> uses, base::Deadline deadline) {
  json::array array;
  for (auto const& use : uses) {
    auto const micros =
        std::chrono::duration_cast<std::chrono::microseconds>(use.at.time_since_epoch()).count();
    array.push_back({{"key", use.key_public_id},
                     {"project", use.project_id},
                     {"at", micros},
                     {"method", use.method},
                     {"route", use.route},
                     {"target", use.target},
                     {"status", use.status},
                     {"request", use.request_id},
                     {"peer", use.peer},
                     {"keep", use.keep}});
  }
  Params params;
  params.document(array);
  auto rows = co_await database_.run(record_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<KeyUse>> Keys::list_uses(std::string project_id,
                                                 std::string key_public_id,
                                                 std::uint32_t limit,
                                                 std::optional<base::WallTime> before,
                                                 base::Deadline deadline) {
  Params params;
  params.text(project_id).text(key_public_id).time_or_null(before).number(limit);
  auto rows = co_await database_.run(list_uses_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<KeyUse> uses;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    KeyUse use;
    use.key_public_id = reader.text();
    use.project_id = reader.text();
    use.at = reader.time();
    use.method = reader.text();
    use.route = reader.text();
    use.target = reader.text();
    use.status = reader.as<int>();
    use.request_id = reader.text();
    use.peer = reader.text();
    uses.push_back(std::move(use));
  }
  co_return uses;
}

async::Task<std::uint64_t> Keys::trim_uses(std::chrono::hours keep, base::Deadline deadline) {
  Params params;
  params.number(keep.count());
  auto rows = co_await database_.run(trim_uses_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
