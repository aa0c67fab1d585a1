#include "store/metrics.hpp"

#include <charconv>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace store {
namespace {

constexpr std::string_view columns =
    " sandbox, space_us(at), cpu_count, cpu_used_pct, memory_used, memory_total, memory_cache, "
    "disk_used, disk_total ";

Statement const add_statement{"metrics.add",
                              "insert into metrics (sandbox, at, cpu_count, cpu_used_pct, "
                              "memory_used, memory_total, memory_cache, disk_used, disk_total)"
                              " select sandbox, date_trunc('second', space_time(at_us)), "
                              "cpu_count, cpu_used_pct, memory_used, memory_total,"
                              " memory_cache, disk_used, disk_total"
                              " from jsonb_to_recordset($1::jsonb) as r(sandbox text, at_us "
                              "bigint, cpu_count int, cpu_used_pct double precision,"
                              " memory_used bigint, memory_total bigint, memory_cache bigint, "
                              "disk_used bigint, disk_total bigint)"
                              " on conflict do nothing"};

Statement const list_statement{
    "metrics.list",
    fmt::format("select * from (select {} from metrics where sandbox = $1"
                " and ($2::bigint is null or at >= date_trunc('second', space_time($2)))"
                " and ($3::bigint is null or at <= date_trunc('second', space_time($3)))"
                " order by at desc limit $4) newest order by 2",
                columns),
    Statement::Kind::read};

Statement const latest_statement{"metrics.latest",
                                 fmt::format("select distinct on (sandbox) {} from metrics where "
                                             "sandbox = any($1::text[]) order by sandbox, at desc",
                                             columns),
                                 Statement::Kind::read};

Statement const trim_statement{"metrics.trim",
                               "delete from metrics where at < now() - $1 * interval '1 hour'"
                               " or (at < now() - interval '10 minutes' and not exists (select "
                               "from sandboxes s where s.public_id = metrics.sandbox))"};

double real_of(std::string_view text) {
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

MetricRow read_row(Rows const& rows, std::size_t row) {
  RowReader reader(rows, row);
  MetricRow metric;
  metric.sandbox = reader.text();
  metric.at = reader.time();
  metric.cpu_count = reader.as<std::uint32_t>();
  metric.cpu_used_pct = real_of(reader.text());
  metric.memory_used = reader.as<std::uint64_t>();
  metric.memory_total = reader.as<std::uint64_t>();
  metric.memory_cache = reader.as<std::uint64_t>();
  metric.disk_used = reader.as<std::uint64_t>();
  metric.disk_total = reader.as<std::uint64_t>();
  return metric;
}

std::vector<MetricRow> read_rows(Rows const& rows) {
  std::vector<MetricRow> metrics;
  metrics.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    metrics.push_back(read_row(rows, i));
  return metrics;
}

std::int64_t microseconds(base::WallTime time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

async::Task<void> Metrics::add(std::vector<MetricRow> rows, base::Deadline deadline) {
  json::array documents;
  for (auto const& row : rows) {
    documents.push_back(json::object{{"sandbox", row.sandbox},
                                     {"at_us", microseconds(row.at)},
                                     {"cpu_count", row.cpu_count},
                                     {"cpu_used_pct", row.cpu_used_pct},
                                     {"memory_used", row.memory_used},
                                     {"memory_total", row.memory_total},
                                     {"memory_cache", row.memory_cache},
                                     {"disk_used", row.disk_used},
                                     {"disk_total", row.disk_total}});
  }
  Params params;
  params.document(documents);
  auto added = co_await database_.run(add_statement, std::move(params), deadline);
  if (!added) co_return base::passing(added);
  co_return base::Result<void>();
}

async::Task<std::vector<MetricRow>> Metrics::list(std::string sandbox,
                                                  std::optional<base::WallTime> start,
                                                  std::optional<base::WallTime> end,
                                                  std::uint32_t limit,
                                                  base::Deadline deadline) {
  Params params;
  params.text(std::move(sandbox)).time_or_null(start).time_or_null(end).number(limit);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_rows(*rows);
}

async::Task<std::vector<MetricRow>> Metrics::latest(std::vector<std::string> sandboxes,
                                                    base::Deadline deadline) {
  Params params;
  params.texts(sandboxes);
  auto rows = co_await database_.run(latest_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_rows(*rows);
}

async::Task<std::uint64_t> Metrics::trim(std::chrono::hours keep, base::Deadline deadline) {
  Params params;
  params.number(keep.count());
  auto rows = co_await database_.run(trim_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
