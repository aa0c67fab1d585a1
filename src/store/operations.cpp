#include "store/operations.hpp"

#include "base/id.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view columns =
    " o.id, o.public_id, o.project_id, o.kind, o.sandbox, o.state, o.error_code, o.error_message, "
    "o.lease_owner,"
    " o.attempts, o.idempotency_key, o.request_sha256, o.actor, space_us(o.created_at), "
    "space_us(o.finished_at) ";

Statement const create_statement{"operations.create",
                                 fmt::format("with made as (insert into operations (id, public_id, "
                                             "project_id, kind, sandbox, lease_owner,"
                                             " lease_until, actor, idempotency_key, request_sha256)"
                                             " values ($1, $2, $3, $4, $5, $6, now() + $7 * "
                                             "interval '1 second', $8, $9, $10) returning *)"
                                             " select {} from made o",
                                             columns)};

Statement const find_statement{
    "operations.find",
    fmt::format("select {} from operations o where project_id = $1 and public_id = $2", columns),
    Kind::read};

Statement const find_by_key_statement{
    "operations.find_by_key",
    fmt::format("select {} from operations o where project_id = $1 and idempotency_key = $2",
                columns),
    Kind::read};

Statement const find_unfinished_statement{
    "operations.find_unfinished",
    fmt::format("select {} from operations o where sandbox = $1 and kind = $2 and finished_at is "
                "null order by id limit 1",
                columns),
    Kind::read};

// Ids are UUIDv7, so their order is the order of creation.
Statement const list_statement{
    "operations.list",
    fmt::format("select {} from operations o where project_id = $1 and ($2 = '' or sandbox = $2)"
                " and ($4 = '' or id < (select b.id from operations b where b.public_id = $4 and "
                "b.project_id = $1))"
                " order by id desc limit $3",
                columns),
    Kind::read};

Statement const finish_statement{
    "operations.finish",
    "update operations set finished_at = now(), error_code = $2, error_message = $3,"
    " state = case when $2 = '' then 'succeeded' else 'failed' end where public_id = $1 and "
    "finished_at is null"};

Statement const renew_statement{
    "operations.renew",
    "update operations set lease_until = now() + $3 * interval '1 second'"
    " where lease_owner = $1 and public_id = any($2) and finished_at is null"};

Statement const hand_over_statement{"operations.hand_over",
                                    "update operations set lease_until = now() where lease_owner = "
                                    "$1 and public_id = $2 and finished_at is null"};

Statement const claim_statement{
    "operations.claim_stale",
    fmt::format(
        "with stale as (select id from operations where finished_at is null and lease_until < now()"
        " order by id limit $3 for update skip locked),"
        " taken as (update operations t set lease_owner = $1, lease_until = now() + $2 * interval "
        "'1 second',"
        " attempts = t.attempts + 1 from stale where t.id = stale.id returning t.*)"
        " select {} from taken o order by o.id",
        columns)};

Statement const trim_statement{
    "operations.trim",
    "delete from operations where id in"
    " (select id from operations where finished_at < now() - $1 * interval '1 hour' limit 1000)"};

OperationRow read_row(Rows const& rows, std::size_t index) {
  RowReader reader(rows, index);
  OperationRow row;
  row.id = reader.text();
  row.public_id = reader.text();
  row.project_id = reader.text();
  row.kind = reader.text();
  row.sandbox = reader.text();
  row.state = reader.text();
  row.error_code = reader.text();
  row.error_message = reader.text();
  row.lease_owner = reader.text();
  row.attempts = reader.as<std::uint32_t>();
  row.idempotency_key = reader.text();
  row.request_sha256 = reader.text();
  row.actor = reader.text();
  row.created_at = reader.time();
  row.finished_at = reader.time_or_nothing();
  return row;
}

std::vector<OperationRow> read_all(Rows const& rows) {
  std::vector<OperationRow> all;
  for (std::size_t i = 0; i < rows.size(); ++i)
    all.push_back(read_row(rows, i));
  return all;
}

}  // namespace

async::Task<OperationRow> Operations::create(NewOperation operation, base::Deadline deadline) {
  Params params;
  params.text(base::make_uuid7())
      .text(operation.public_id)
      .text(operation.project_id)
      .text(operation.kind);
  params.text(operation.sandbox)
      .text(operation.lease_owner)
      .number(operation.lease.count())
      .text(operation.actor);
  params.text_unless_empty(operation.idempotency_key).text(operation.request_sha256);
  auto rows = co_await database_.run(create_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_row(*rows, 0);
}

async::Task<std::optional<OperationRow>> Operations::find_one(Statement const* statement,
                                                              Params params,
                                                              base::Deadline deadline) {
  auto rows = co_await database_.run(*statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<OperationRow> found;
  if (!rows->empty()) found = read_row(*rows, 0);
  co_return found;
}

async::Task<std::optional<OperationRow>> Operations::find(std::string project_id,
                                                          std::string public_id,
                                                          base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id)).text(std::move(public_id));
  return find_one(&find_statement, std::move(params), deadline);
}

async::Task<std::optional<OperationRow>> Operations::find_by_key(std::string project_id,
                                                                 std::string idempotency_key,
                                                                 base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id)).text(std::move(idempotency_key));
  return find_one(&find_by_key_statement, std::move(params), deadline);
}

async::Task<std::optional<OperationRow>> Operations::find_unfinished(std::string sandbox,
                                                                     std::string kind,
                                                                     base::Deadline deadline) {
  Params params;
  params.text(std::move(sandbox)).text(std::move(kind));
  return find_one(&find_unfinished_statement, std::move(params), deadline);
}

async::Task<std::vector<OperationRow>> Operations::list(std::string project_id,
                                                        std::string sandbox,
                                                        std::uint32_t limit,
                                                        std::string before,
                                                        base::Deadline deadline) {
  Params params;
  params.text(project_id).text(sandbox).number(limit).text(before);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_all(*rows);
}

async::Task<bool> Operations::finish(std::string public_id,
                                     std::string error_code,
                                     std::string error_message,
                                     base::Deadline deadline) {
  Params params;
  params.text(public_id).text(error_code).text(error_message);
  auto rows = co_await database_.run(finish_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected() > 0;
}

async::Task<std::uint64_t> Operations::renew(std::string lease_owner,
                                             std::vector<std::string> public_ids,
                                             std::chrono::seconds lease,
                                             base::Deadline deadline) {
  Params params;
  params.text(lease_owner).texts(public_ids).number(lease.count());
  auto rows = co_await database_.run(renew_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

async::Task<void> Operations::hand_over(std::string lease_owner,
                                        std::string public_id,
                                        base::Deadline deadline) {
  Params params;
  params.text(lease_owner).text(public_id);
  auto rows = co_await database_.run(hand_over_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<OperationRow>> Operations::claim_stale(std::string lease_owner,
                                                               std::chrono::seconds lease,
                                                               std::uint32_t limit,
                                                               base::Deadline deadline) {
  Params params;
  params.text(lease_owner).number(lease.count()).number(limit);
  auto rows = co_await database_.run(claim_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_all(*rows);
}

async::Task<std::uint64_t> Operations::trim(std::chrono::hours keep, base::Deadline deadline) {
  Params params;
  params.number(keep.count());
  auto rows = co_await database_.run(trim_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
