#include "store/events.hpp"

#include <charconv>

namespace store {
namespace {

constexpr std::string_view columns =
    " transaction::text::bigint, id, project_id, sandbox, type, actor, data, space_us(created_at) ";

// Rows of transactions below xmin only: every one of those has ended, so nothing can appear before
// the place we have read to.
Statement const read_statement{
    "events.read",
    fmt::format("select {} from events"
                " where (transaction, id) > ($1::text::xid8, $2::bigint)"
                " and transaction < pg_snapshot_xmin(pg_current_snapshot())"
                " order by transaction, id limit $3",
                columns),
    Statement::Kind::read};

Statement const read_project_statement{
    "events.read_project",
    fmt::format("select {} from events"
                " where project_id = $1 and (transaction, id) > ($2::text::xid8, $3::bigint)"
                " and transaction < pg_snapshot_xmin(pg_current_snapshot())"
                " order by transaction, id limit $4",
                columns),
    Statement::Kind::read};

Statement const read_sandbox_statement{
    "events.read_sandbox",
    fmt::format("select {} from events"
                " where project_id = $1 and (transaction, id) > ($2::text::xid8, $3::bigint)"
                " and transaction < pg_snapshot_xmin(pg_current_snapshot())"
                " and sandbox = $5 and sandbox <> ''"
                " order by transaction, id limit $4",
                columns),
    Statement::Kind::read};

Statement const end_statement{"events.end",
                              "select transaction::text::bigint, id from events"
                              " where transaction < pg_snapshot_xmin(pg_current_snapshot())"
                              " order by transaction desc, id desc limit 1",
                              Statement::Kind::read};

Statement const add_statement{
    "events.add",
    "insert into events (project_id, sandbox, type, actor, data) values ($1, $2, $3, $4, $5)"};

Statement const trim_statement{"events.trim",
                               "delete from events where (transaction, id) in"
                               " (select transaction, id from events where created_at < now() - $1 "
                               "* interval '1 hour' limit 5000)"};

EventRow read_row(Rows const& rows, std::size_t row) {
  RowReader reader(rows, row);
  EventRow event;
  event.cursor.transaction = reader.as<std::uint64_t>();
  event.cursor.id = reader.as<std::uint64_t>();
  event.project_id = reader.text();
  event.sandbox = reader.text();
  event.type = reader.text();
  event.actor = reader.text();
  event.data = reader.document();
  event.created_at = reader.time();
  return event;
}

std::vector<EventRow> read_rows(Rows const& rows) {
  std::vector<EventRow> events;
  for (std::size_t i = 0; i < rows.size(); ++i)
    events.push_back(read_row(rows, i));
  return events;
}

}  // namespace

std::string to_text(EventCursor cursor) {
  return fmt::format("{}-{}", cursor.transaction, cursor.id);
}

base::Result<EventCursor> parse_cursor(std::string_view text) {
  auto const wrong = [] {
    return base::fail(base::Code::invalid_argument,
                      "Last-Event-ID: expected the id of an event, such as \"1042-77\"");
  };
  EventCursor cursor;
  auto const* const end = text.data() + text.size();
  auto const first = std::from_chars(text.data(), end, cursor.transaction);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return wrong();
  auto const second = std::from_chars(first.ptr + 1, end, cursor.id);
  if (second.ec != std::errc() || second.ptr != end) return wrong();
  // Both are signed 64 bits in the database.
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (cursor.transaction > most || cursor.id > most || to_text(cursor) != text) return wrong();
  return cursor;
}

async::Task<void> Events::add(NewEvent event, base::Deadline deadline) {
  Params params;
  params.text(event.project_id)
      .text(event.sandbox)
      .text(event.type)
      .text(event.actor)
      .document(event.data);
  auto rows = co_await database_.run(add_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<EventRow>> Events::read(EventCursor after,
                                                std::uint32_t limit,
                                                base::Deadline deadline) {
  Params params;
  params.text(std::to_string(after.transaction))
      .number(static_cast<std::int64_t>(after.id))
      .number(limit);
  auto rows = co_await database_.run(read_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_rows(*rows);
}

async::Task<std::vector<EventRow>> Events::read_of(std::string project_id,
                                                   std::string sandbox,
                                                   EventCursor after,
                                                   std::uint32_t limit,
                                                   base::Deadline deadline) {
  Params params;
  params.text(project_id)
      .text(std::to_string(after.transaction))
      .number(static_cast<std::int64_t>(after.id))
      .number(limit);
  if (!sandbox.empty()) params.text(sandbox);
  Statement const& statement = sandbox.empty() ? read_project_statement : read_sandbox_statement;
  auto rows = co_await database_.run(statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_rows(*rows);
}

async::Task<EventCursor> Events::end(base::Deadline deadline) {
  auto rows = co_await database_.run(end_statement, {}, deadline);
  if (!rows) co_return base::passing(rows);
  EventCursor cursor;
  if (!rows->empty()) {
    RowReader reader(*rows, 0);
    cursor.transaction = reader.as<std::uint64_t>();
    cursor.id = reader.as<std::uint64_t>();
  }
  co_return cursor;
}

async::Task<std::uint64_t> Events::trim(std::chrono::hours keep, base::Deadline deadline) {
  Params params;
  params.number(keep.count());
  auto rows = co_await database_.run(trim_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
