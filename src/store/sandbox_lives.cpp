// The part of Sandboxes that is about lives: pausing, suspending, restoring, and who is due for it.
#include "base/fault.hpp"
#include "base/id.hpp"
#include "store/sandbox_rows.hpp"

namespace store {
namespace {

// The row is locked first, so that the quota is asked for a restore that will happen. `counted`
// rows have their room already.
Statement const begin_statement{
    "sandboxes.begin",
    "with old as ("
    "  select * from sandboxes where id = $1 and state = $2 for update"
    "), granted as ("
    "  update project_usage u set vcpus = u.vcpus + old.vcpus, memory_mib = u.memory_mib + "
    "old.memory_mib"
    "  from old, projects p where not old.counted and u.project_id = old.project_id and p.id = "
    "old.project_id"
    "    and (p.quota_vcpus is null or u.vcpus + old.vcpus <= p.quota_vcpus)"
    "    and (p.quota_memory_mib is null or u.memory_mib + old.memory_mib <= p.quota_memory_mib)"
    "  returning old.id"
    "), allowed as ("
    "  select id from old where counted union all select id from granted"
    "), moved as ("
    "  update sandboxes s set state = $3, version = version + 1, counted = true,"
    "    epoch = epoch + case when $3 = 'restoring' then 1 else 0 end,"
    "    timeout_s = coalesce($4::int, timeout_s)"
    "  from allowed where s.id = allowed.id and s.state = $2 returning s.*"
    "), operation as ("
    "  insert into operations (id, public_id, project_id, kind, sandbox, lease_owner, lease_until,"
    "    idempotency_key, request_sha256, actor)"
    "  select $5::uuid, $6, project_id, $7, public_id, $8, now() + $9 * interval '1 second', $10, "
    "$11, $12 from moved"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, public_id, 'sandbox.' || state, $12,"
    "    jsonb_build_object('state', state, 'epoch', epoch, 'operation', $6::text) from moved"
    ") " +
        row_of("moved")};

Statement const claim_suspends_statement{
    "sandboxes.claim_suspends",
    "with due as ("
    "  select s.id, case when s.on_timeout = 'suspend' and s.deadline_at <= now() and $8 then "
    "'deadline'"
    "      when n.draining or n.name = $11 then 'host' else 'idle' end as why"
    "  from sandboxes s join nodes n on n.id = s.node_id where s.state = any($1)"
    "    and ($12 or s.suspend_after is null or s.suspend_after <= now())"
    "    and (($8 and s.on_timeout = 'suspend' and s.deadline_at <= now())"
    "      or ($9 and s.idle_timeout_s > 0 and s.state = 'running'"
    "        and greatest(s.used_at, s.started_at) + s.idle_timeout_s * interval '1 second' < "
    "now())"
    "      or ($10 and n.draining) or ($11 <> '' and n.name = $11))"
    "  order by s.deadline_at limit $2 for update of s skip locked"
    "), moved as ("
    "  update sandboxes s set state = 'suspending', version = s.version + 1"
    "  from due where s.id = due.id returning s.*, due.why"
    "), numbered as (select *, row_number() over () as n from moved"
    "), ids as (select * from unnest($3::uuid[], $4::text[]) with ordinality as i (id, public_id, "
    "n)"
    "), operation as ("
    "  insert into operations (id, public_id, project_id, kind, sandbox, lease_owner, lease_until, "
    "actor)"
    "  select ids.id, ids.public_id, m.project_id, $7, m.public_id, $5,"
    "    now() + $6 * interval '1 second', m.why from numbered m join ids using (n)"
    "  returning sandbox, public_id"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select m.project_id, m.public_id, 'sandbox.suspending', 'controller',"
    "    jsonb_build_object('state', m.state, 'epoch', m.epoch, 'reason', m.why, 'operation', "
    "o.public_id)"
    "  from moved m join operation o on o.sandbox = m.public_id"
    ") select o.public_id, s.why, " +
        std::string(live_columns) + " from moved s " + std::string(row_joins) +
        " join operation o on o.sandbox = s.public_id"};

Statement const set_problem_statement{
    "sandboxes.set_problem",
    "with moved as ("
    "  update sandboxes set problem = $2, version = version + 1"
    "  where id = $1 and state = 'suspended' and problem <> $2 returning *"
    ")"
    " insert into events (project_id, sandbox, type, actor, data)"
    " select project_id, public_id, 'sandbox.problem', 'worker',"
    "   jsonb_build_object('state', state, 'epoch', epoch, 'why', problem) from moved"};

// Once for each time that it is suspended.
Statement const tell_expiries_statement{
    "sandboxes.tell_expiries",
    "with moved as ("
    "  update sandboxes set expiry_told = true where id in ("
    "    select id from sandboxes where state = 'suspended' and not expiry_told"
    "      and expires_at <= now() + $1 * interval '1 second' limit 1000 for update skip locked"
    "  ) returning *"
    ")"
    " insert into events (project_id, sandbox, type, actor, data)"
    " select project_id, public_id, 'sandbox.expires_soon', 'controller', jsonb_build_object("
    "'state', state, 'epoch', epoch, 'expires_at', space_text(expires_at)) from moved"};

Statement const touch_statement{
    "sandboxes.touch",
    "update sandboxes set used_at = now() where public_id = any($1) and used_at < now() - interval "
    "'20 seconds'"};

}  // namespace

async::Task<Changed> Sandboxes::begin(Begin begin, base::Deadline deadline) {
  auto const transition = domain::find_transition(begin.from, begin.event);
  if (!transition || domain::is_terminal(transition->to)) {
    co_return base::fail(base::Code::internal,
                         fmt::format("{} in {} is no change to begin",
                                     domain::name_of(begin.event),
                                     domain::name_of(begin.from)));
  }
  if (SPACE_FAULT(transition->fault_before)) {
    co_return base::fail(base::Code::unavailable, "the database is not available (injected)");
  }
  Params params;
  params.text(begin.id)
      .text(std::string(domain::name_of(begin.from)))
      .text(std::string(domain::name_of(transition->to)));
  std::optional<std::int64_t> timeout;
  if (begin.timeout_s) timeout = *begin.timeout_s;
  params.number_or_null(timeout).text(base::make_uuid7()).text(begin.operation).text(begin.kind);
  params.text(begin.lease_owner).number(begin.lease.count());
  params.text_unless_empty(begin.idempotency_key).text(begin.request_sha256).text(begin.actor);
  auto rows = co_await database_.run(begin_statement, std::move(params), deadline);
  bool const applied = rows && !rows->empty();
  if (applied) SPACE_FAULT(transition->fault_after);
  auto changed = co_await changed_or_now(std::move(rows), begin.id, deadline);
  if (!changed || changed->applied || !changed->now || changed->now->state != begin.from ||
      begin.event != domain::SandboxEvent::restore)
    co_return changed;
  // It was there and did not move: there was no room for it.
  Params project;
  project.text(begin.project_id);
  auto usage = co_await database_.run(usage_statement, std::move(project), deadline);
  if (!usage) co_return base::passing(usage);
  co_return std::unexpected(
      refusal_of(*usage, {0, changed->now->vcpus, changed->now->memory_mib, 0}));
}

async::Task<std::vector<DueSandbox>> Sandboxes::claim_suspends(DueSuspends which,
                                                               std::string lease_owner,
                                                               std::chrono::seconds lease,
                                                               std::uint32_t limit,
                                                               base::Deadline deadline) {
  std::vector<std::string> ids;
  std::vector<std::string> public_ids;
  for (std::uint32_t i = 0; i < limit; ++i) {
    ids.push_back(base::make_uuid7());
    public_ids.push_back(base::make_short_id('x'));
  }
  Params params;
  params.texts(names_of(domain::states_that_allow(domain::SandboxEvent::suspend)))
      .number(limit)
      .texts(ids)
      .texts(public_ids);
  params.text(lease_owner).number(lease.count()).text("sandbox.suspend");
  params.boolean(which.deadlines)
      .boolean(which.idle)
      .boolean(which.draining)
      .text(which.node)
      .boolean(which.at_once);
  auto rows = co_await database_.run(claim_suspends_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<DueSandbox> due;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    DueSandbox one;
    one.operation = reader.text();
    one.actor = reader.text();
    one.sandbox = read_sandbox(reader);
    due.push_back(std::move(one));
  }
  co_return due;
}

async::Task<void> Sandboxes::set_problem(std::string id,
                                         std::string problem,
                                         base::Deadline deadline) {
  Params params;
  params.text(std::move(id)).text(std::move(problem));
  auto rows = co_await database_.run(set_problem_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::uint64_t> Sandboxes::tell_expiries(std::chrono::seconds before,
                                                    base::Deadline deadline) {
  Params params;
  params.number(before.count());
  auto rows = co_await database_.run(tell_expiries_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

async::Task<void> Sandboxes::touch(std::vector<std::string> public_ids, base::Deadline deadline) {
  Params params;
  params.texts(public_ids);
  auto rows = co_await database_.run(touch_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

}  // namespace store
