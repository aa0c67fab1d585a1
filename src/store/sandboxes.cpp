#include "store/sandboxes.hpp"

#include "base/fault.hpp"
#include "base/id.hpp"
#include "store/sandbox_rows.hpp"

namespace store {
namespace {

// One statement, so that one round trip and one commit: the usage is raised only within the quota,
// and the row lock on it makes parallel creates of one project take turns. The node is looked up in
// the same place, else a missing one would leave the usage raised. So is the snapshot that it
// starts from: the lock makes a delete of that wait until it sees this row, or this see the delete.
Statement const create_statement{
    "sandboxes.create",
    "with origin as materialized ("
    "  select id from snapshots where public_id = $27::text and project_id = $2 and state = 'ready'"
    "  for share"
    "), usage as ("
    "  update project_usage u set sandboxes = u.sandboxes + 1, vcpus = u.vcpus + $5,"
    "    memory_mib = u.memory_mib + $6, disk_mib = u.disk_mib + $7"
    "  from projects p, nodes n"
    "  where u.project_id = $2 and p.id = u.project_id and n.name = $3"
    "    and (p.quota_sandboxes is null or u.sandboxes + 1 <= p.quota_sandboxes)"
    "    and (p.quota_vcpus is null or u.vcpus + $5 <= p.quota_vcpus)"
    "    and (p.quota_memory_mib is null or u.memory_mib + $6 <= p.quota_memory_mib)"
    "    and (p.quota_disk_mib is null or u.disk_mib + $7 <= p.quota_disk_mib)"
    "    and ($27 = '' or exists (select from origin))"
    "  returning u.project_id, n.id as node_id, p.idle_timeout_s"
    "), made as ("
    "  insert into sandboxes (id, public_id, project_id, state, node_id, build_id, vcpus, "
    "memory_mib, disk_mib,"
    "    metadata, env_sealed, timeout_s, on_timeout, auto_resume, secure, token_sha256, network, "
    "api, created_by, idle_timeout_s, parent, snapshot)"
    "  select $8::uuid, $1, usage.project_id, 'creating', usage.node_id, $4, $5, $6, $7,"
    "    $9::jsonb, $10, $11, $12, $13, $14, $15, $16, $17, $18, coalesce($25::int, "
    "usage.idle_timeout_s, $28::int), $26, $27 from usage"
    "  returning *"
    "), operation as ("
    "  insert into operations (id, public_id, project_id, kind, sandbox, lease_owner, lease_until,"
    "    idempotency_key, request_sha256, actor)"
    "  select $19::uuid, $20, made.project_id, 'sandbox.create', made.public_id, $21,"
    "    now() + $22 * interval '1 second', $23, $24, $18 from made"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, public_id, 'sandbox.creating', $18,"
    "    jsonb_build_object('state', state, 'epoch', epoch, 'operation', $20::text) from made"
    ") " +
        row_of("made")};

Statement const origin_statement{
    "sandboxes.origin",
    "select exists (select from snapshots where public_id = $1 and state = 'ready')",
    Statement::Kind::read};

Statement const apply_statement{
    "sandboxes.apply",
    "with moved as ("
    "  update sandboxes set state = $3, version = version + 1,"
    "    started_at = case when $6 then now() else started_at end,"
    "    deadline_at = case when $6 and timeout_s > 0 then now() + timeout_s * interval '1 second'"
    "      when $6 then null"
    "      when $3 = 'suspended' and $2 = 'suspending' and ($16::int is null or on_timeout <> "
    "'delete') then null"
    "      when $3 = 'suspended' and $2 = 'suspending' and deadline_at is not null"
    "        then greatest(deadline_at, now() + $16::int * interval '1 second')"
    "      else deadline_at end,"
    "    timeline = coalesce($7::jsonb, timeline),"
    "    end_reason = case when $8 <> '' then $8 else end_reason end,"
    "    end_detail = case when $8 <> '' then $9 else end_detail end,"
    "    suspended_at = case when $3 = 'suspended' then coalesce(suspended_at, now())"
    "      when $3 in ('running', 'paused') then null else suspended_at end,"
    "    suspended_bytes = case when $3 = 'suspended' and $2 = 'suspending' then $15::bigint "
    "      when $6 then 0 else suspended_bytes end,"
    "    problem = case when $6 then '' when $2 = 'restoring' and $3 = 'suspended' then $14 else "
    "problem end,"
    "    suspend_after = case when $2 = 'suspending' and $3 = 'running' then now() + interval '30 "
    "seconds'"
    "      else suspend_after end,"
    "    used_at = case when $3 = 'running' then now() else used_at end,"
    "    expires_at = case when $6 then null when $3 = 'suspended' and $2 = 'suspending' then now()"
    "      + (select suspended_keep_s from projects p where p.id = project_id) * interval '1 "
    "second'"
    "      else expires_at end,"
    "    expiry_told = expiry_told and $3 <> 'suspended',"
    "    counted = counted and $3 <> 'suspended'"
    "  where id = $1 and state = $2 and ($4::bigint = 0 or version = $4) and ($5::bigint = 0 or "
    "epoch = $5)"
    "  returning *"
    // Processors and memory of a suspended one are free for others.
    "), usage as ("
    "  update project_usage u set vcpus = u.vcpus - m.vcpus, memory_mib = u.memory_mib - "
    "m.memory_mib"
    "  from moved m where m.state = 'suspended' and u.project_id = m.project_id"
    "), operation as ("
    "  update operations set state = case when $13 = '' then 'succeeded' else 'failed' end,"
    "    error_code = $13, error_message = case when $13 = '' then '' else $14 end, finished_at = "
    "now()"
    "  where public_id = $11 and finished_at is null and exists (select from moved)"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, public_id, 'sandbox.' || state, $10,"
    "    coalesce($12::jsonb, '{}') || jsonb_build_object('state', state, 'epoch', epoch)"
    "      || case when $11 <> '' then jsonb_build_object('operation', $11::text) else '{}' end"
    "      || case when $8 <> '' then jsonb_build_object('reason', $8::text) else '{}' end"
    "      || case when expires_at is not null then jsonb_build_object('expires_at', "
    "space_text(expires_at)) else '{}' end from moved"
    ") " +
        row_of("moved")};

Statement const reassign_statement{
    "sandboxes.reassign",
    "with moved as ("
    "  update sandboxes s set node_id = n.id, epoch = s.epoch + 1, version = s.version + 1"
    "  from nodes n where n.name = $3 and s.id = $1 and s.epoch = $2 and s.state = 'creating'"
    "  returning s.*"
    ") " +
        row_of("moved")};

// `deleting` rows know their reason; what the worker saw then is only the echo of the delete.
Statement const end_statement{
    "sandboxes.end",
    "with gone as ("
    "  delete from sandboxes where id = $1 and state = any($2) and ($3::bigint = 0 or epoch = $3) "
    "returning *"
    "), kept as ("
    "  insert into ended_sandboxes (id, public_id, project_id, state, version, epoch, node_id, "
    "build_id, vcpus,"
    "    memory_mib, disk_mib, metadata, timeout_s, on_timeout, auto_resume, secure, network, api, "
    "created_by,"
    "    created_at, started_at, timeline, end_reason, end_detail, console_tail, parent, snapshot)"
    "  select id, public_id, project_id, $4, version + 1, epoch, node_id, build_id, vcpus, "
    "memory_mib, disk_mib,"
    "    metadata, timeout_s, on_timeout, auto_resume, secure, network, api, created_by, "
    "created_at, started_at,"
    "    timeline, case when end_reason <> '' then end_reason else $5 end,"
    "    case when end_reason <> '' then end_detail else $6 end, $7, parent, snapshot "
    "from gone"
    "  returning *"
    // What it brought along is of no use to anybody but a thief.
    "), secrets as ("
    "  delete from sandbox_credentials c using gone g where c.sandbox = g.public_id"
    "), usage as ("
    "  update project_usage u set sandboxes = u.sandboxes - 1, disk_mib = u.disk_mib - g.disk_mib,"
    "    vcpus = u.vcpus - case when g.counted then g.vcpus else 0 end,"
    "    memory_mib = u.memory_mib - case when g.counted then g.memory_mib else 0 end"
    "  from gone g where u.project_id = g.project_id"
    "), finished as ("
    "  update operations o set finished_at = now(),"
    "    state = case when o.kind = 'sandbox.delete' then 'succeeded' else 'failed' end,"
    "    error_code = case when o.kind = 'sandbox.delete' then ''"
    "      when o.kind = 'sandbox.create' and g.state <> 'deleting' then $9 else 'conflict' end,"
    "    error_message = case when o.kind = 'sandbox.delete' then ''"
    "      when g.state = 'deleting' then 'the sandbox was deleted meanwhile'"
    // What it was to do cannot be repeated: there is no such sandbox any more.
    "      when o.kind = 'sandbox.create' then $6 else 'the sandbox has ended: ' || $6 end"
    "  from gone g where o.sandbox = g.public_id and o.finished_at is null"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, public_id, 'sandbox.' || state, $8,"
    "    jsonb_build_object('state', state, 'epoch', epoch, 'reason', end_reason, 'detail', "
    "end_detail) from kept"
    ") select count(*) from kept"};

Statement const set_timeout_statement{
    "sandboxes.set_timeout",
    "with moved as ("
    "  update sandboxes set version = version + 1, timeout_s = coalesce($2::int, 0),"
    "    deadline_at = now() + $2::int * interval '1 second'"
    "  where id = $1 and state in ('running', 'paused')"
    "    and not ($3 and (deadline_at is null or deadline_at >= now() + $2::int * interval '1 "
    "second'))"
    "  returning *"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select project_id, public_id, 'sandbox.timeout_set', $4,"
    "    jsonb_build_object('state', state, 'epoch', epoch, 'timeout_s', timeout_s) from moved"
    ") " +
        row_of("moved")};

Statement const rotate_statement{"sandboxes.rotate_token",
                                 "with moved as ("
                                 "  update sandboxes set version = version + 1, token_generation = "
                                 "token_generation + 1, token_sha256 = $3"
                                 "  where id = $1 and token_generation = $2 returning *"
                                 "), event as ("
                                 "  insert into events (project_id, sandbox, type, actor, data)"
                                 "  select project_id, public_id, 'sandbox.token_rotated', $4,"
                                 "    jsonb_build_object('state', state, 'epoch', epoch) from moved"
                                 ") " +
                                     row_of("moved")};

Statement const metadata_statement{
    "sandboxes.replace_metadata",
    "update sandboxes set metadata = $2, version = version + 1 where id = $1"};

Statement const claim_due_statement{
    "sandboxes.claim_due",
    "with due as ("
    "  select id, case when deadline_at <= now() and on_timeout = 'delete' then 'deadline' else "
    "'idle' end as why"
    "  from sandboxes where (deadline_at <= now() and on_timeout = 'delete' and state = any($1))"
    "    or (expires_at <= now() and state = 'suspended')"
    "  order by coalesce(deadline_at, expires_at) limit $2 for update skip locked"
    "), moved as ("
    "  update sandboxes s set state = 'deleting', version = s.version + 1, end_reason = due.why,"
    "    end_detail = case when due.why = 'idle' then 'it was suspended for longer than its "
    "project "
    "keeps those' else '' end"
    "  from due where s.id = due.id returning s.*"
    "), numbered as (select *, row_number() over () as n from moved"
    "), ids as (select * from unnest($3::uuid[], $4::text[]) with ordinality as i (id, public_id, "
    "n)"
    "), operation as ("
    "  insert into operations (id, public_id, project_id, kind, sandbox, lease_owner, lease_until, "
    "actor)"
    "  select ids.id, ids.public_id, m.project_id, 'sandbox.delete', m.public_id, $5,"
    "    now() + $6 * interval '1 second', 'controller' from numbered m join ids using (n)"
    "  returning sandbox, public_id"
    "), event as ("
    "  insert into events (project_id, sandbox, type, actor, data)"
    "  select m.project_id, m.public_id, 'sandbox.deleting', 'controller',"
    "    jsonb_build_object('state', m.state, 'epoch', m.epoch, 'reason', m.end_reason, "
    "'operation', o.public_id)"
    "  from moved m join operation o on o.sandbox = m.public_id"
    ") select o.public_id, " +
        std::string(live_columns) + " from moved s " + std::string(row_joins) +
        " join operation o on o.sandbox = s.public_id"};

Statement const trim_statement{
    "sandboxes.trim_history",
    "delete from ended_sandboxes where id in"
    " (select id from ended_sandboxes where ended_at < now() - $1 * interval '1 hour' limit 1000)"};

json::object document_of(std::map<std::string, std::string> const& map) {
  json::object object;
  for (auto const& [key, value] : map)
    object[key] = value;
  return object;
}

}  // namespace

async::Task<SandboxRow> Sandboxes::create(NewSandbox sandbox, base::Deadline deadline) {
  if (SPACE_FAULT("store.create.before_commit")) {
    co_return base::fail(base::Code::unavailable, "the database is not available (injected)");
  }
  Params params;
  params.text(sandbox.public_id).text(sandbox.project_id).text(sandbox.node).text(sandbox.build_id);
  params.number(sandbox.vcpus).number(sandbox.memory_mib).number(sandbox.disk_mib);
  params.text(base::make_uuid7()).document(document_of(sandbox.metadata)).text(sandbox.env_sealed);
  params.number(sandbox.timeout_s)
      .text(sandbox.on_timeout)
      .boolean(sandbox.auto_resume)
      .boolean(sandbox.secure);
  params.text(sandbox.token_sha256).document(sandbox.network).text(sandbox.api).text(sandbox.actor);
  params.text(base::make_uuid7()).text(sandbox.operation_public_id).text(sandbox.lease_owner);
  params.number(sandbox.lease.count())
      .text_unless_empty(sandbox.idempotency_key)
      .text(sandbox.request_sha256);
  std::optional<std::int64_t> idle;
  if (sandbox.idle_timeout_s) idle = *sandbox.idle_timeout_s;
  params.number_or_null(idle).text(sandbox.parent).text(sandbox.snapshot);
  params.number(idle_timeout_default.count());
  auto rows = co_await database_.run(create_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  if (!rows->empty()) {
    SPACE_FAULT("store.create.after_commit");
    co_return read_sandbox(*rows, 0);
  }
  if (!sandbox.snapshot.empty()) {
    Params origin;
    origin.text(sandbox.snapshot);
    auto there = co_await database_.run(origin_statement, std::move(origin), deadline);
    if (!there) co_return base::passing(there);
    if (!RowReader(*there, 0).boolean())
      co_return base::fail(base::Code::not_found,
                           fmt::format("the snapshot \"{}\" is gone", sandbox.snapshot));
  }
  Params project;
  project.text(sandbox.project_id);
  auto usage = co_await database_.run(usage_statement, std::move(project), deadline);
  if (!usage) co_return base::passing(usage);
  co_return std::unexpected(
      refusal_of(*usage, {1, sandbox.vcpus, sandbox.memory_mib, sandbox.disk_mib}));
}

async::Task<Changed> Sandboxes::apply(Change change, base::Deadline deadline) {
  auto const transition = domain::find_transition(change.from, change.event);
  if (!transition || domain::is_terminal(transition->to)) {
    co_return base::fail(base::Code::internal,
                         fmt::format("{} in {} is no change to apply",
                                     domain::name_of(change.event),
                                     domain::name_of(change.from)));
  }
  if (SPACE_FAULT(transition->fault_before)) {
    co_return base::fail(base::Code::unavailable, "the database is not available (injected)");
  }
  bool const started = change.event == domain::SandboxEvent::started ||
                       change.event == domain::SandboxEvent::restore_done;
  Params params;
  params.text(change.id)
      .text(std::string(domain::name_of(change.from)))
      .text(std::string(domain::name_of(transition->to)));
  params.number(static_cast<std::int64_t>(change.version))
      .number(static_cast<std::int64_t>(change.epoch))
      .boolean(started);
  params.document(change.timeline);
  params.text(change.reason ? std::string(domain::name_of(*change.reason)) : std::string())
      .text(change.detail);
  params.text(change.actor).text(change.operation).document(change.data);
  params.text(change.error_code).text(change.error_message);
  std::optional<std::int64_t> grace;
  if (change.deadline_grace) grace = change.deadline_grace->count();
  params.number(static_cast<std::int64_t>(change.suspended_bytes)).number_or_null(grace);
  auto rows = co_await database_.run(apply_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  Changed changed;
  changed.applied = !rows->empty();
  if (changed.applied) {
    SPACE_FAULT(transition->fault_after);
    changed.now = read_sandbox(*rows, 0);
    co_return changed;
  }
  auto now = co_await find_row(change.id, deadline);
  if (!now) co_return base::passing(now);
  changed.now = std::move(*now);
  co_return changed;
}

async::Task<Changed> Sandboxes::reassign(std::string id,
                                         std::uint64_t epoch,
                                         std::string node,
                                         base::Deadline deadline) {
  Params params;
  params.text(id).number(static_cast<std::int64_t>(epoch)).text(node);
  auto rows = co_await database_.run(reassign_statement, std::move(params), deadline);
  auto changed = co_await changed_or_now(std::move(rows), std::move(id), deadline);
  co_return changed;
}

async::Task<bool> Sandboxes::end(End end, base::Deadline deadline) {
  auto const states = domain::states_that_allow(end.event);
  auto const transition =
      states.empty() ? std::nullopt : domain::find_transition(states.front(), end.event);
  if (!transition || !domain::is_terminal(transition->to)) {
    co_return base::fail(base::Code::internal,
                         fmt::format("{} is no end", domain::name_of(end.event)));
  }
  if (SPACE_FAULT(transition->fault_before)) {
    co_return base::fail(base::Code::unavailable, "the database is not available (injected)");
  }
  if (end.detail.empty()) end.detail = domain::sentence_of(end.reason);
  Params params;
  params.text(end.id).texts(names_of(states)).number(static_cast<std::int64_t>(end.epoch));
  params.text(std::string(domain::name_of(transition->to)))
      .text(std::string(domain::name_of(end.reason)));
  params.text(end.detail).text(end.console_tail).text(end.actor).text(end.error_code);
  auto rows = co_await database_.run(end_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  RowReader reader(*rows, 0);
  bool const ended = reader.number() > 0;
  if (ended) SPACE_FAULT(transition->fault_after);
  co_return ended;
}

async::Task<Changed> Sandboxes::set_timeout(std::string id,
                                            std::optional<std::uint32_t> timeout_s,
                                            bool extend_only,
                                            std::string actor,
                                            base::Deadline deadline) {
  Params params;
  std::optional<std::int64_t> seconds;
  if (timeout_s) seconds = *timeout_s;
  params.text(id).number_or_null(seconds).boolean(extend_only).text(actor);
  auto rows = co_await database_.run(set_timeout_statement, std::move(params), deadline);
  auto changed = co_await changed_or_now(std::move(rows), std::move(id), deadline);
  co_return changed;
}

async::Task<Changed> Sandboxes::rotate_token(std::string id,
                                             std::uint32_t generation,
                                             std::string token_sha256,
                                             std::string actor,
                                             base::Deadline deadline) {
  Params params;
  params.text(id).number(generation).text(token_sha256).text(actor);
  auto rows = co_await database_.run(rotate_statement, std::move(params), deadline);
  auto changed = co_await changed_or_now(std::move(rows), std::move(id), deadline);
  co_return changed;
}

async::Task<void> Sandboxes::replace_metadata(std::string id,
                                              std::map<std::string, std::string> metadata,
                                              base::Deadline deadline) {
  Params params;
  params.text(id).document(document_of(metadata));
  auto rows = co_await database_.run(metadata_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<DueSandbox>> Sandboxes::claim_due(std::string lease_owner,
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
  auto states = names_of(domain::states_that_allow(domain::SandboxEvent::end));
  // What is under way is let come to its end first: it is seconds.
  std::erase_if(states, [](auto const& one) { return one == "suspending" || one == "restoring"; });
  params.texts(states).number(limit).texts(ids).texts(public_ids);
  params.text(lease_owner).number(lease.count());
  auto rows = co_await database_.run(claim_due_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<DueSandbox> due;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    DueSandbox one;
    one.operation = reader.text();
    one.sandbox = read_sandbox(reader);
    due.push_back(std::move(one));
  }
  co_return due;
}

async::Task<std::uint64_t> Sandboxes::trim_history(std::chrono::hours keep,
                                                   base::Deadline deadline) {
  Params params;
  params.number(keep.count());
  auto rows = co_await database_.run(trim_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

async::Task<Changed> Sandboxes::changed_or_now(base::Result<Rows> rows,
                                               std::string id,
                                               base::Deadline deadline) {
  if (!rows) co_return base::passing(rows);
  Changed changed;
  changed.applied = !rows->empty();
  if (changed.applied) {
    changed.now = read_sandbox(*rows, 0);
    co_return changed;
  }
  auto now = co_await find_row(std::move(id), deadline);
  if (!now) co_return base::passing(now);
  changed.now = std::move(*now);
  co_return changed;
}

}  // namespace store
