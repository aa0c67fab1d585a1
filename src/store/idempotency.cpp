#include "store/idempotency.hpp"

namespace store {
namespace {

// A request may run this long before a repeat of it is told that the first one was lost.
constexpr std::string_view claim_sql =
    "with made as (insert into idempotency_keys (project_id, key, request_sha256, busy_until)"
    " values ($1, $2, $3, now() + interval '120 seconds') on conflict do nothing returning key)"
    " select 'ours', null::int, null::text from made union all"
    " select case when i.request_sha256 <> $3 then 'mismatch' when i.status is not null then "
    "'replay'"
    "   when i.busy_until > now() then 'busy' else 'interrupted' end, i.status, i.body"
    " from idempotency_keys i where i.project_id = $1 and i.key = $2 and not exists (select from "
    "made)";

Statement const claim_statement{"idempotency.claim", std::string(claim_sql)};

Statement const finish_statement{
    "idempotency.finish",
    "update idempotency_keys set status = $3, body = $4 where project_id = $1 and key = $2"};

Statement const release_statement{
    "idempotency.release",
    "delete from idempotency_keys where project_id = $1 and key = $2 and status is null"};

Statement const trim_statement{
    "idempotency.trim",
    "delete from idempotency_keys where (project_id, key) in (select project_id, key"
    " from idempotency_keys where created_at < now() - interval '24 hours' limit 1000)"};

IdempotencyClaim::Outcome outcome_named(std::string_view name) {
  using enum IdempotencyClaim::Outcome;
  if (name == "ours") return ours;
  if (name == "replay") return replay;
  if (name == "mismatch") return mismatch;
  if (name == "interrupted") return interrupted;
  return busy;
}

}  // namespace

async::Task<IdempotencyClaim> Idempotency::claim(std::string project_id,
                                                 std::string key,
                                                 std::string request_sha256,
                                                 base::Deadline deadline) {
  Params params;
  params.text(project_id).text(key).text(request_sha256);
  auto rows = co_await database_.run(claim_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  IdempotencyClaim claim;
  // No row: the first request committed after our snapshot. It runs at this moment.
  claim.outcome = IdempotencyClaim::Outcome::busy;
  if (!rows->empty()) {
    RowReader reader(*rows, 0);
    claim.outcome = outcome_named(reader.text());
    claim.status = static_cast<int>(reader.number_or_nothing().value_or(0));
    claim.body = reader.text();
  }
  co_return claim;
}

async::Task<void> Idempotency::finish(std::string project_id,
                                      std::string key,
                                      int status,
                                      std::string body,
                                      base::Deadline deadline) {
  Params params;
  params.text(project_id).text(key).number(status).text(body);
  auto rows = co_await database_.run(finish_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<void> Idempotency::release(std::string project_id,
                                       std::string key,
                                       base::Deadline deadline) {
  Params params;
  params.text(project_id).text(key);
  auto rows = co_await database_.run(release_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::uint64_t> Idempotency::trim(base::Deadline deadline) {
  auto rows = co_await database_.run(trim_statement, {}, deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
