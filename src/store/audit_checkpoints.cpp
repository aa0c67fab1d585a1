#include "store/audit_checkpoints.hpp"

#include <algorithm>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace store {
namespace {

Statement const find_statement{
    "audit.find",
    "select coalesce(a.public_key, ''), coalesce(a.problem, ''), space_us(a.problem_at),"
    " c.first_sequence, c.last_sequence, c.hash, c.made_at_us, c.signature"
    " from nodes n left join audit_nodes a on a.node_id = n.id"
    " left join lateral (select * from audit_checkpoints where node_id = n.id"
    " order by last_sequence desc limit 1) c on true where n.name = $1",
    Statement::Kind::read};

Statement const enroll_statement{
    "audit.enroll",
    "insert into audit_nodes (node_id, public_key)"
    " select id, $2 from nodes where name = $1 on conflict do nothing"};

// One that names the same line again tells of retention.
Statement const add_statement{
    "audit.add",
    "insert into audit_checkpoints (node_id, last_sequence, first_sequence, hash, made_at_us, "
    "signature)"
    " select n.id, r.last_sequence, r.first_sequence, r.hash, r.made_at_us, r.signature"
    " from nodes n, jsonb_to_recordset($2::jsonb) as r(last_sequence bigint, first_sequence "
    "bigint, hash text, made_at_us bigint, signature text)"
    " where n.name = $1 and r.last_sequence >= coalesce((select max(last_sequence) from "
    "audit_checkpoints where node_id = n.id), 0)"
    " on conflict (node_id, last_sequence) do update set first_sequence = excluded.first_sequence,"
    " made_at_us = excluded.made_at_us, signature = excluded.signature"
    " where audit_checkpoints.hash = excluded.hash"
    " and audit_checkpoints.first_sequence < excluded.first_sequence"};

Statement const complain_statement{
    "audit.complain",
    "with node as (update audit_nodes a set problem = $2, problem_at = now() from nodes n"
    "  where n.name = $1 and a.node_id = n.id and a.problem = '' returning n.name),"
    " event as (insert into events (project_id, sandbox, type, actor, data)"
    "  select p.id, '', 'audit.broken', 'controller',"
    "  jsonb_build_object('node', node.name, 'problem', $2::text)"
    "  from node, (select id from projects order by created_at, id limit 1) p)"
    " select name from node"};

Statement const list_statement{
    "audit.list",
    "select first_sequence, last_sequence, hash, made_at_us, signature"
    " from audit_checkpoints where node_id = (select id from nodes where name = $1)"
    " and last_sequence > $2 order by last_sequence limit $3",
    Statement::Kind::read};

Statement const forget_statement{
    "audit.forget",
    "with node as (delete from audit_nodes a using nodes n where n.name = $1 and a.node_id = n.id"
    "  returning n.id, n.name, a.problem),"
    " gone as (delete from audit_checkpoints c using node where c.node_id = node.id),"
    " event as (insert into events (project_id, sandbox, type, actor, data)"
    "  select p.id, '', 'audit.accepted', $2,"
    "  jsonb_build_object('node', node.name, 'problem', node.problem)"
    "  from node, (select id from projects order by created_at, id limit 1) p)"
    " select name from node"};

Statement const trim_statement{
    "audit.trim",
    "delete from audit_checkpoints c using (select node_id, max(first_sequence) as first,"
    " max(last_sequence) as last from audit_checkpoints group by node_id) n"
    " where c.node_id = n.node_id and c.last_sequence < n.last and (c.last_sequence < n.first"
    " or (c.received_at < now() - interval '7 days' and exists (select from audit_checkpoints l"
    "  where l.node_id = c.node_id and l.last_sequence > c.last_sequence"
    "  and date_trunc('hour', l.received_at) = date_trunc('hour', c.received_at))))"};

wire::AuditCheckpoint read_checkpoint(RowReader& reader, std::string const& node) {
  wire::AuditCheckpoint out;
  out.node = node;
  out.first_sequence = reader.as<std::uint64_t>();
  out.last_sequence = reader.as<std::uint64_t>();
  out.hash = reader.text();
  out.made_at_us = reader.number();
  out.signature = reader.text();
  return out;
}

}  // namespace

async::Task<AuditNode> AuditCheckpoints::find(std::string node, base::Deadline deadline) {
  Params params;
  params.text(node);
  auto rows = co_await database_.run(find_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  AuditNode out;
  if (rows->empty()) co_return out;
  RowReader reader(*rows, 0);
  out.known = true;
  out.public_key = reader.text();
  out.problem = reader.text();
  out.problem_at = reader.time_or_nothing();
  if (rows->at(0, 3)) out.latest = read_checkpoint(reader, node);
  co_return out;
}

async::Task<void> AuditCheckpoints::enroll(std::string node,
                                           std::string public_key,
                                           base::Deadline deadline) {
  Params params;
  params.text(std::move(node)).text(std::move(public_key));
  auto rows = co_await database_.run(enroll_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<void> AuditCheckpoints::add(std::string node,
                                        std::vector<wire::AuditCheckpoint> checkpoints,
                                        base::Deadline deadline) {
  json::array documents;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    auto const& one = checkpoints[i];
    // Of two that name the same line the later one; a statement may not meet a row twice.
    bool const again =
        i + 1 < checkpoints.size() && checkpoints[i + 1].last_sequence == one.last_sequence;
    if (again) continue;
    documents.push_back(json::object{{"last_sequence", one.last_sequence},
                                     {"first_sequence", one.first_sequence},
                                     {"hash", one.hash},
                                     {"made_at_us", one.made_at_us},
                                     {"signature", one.signature}});
  }
  Params params;
  params.text(std::move(node)).document(documents);
  auto rows = co_await database_.run(add_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<bool> AuditCheckpoints::complain(std::string node,
                                             std::string problem,
                                             base::Deadline deadline) {
  Params params;
  params.text(std::move(node)).text(std::move(problem));
  auto rows = co_await database_.run(complain_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return !rows->empty();
}

async::Task<std::vector<wire::AuditCheckpoint>> AuditCheckpoints::list(std::string node,
                                                                       std::uint64_t after,
                                                                       std::uint32_t limit,
                                                                       base::Deadline deadline) {
  Params params;
  params.text(node).number(static_cast<std::int64_t>(after)).number(limit);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<wire::AuditCheckpoint> out;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    out.push_back(read_checkpoint(reader, node));
  }
  co_return out;
}

async::Task<bool> AuditCheckpoints::forget(std::string node,
                                           std::string actor,
                                           base::Deadline deadline) {
  Params params;
  params.text(std::move(node)).text(std::move(actor));
  auto rows = co_await database_.run(forget_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return !rows->empty();
}

async::Task<std::uint64_t> AuditCheckpoints::trim(base::Deadline deadline) {
  auto rows = co_await database_.run(trim_statement, {}, deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
