// The reading half of Sandboxes: finding and listing.
#include "base/assert.hpp"
#include "store/sandbox_rows.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

std::string select_live(std::string_view where) {
  return fmt::format("select {} from sandboxes s {} {}", live_columns, row_joins, where);
}

std::string select_ended(std::string_view where) {
  return fmt::format("select {} from ended_sandboxes s {} {}", ended_columns, row_joins, where);
}

// One snapshot for both tables: a sandbox that ends meanwhile is seen in exactly one of them.
Statement const find_statement{"sandboxes.find",
                               select_live("where s.project_id = $1 and s.public_id = $2") +
                                   " union all " +
                                   select_ended("where s.project_id = $1 and s.public_id = $2"),
                               Kind::read};

Statement const find_row_statement{
    "sandboxes.find_row",
    select_live("where s.id = $1") + " union all " + select_ended("where s.id = $1"),
    Kind::read};

Statement const find_live_statement{
    "sandboxes.find_live", select_live("where s.public_id = $1"), Kind::read};

Statement const find_by_token_statement{
    "sandboxes.find_by_token",
    select_live("where s.token_sha256 = $1 and s.token_sha256 <> ''"),
    Kind::read};

Statement const on_node_statement{
    "sandboxes.on_node", select_live("where n.name = $1 order by s.public_id"), Kind::read};

constexpr std::string_view filter =
    "where s.project_id = $1 and s.state = any($2) and s.metadata @> $3::jsonb"
    " and ($4 = '' or t.name = $4 or t.public_id = $4) and ($5::bigint is null or s.started_at > "
    "space_time($5)) ";

Statement const list_newest_statement{
    "sandboxes.list_newest",
    select_live(filter) +
        " and ($6::bigint is null or s.created_at < space_time($6) or (s.created_at = "
        "space_time($6) and s.public_id > $7))"
        " order by s.created_at desc, s.public_id limit $8",
    Kind::read};

Statement const list_oldest_statement{
    "sandboxes.list_oldest",
    select_live(filter) +
        " and ($6::bigint is null or s.created_at > space_time($6) or (s.created_at = "
        "space_time($6) and s.public_id > $7))"
        " order by s.created_at, s.public_id limit $8",
    Kind::read};

Statement const list_ended_statement{
    "sandboxes.list_ended",
    select_ended(filter) +
        " and ($6::bigint is null or s.created_at < space_time($6) or (s.created_at = "
        "space_time($6) and s.public_id > $7))"
        " order by s.created_at desc, s.public_id limit $8",
    Kind::read};

Statement const count_running_statement{
    "sandboxes.count_running",
    "select count(*) from sandboxes where project_id = $1 and state = 'running'",
    Kind::read};

Statement const without_row_statement{"sandboxes.without_row",
                                      "select asked from unnest($1::text[]) as asked where not "
                                      "exists (select from sandboxes where public_id = asked)",
                                      Kind::read};

Statement const ended_statement{
    "sandboxes.ended",
    "select public_id from ended_sandboxes where public_id = any($1::text[])",
    Kind::read};

Statement const next_due_statement{"sandboxes.next_due",
                                   "select space_us(min(greatest(deadline_at, case when on_timeout "
                                   "= 'suspend' then suspend_after end)))"
                                   " from sandboxes where deadline_at is not null"
                                   " and state not in ('deleting', 'suspending', 'restoring')"
                                   " and (on_timeout = 'delete' or state in ('running', "
                                   "'paused'))",
                                   Kind::read};

std::map<std::string, std::string> string_map(json::value const& value) {
  std::map<std::string, std::string> map;
  if (auto const* object = value.if_object()) {
    for (auto const& pair : *object) {
      if (auto const* text = pair.value().if_string()) map.emplace(pair.key(), *text);
    }
  }
  return map;
}

}  // namespace

Statement const usage_statement{
    "sandboxes.usage",
    "select p.quota_sandboxes, p.quota_vcpus, p.quota_memory_mib, p.quota_disk_mib,"
    " u.sandboxes, u.vcpus, u.memory_mib, u.disk_mib"
    " from projects p join project_usage u on u.project_id = p.id where p.id = $1",
    Statement::Kind::read};

std::string row_of(std::string_view source) {
  return fmt::format("select {} from {} s {}", live_columns, source, row_joins);
}

std::vector<std::string> names_of(std::span<domain::SandboxState const> states) {
  std::vector<std::string> names;
  for (auto const state : states)
    names.emplace_back(domain::name_of(state));
  return names;
}

base::Error refusal_of(Rows const& usage, domain::Amounts const& wanted) {
  if (usage.empty()) return {base::Code::not_found, "the project does not exist"};
  RowReader reader(usage, 0);
  auto const limit = [&]() -> std::optional<std::uint64_t> {
    auto const number = reader.number_or_nothing();
    if (!number) return std::nullopt;
    return static_cast<std::uint64_t>(*number);
  };
  domain::Limits limits;
  limits.sandboxes = limit();
  limits.vcpus = limit();
  limits.memory_mib = limit();
  limits.disk_mib = limit();
  domain::Amounts used;
  used.sandboxes = reader.as<std::uint64_t>();
  used.vcpus = reader.as<std::uint64_t>();
  used.memory_mib = reader.as<std::uint64_t>();
  used.disk_mib = reader.as<std::uint64_t>();
  auto const verdict = domain::check_quota(limits, used, wanted);
  if (!verdict) return verdict.error();
  // Something ended between the two statements, or the node is unknown to the database.
  return {base::Code::exhausted, "the project's quota was used up a moment ago; try again"};
}

SandboxRow read_sandbox(RowReader& reader) {
  SandboxRow row;
  row.id = reader.text();
  row.public_id = reader.text();
  row.project_id = reader.text();
  row.project_public_id = reader.text();
  auto const state = domain::state_named(reader.text());
  SPACE_ASSERT(state.has_value(), "only states of the table are ever written");
  row.state = *state;
  row.version = reader.as<std::uint64_t>();
  row.epoch = reader.as<std::uint64_t>();
  row.node = reader.text();
  row.node_address = reader.text();
  row.template_public_id = reader.text();
  row.template_name = reader.text();
  row.build_id = reader.text();
  row.build = reader.text();
  row.default_user = reader.text();
  row.default_workdir = reader.text();
  row.vcpus = reader.as<std::uint32_t>();
  row.memory_mib = reader.as<std::uint32_t>();
  row.disk_mib = reader.as<std::uint32_t>();
  row.metadata = string_map(reader.document());
  row.env_sealed = reader.text();
  row.deadline_at = reader.time_or_nothing();
  row.timeout_s = reader.as<std::uint32_t>();
  row.on_timeout = reader.text();
  row.auto_resume = reader.boolean();
  row.secure = reader.boolean();
  row.token_generation = reader.as<std::uint32_t>();
  row.token_sha256 = reader.text();
  row.network = reader.document();
  row.api = reader.text();
  row.created_at = reader.time();
  row.started_at = reader.time_or_nothing();
  row.timeline = reader.document();
  row.suspended_at = reader.time_or_nothing();
  row.suspended_bytes = reader.as<std::uint64_t>();
  row.problem = reader.text();
  row.idle_timeout_s = reader.as<std::uint32_t>();
  row.parent = reader.text();
  row.snapshot = reader.text();
  row.end_reason = reader.text();
  row.end_detail = reader.text();
  row.console_tail = reader.text();
  row.ended_at = reader.time_or_nothing();
  row.expires_at = reader.time_or_nothing();
  return row;
}

SandboxRow read_sandbox(Rows const& rows, std::size_t row) {
  RowReader reader(rows, row);
  return read_sandbox(reader);
}

std::vector<SandboxRow> read_sandboxes(Rows const& rows) {
  std::vector<SandboxRow> all;
  all.reserve(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    all.push_back(read_sandbox(rows, i));
  return all;
}

async::Task<std::optional<SandboxRow>> Sandboxes::find_one(Statement const* statement,
                                                           Params params,
                                                           base::Deadline deadline) {
  auto rows = co_await database_.run(*statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<SandboxRow> found;
  if (!rows->empty()) found = read_sandbox(*rows, 0);
  co_return found;
}

async::Task<std::optional<SandboxRow>> Sandboxes::find(std::string project_id,
                                                       std::string public_id,
                                                       base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id)).text(std::move(public_id));
  return find_one(&find_statement, std::move(params), deadline);
}

async::Task<std::optional<SandboxRow>> Sandboxes::find_row(std::string id,
                                                           base::Deadline deadline) {
  Params params;
  params.text(std::move(id));
  return find_one(&find_row_statement, std::move(params), deadline);
}

async::Task<std::optional<SandboxRow>> Sandboxes::find_live(std::string public_id,
                                                            base::Deadline deadline) {
  Params params;
  params.text(std::move(public_id));
  return find_one(&find_live_statement, std::move(params), deadline);
}

async::Task<std::optional<SandboxRow>> Sandboxes::find_by_token(std::string token_sha256,
                                                                base::Deadline deadline) {
  Params params;
  params.text(std::move(token_sha256));
  return find_one(&find_by_token_statement, std::move(params), deadline);
}

async::Task<std::vector<SandboxRow>> Sandboxes::list(SandboxFilter filter_by,
                                                     base::Deadline deadline) {
  auto const* statement = filter_by.oldest_first ? &list_oldest_statement : &list_newest_statement;
  if (filter_by.history) statement = &list_ended_statement;
  std::vector<std::string> states;
  for (auto const state : filter_by.states)
    states.emplace_back(domain::name_of(state));
  if (states.empty()) {
    for (auto const state : domain::states_that_allow(domain::SandboxEvent::end))
      states.emplace_back(domain::name_of(state));
    states.emplace_back("deleting");
    if (filter_by.history) states = {"deleted", "failed"};
  }
  json::object metadata;
  for (auto const& [key, value] : filter_by.metadata)
    metadata[key] = value;
  Params params;
  params.text(filter_by.project_id)
      .texts(states)
      .document(metadata)
      .text(filter_by.template_or_name);
  params.time_or_null(filter_by.started_after)
      .time_or_null(filter_by.after_time)
      .text(filter_by.after_id)
      .number(filter_by.limit);
  auto rows = co_await database_.run(*statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_sandboxes(*rows);
}

async::Task<std::uint64_t> Sandboxes::count_running(std::string project_id,
                                                    base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id));
  auto rows = co_await database_.run(count_running_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  RowReader reader(*rows, 0);
  co_return reader.as<std::uint64_t>();
}

async::Task<std::vector<SandboxRow>> Sandboxes::on_node(std::string node, base::Deadline deadline) {
  Params params;
  params.text(std::move(node));
  auto rows = co_await database_.run(on_node_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_sandboxes(*rows);
}

async::Task<std::vector<std::string>> Sandboxes::ended(std::vector<std::string> public_ids,
                                                       base::Deadline deadline) {
  return ids_of(&ended_statement, std::move(public_ids), deadline);
}

async::Task<std::vector<std::string>> Sandboxes::without_row(std::vector<std::string> public_ids,
                                                             base::Deadline deadline) {
  return ids_of(&without_row_statement, std::move(public_ids), deadline);
}

async::Task<std::vector<std::string>> Sandboxes::ids_of(Statement const* statement,
                                                        std::vector<std::string> public_ids,
                                                        base::Deadline deadline) {
  Params params;
  params.texts(public_ids);
  auto rows = co_await database_.run(*statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    ids.push_back(reader.text());
  }
  co_return ids;
}

async::Task<std::optional<base::WallTime>> Sandboxes::next_due(base::Deadline deadline) {
  auto rows = co_await database_.run(next_due_statement, {}, deadline);
  if (!rows) co_return base::passing(rows);
  RowReader reader(*rows, 0);
  co_return reader.time_or_nothing();
}

}  // namespace store
