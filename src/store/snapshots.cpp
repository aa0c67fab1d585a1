#include "store/snapshots.hpp"

#include "base/fault.hpp"
#include "base/id.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view columns =
    " s.id, s.public_id, s.project_id, s.name, s.state, s.hidden, n.name, n.address, s.build_id, "
    "b.build,"
    " t.public_id, t.name, b.default_user, b.default_workdir, s.vcpus, s.memory_mib, s.disk_mib, "
    "s.bytes,"
    " s.source, s.operation, s.actor, space_us(s.created_at), space_us(s.expires_at) ";

constexpr std::string_view joins =
    " join nodes n on n.id = s.node_id join template_builds b on b.id = s.build_id"
    " join templates t on t.id = b.template_id ";

std::string select(std::string_view where) {
  return fmt::format("select {} from snapshots s {} {}", columns, joins, where);
}

// The lock on the usage's row makes parallel snapshots of one project take turns, so that the quota
// holds.
Statement const create_statement{
    "snapshots.create",
    "with source as ("
    "  select * from sandboxes where id = $1 and state in ('running', 'paused')"
    "), turn as ("
    "  select u.project_id from project_usage u join source on source.project_id = u.project_id "
    "for "
    "update of u"
    "), room as ("
    "  select p.id from projects p join turn on turn.project_id = p.id"
    "  where (p.quota_snapshots is null"
    "      or (select count(*) from snapshots o where o.project_id = p.id) < p.quota_snapshots)"
    "    and (p.quota_snapshot_mib is null"
    "      or (select coalesce(sum(bytes), 0) from snapshots o where o.project_id = p.id) < "
    "p.quota_snapshot_mib * 1048576)"
    "), made as ("
    "  insert into snapshots (id, public_id, project_id, name, state, hidden, node_id, build_id, "
    "vcpus, memory_mib,"
    "    disk_mib, source, operation, actor, expires_at)"
    "  select $2::uuid, $3, source.project_id, $4, 'creating', $5, node_id, build_id, vcpus, "
    "memory_mib, disk_mib,"
    "    source.public_id, $6, $7, now() + $8::int * interval '1 second' from source join room on "
    "room.id = source.project_id"
    "  returning *"
    "), operation as ("
    "  insert into operations (id, public_id, project_id, kind, sandbox, lease_owner, lease_until,"
    "    idempotency_key, request_sha256, actor)"
    "  select $9::uuid, $6, project_id, 'sandbox.snapshot', source, $10, now() + $11 * interval '1 "
    "second', $12, $13, $7"
    "  from made"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, source, 'sandbox.snapshot_started', $7,"
    "    jsonb_build_object('snapshot', public_id, 'operation', $6::text) from made"
    ") select " +
        std::string(columns) + " from made s " + std::string(joins)};

Statement const why_not_statement{
    "snapshots.why_not",
    "select s.state, p.quota_snapshots, p.quota_snapshot_mib from sandboxes s"
    " join projects p on p.id = s.project_id where s.id = $1",
    Kind::read};

Statement const settle_statement{
    "snapshots.settle",
    "with moved as ("
    "  update snapshots set state = 'ready', bytes = $2 where id = $1 and state = 'creating' "
    "returning *"
    "), operation as ("
    "  update operations o set state = 'succeeded', finished_at = now()"
    "  from moved m where o.public_id = m.operation and o.finished_at is null"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, source, 'sandbox.snapshot_taken', actor,"
    "    jsonb_build_object('snapshot', public_id, 'operation', operation, 'bytes', bytes) from "
    "moved"
    ") select count(*) from moved"};

Statement const fail_statement{
    "snapshots.fail",
    "with gone as ("
    "  delete from snapshots where id = $1 and state = 'creating' returning *"
    "), operation as ("
    "  update operations o set state = 'failed', error_code = $2, error_message = $3, finished_at "
    "= "
    "now()"
    "  from gone g where o.public_id = g.operation and o.finished_at is null"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, source, 'sandbox.snapshot_failed', actor,"
    "    jsonb_build_object('snapshot', public_id, 'operation', operation) from gone"
    ") select count(*) from gone"};

Statement const find_statement{
    "snapshots.find",
    select(
        "where s.project_id = $1 and (s.public_id = $2 or s.name = $2) and s.state = 'ready' and "
        "not s.hidden"
        " order by s.created_at desc limit 1"),
    Kind::read};

Statement const find_by_operation_statement{
    "snapshots.find_by_operation", select("where s.operation = $1"), Kind::read};

Statement const list_statement{
    "snapshots.list",
    select("where s.project_id = $1 and not s.hidden and s.state <> 'deleting'"
           " and ($2 = '' or s.source = $2) and ($3 = '' or s.name = $3)"
           " and ($4::bigint is null or s.created_at < space_time($4)"
           "   or (s.created_at = space_time($4) and s.public_id > $5))"
           " order by s.created_at desc, s.public_id limit $6"),
    Kind::read};

Statement const begin_delete_statement{
    "snapshots.begin_delete",
    "update snapshots set state = 'deleting' where id = $1 and state <> 'deleting' returning id"};

Statement const remove_statement{"snapshots.remove",
                                 "delete from snapshots where id = $1 and state = 'deleting'"};

// A snapshot under way belongs to its operation; an hour is longer than any.
Statement const claim_due_statement{
    "snapshots.claim_due",
    "with due as ("
    "  select id from snapshots d where ((expires_at <= now() and state = 'ready') or state = "
    "'deleting'"
    "    or (hidden and created_at < now() - interval '1 hour'))"
    "    and not exists (select from sandboxes b where b.snapshot = d.public_id and b.state = "
    "'creating')"
    "  order by created_at limit $1 for update skip locked"
    "), moved as (update snapshots s set state = 'deleting' from due where s.id = due.id returning "
    "s.*)"
    " select " +
        std::string(columns) + " from moved s " + std::string(joins)};

Statement const has_starts_statement{
    "snapshots.has_starts",
    "select exists (select from sandboxes where snapshot = $1 and state = 'creating')",
    Kind::read};

Statement const without_row_statement{"snapshots.without_row",
                                      "select asked from unnest($1::text[]) as asked where not "
                                      "exists (select from snapshots where public_id = asked)",
                                      Kind::read};

// By sandbox, since there is an index for that.
Statement const begun_statement{
    "snapshots.begun",
    "select distinct data->>'snapshot' from events where sandbox = any($2::text[])"
    " and sandbox <> '' and type = 'sandbox.snapshot_started' and data->>'snapshot' = "
    "any($1::text[])",
    Kind::read};

SnapshotRow read_row(Rows const& rows, std::size_t index) {
  RowReader reader(rows, index);
  SnapshotRow row;
  row.id = reader.text();
  row.public_id = reader.text();
  row.project_id = reader.text();
  row.name = reader.text();
  row.state = reader.text();
  row.hidden = reader.boolean();
  row.node = reader.text();
  row.node_address = reader.text();
  row.build_id = reader.text();
  row.build = reader.text();
  row.template_public_id = reader.text();
  row.template_name = reader.text();
  row.default_user = reader.text();
  row.default_workdir = reader.text();
  row.vcpus = reader.as<std::uint32_t>();
  row.memory_mib = reader.as<std::uint32_t>();
  row.disk_mib = reader.as<std::uint32_t>();
  row.bytes = reader.as<std::uint64_t>();
  row.source = reader.text();
  row.operation = reader.text();
  row.actor = reader.text();
  row.created_at = reader.time();
  row.expires_at = reader.time_or_nothing();
  return row;
}

std::vector<std::string> read_ids(Rows const& rows) {
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    RowReader reader(rows, i);
    ids.push_back(reader.text());
  }
  return ids;
}

std::vector<SnapshotRow> read_all(Rows const& rows) {
  std::vector<SnapshotRow> all;
  for (std::size_t i = 0; i < rows.size(); ++i)
    all.push_back(read_row(rows, i));
  return all;
}

base::Error refusal_of(Rows const& why) {
  if (why.empty()) return {base::Code::not_found, "the sandbox has ended"};
  RowReader reader(why, 0);
  auto const state = reader.text();
  if (state != "running" && state != "paused") {
    return {base::Code::conflict,
            fmt::format("the sandbox is {}; it has to run for a snapshot", state)};
  }
  auto const number = [&reader] {
    auto const limit = reader.number_or_nothing();
    return limit ? std::to_string(*limit) : std::string("any number of");
  };
  auto const count = number();
  return {base::Code::exhausted,
          fmt::format("the project may have {} snapshots with {} MiB; delete some, or raise its "
                      "quota",
                      count,
                      number())};
}

}  // namespace

async::Task<SnapshotRow> Snapshots::create(NewSnapshot snapshot, base::Deadline deadline) {
  if (SPACE_FAULT("store.snapshot.before_commit"))
    co_return base::fail(base::Code::unavailable, "the database is not available (injected)");
  Params params;
  params.text(snapshot.sandbox_id).text(base::make_uuid7()).text(snapshot.public_id);
  params.text(snapshot.name).boolean(snapshot.hidden).text(snapshot.operation).text(snapshot.actor);
  std::optional<std::int64_t> expires;
  if (snapshot.expires_in_s) expires = *snapshot.expires_in_s;
  params.number_or_null(expires).text(base::make_uuid7()).text(snapshot.lease_owner);
  params.number(snapshot.lease.count())
      .text_unless_empty(snapshot.idempotency_key)
      .text(snapshot.request_sha256);
  auto rows = co_await database_.run(create_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  if (!rows->empty()) {
    SPACE_FAULT("store.snapshot.after_commit");
    co_return read_row(*rows, 0);
  }
  Params sandbox;
  sandbox.text(snapshot.sandbox_id);
  auto why = co_await database_.run(why_not_statement, std::move(sandbox), deadline);
  if (!why) co_return base::passing(why);
  co_return std::unexpected(refusal_of(*why));
}

async::Task<bool> Snapshots::settle(std::string id, std::uint64_t bytes, base::Deadline deadline) {
  Params params;
  params.text(std::move(id)).number(static_cast<std::int64_t>(bytes));
  auto rows = co_await database_.run(settle_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  RowReader reader(*rows, 0);
  co_return reader.number() > 0;
}

async::Task<bool> Snapshots::fail(std::string id,
                                  std::string error_code,
                                  std::string error_message,
                                  base::Deadline deadline) {
  Params params;
  params.text(std::move(id)).text(std::move(error_code)).text(std::move(error_message));
  auto rows = co_await database_.run(fail_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  RowReader reader(*rows, 0);
  co_return reader.number() > 0;
}

async::Task<std::optional<SnapshotRow>> Snapshots::find_one(Statement const* statement,
                                                            Params params,
                                                            base::Deadline deadline) {
  auto rows = co_await database_.run(*statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<SnapshotRow> found;
  if (!rows->empty()) found = read_row(*rows, 0);
  co_return found;
}

async::Task<std::optional<SnapshotRow>> Snapshots::find(std::string project_id,
                                                        std::string id_or_name,
                                                        base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id)).text(std::move(id_or_name));
  return find_one(&find_statement, std::move(params), deadline);
}

async::Task<std::optional<SnapshotRow>> Snapshots::find_by_operation(std::string operation,
                                                                     base::Deadline deadline) {
  Params params;
  params.text(std::move(operation));
  return find_one(&find_by_operation_statement, std::move(params), deadline);
}

async::Task<std::vector<SnapshotRow>> Snapshots::list(SnapshotFilter filter,
                                                      base::Deadline deadline) {
  Params params;
  params.text(filter.project_id).text(filter.source).text(filter.name);
  params.time_or_null(filter.after_time).text(filter.after_id).number(filter.limit);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_all(*rows);
}

async::Task<bool> Snapshots::begin_delete(std::string id, base::Deadline deadline) {
  Params params;
  params.text(std::move(id));
  auto rows = co_await database_.run(begin_delete_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return !rows->empty();
}

async::Task<bool> Snapshots::has_starts(std::string public_id, base::Deadline deadline) {
  Params params;
  params.text(std::move(public_id));
  auto rows = co_await database_.run(has_starts_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  RowReader reader(*rows, 0);
  co_return reader.boolean();
}

async::Task<void> Snapshots::remove(std::string id, base::Deadline deadline) {
  Params params;
  params.text(std::move(id));
  auto rows = co_await database_.run(remove_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<SnapshotRow>> Snapshots::claim_due(std::uint32_t limit,
                                                           base::Deadline deadline) {
  Params params;
  params.number(limit);
  auto rows = co_await database_.run(claim_due_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_all(*rows);
}

async::Task<std::vector<std::string>> Snapshots::without_row(std::vector<std::string> public_ids,
                                                             base::Deadline deadline) {
  Params params;
  params.texts(public_ids);
  auto rows = co_await database_.run(without_row_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_ids(*rows);
}

async::Task<std::vector<std::string>> Snapshots::begun(std::vector<std::string> public_ids,
                                                       std::vector<std::string> sandboxes,
                                                       base::Deadline deadline) {
  Params params;
  params.texts(public_ids).texts(sandboxes);
  auto rows = co_await database_.run(begun_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_ids(*rows);
}

}  // namespace store
