#include "store/nodes.hpp"

#include "base/id.hpp"

namespace store {
namespace {

Statement const upsert_statement{"nodes.upsert",
                                 "insert into nodes (id, name, address) values ($1, $2, $3)"
                                 " on conflict (name) do update set address = excluded.address"
                                 " where nodes.address <> excluded.address"};

Statement const list_statement{"nodes.list",
                               "select name, address, draining, report, space_us(heartbeat_at), "
                               "space_us(lost_at), space_us(created_at) from nodes order by name",
                               Statement::Kind::read};

// All nodes of a round at once: single updates would cost a commit each.
Statement const beat_statement{
    "nodes.beat",
    "update nodes n set report = b.report, heartbeat_at = now(), lost_at = null"
    " from jsonb_to_recordset($1::jsonb) as b (name text, report jsonb) where n.name = b.name"};

Statement const declare_lost_statement{
    "nodes.declare_lost", "update nodes set lost_at = now() where name = $1 returning name"};

Statement const set_draining_statement{
    "nodes.set_draining", "update nodes set draining = $2 where name = $1 returning name"};

}  // namespace

async::Task<void> Nodes::upsert(std::string name, std::string address, base::Deadline deadline) {
  Params params;
  params.text(base::make_uuid7()).text(name).text(address);
  auto rows = co_await database_.run(upsert_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<NodeRow>> Nodes::list(base::Deadline deadline) {
  auto rows = co_await database_.run(list_statement, {}, deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<NodeRow> nodes;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    NodeRow node;
    node.name = reader.text();
    node.address = reader.text();
    node.draining = reader.boolean();
    // What a newer or older program wrote there may have other fields.
    auto report = wire::decode<wire::NodeReport>(reader.document(), wire::UnknownKeys::ignore);
    if (report) node.report = std::move(*report);
    node.heartbeat_at = reader.time_or_nothing();
    node.lost_at = reader.time_or_nothing();
    node.created_at = reader.time();
    nodes.push_back(std::move(node));
  }
  co_return nodes;
}

async::Task<void> Nodes::beat(std::vector<Heartbeat> beats, base::Deadline deadline) {
  json::array array;
  for (auto const& beat : beats)
    array.push_back({{"name", beat.name}, {"report", wire::encode(beat.report)}});
  Params params;
  params.document(array);
  auto rows = co_await database_.run(beat_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<void> Nodes::set_draining(std::string name, bool draining, base::Deadline deadline) {
  Params params;
  params.text(name).boolean(draining);
  auto rows = co_await database_.run(set_draining_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  if (rows->empty()) {
    co_return base::fail(base::Code::not_found, fmt::format("there is no node \"{}\"", name));
  }
  co_return base::Result<void>();
}

async::Task<void> Nodes::declare_lost(std::string name, base::Deadline deadline) {
  Params params;
  params.text(name);
  auto rows = co_await database_.run(declare_lost_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  if (rows->empty()) {
    co_return base::fail(base::Code::not_found, fmt::format("there is no node \"{}\"", name));
  }
  co_return base::Result<void>();
}

}  // namespace store
