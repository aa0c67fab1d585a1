#include "base/id.hpp"
#include "store/keys.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view columns =
    " p.id, p.public_id, p.name, o.public_id, p.quota_sandboxes, p.quota_vcpus, "
    "p.quota_memory_mib, p.quota_disk_mib, p.quota_snapshots, p.quota_snapshot_mib, "
    "p.idle_timeout_s, p.suspended_keep_s,"
    " u.sandboxes, u.vcpus, u.memory_mib, u.disk_mib, space_us(p.created_at) ";

Statement const create_organisation_statement{
    "projects.create_organisation",
    "insert into organisations (id, public_id, name) values ($1, $2, $3) returning id, public_id, "
    "name, space_us(created_at)"};

Statement const list_organisations_statement{
    "projects.list_organisations",
    "select id, public_id, name, space_us(created_at) from organisations"
    " where $1 = '' or public_id = $1 order by id",
    Kind::read};

Statement const create_statement{
    "projects.create",
    fmt::format(
        "with made as (insert into projects (id, public_id, organisation_id, name, "
        "quota_sandboxes, quota_vcpus,"
        " quota_memory_mib, quota_disk_mib, quota_snapshots, quota_snapshot_mib)"
        " select $1::uuid, $2, o.id, $4, $5, $6, $7, $8, $9, $10 from organisations o where "
        "o.public_id = $3 returning *),"
        " u as (insert into project_usage (project_id) select id from made returning *)"
        " select {} from made p join u on u.project_id = p.id join organisations o on o.id "
        "= p.organisation_id",
        columns)};

Statement const list_statement{
    "projects.list",
    fmt::format("select {} from projects p join project_usage u on u.project_id = p.id"
                " join organisations o on o.id = p.organisation_id where $1 = '' or p.public_id = "
                "$1 order by p.id",
                columns),
    Kind::read};

Statement const set_limits_statement{
    "projects.set_limits",
    fmt::format("with changed as (update projects set quota_sandboxes = $2, quota_vcpus = $3, "
                "quota_memory_mib = $4,"
                " quota_disk_mib = $5, quota_snapshots = $6, quota_snapshot_mib = $7 where "
                "public_id = $1 returning *)"
                " select {} from changed p join project_usage u on u.project_id = p.id"
                " join organisations o on o.id = p.organisation_id",
                columns)};

Statement const set_idle_statement{
    "projects.set_idle_timeout",
    fmt::format("with changed as (update projects set idle_timeout_s = $2 where public_id = $1 "
                "returning *)"
                " select {} from changed p join project_usage u on u.project_id = p.id"
                " join organisations o on o.id = p.organisation_id",
                columns)};

// Nobody's sandbox goes without a day's notice because a number was made smaller.
Statement const set_keep_statement{
    "projects.set_suspended_keep",
    fmt::format("with changed as (update projects set suspended_keep_s = $2 where public_id = $1 "
                "returning *), moved as ("
                "  update sandboxes s set version = s.version + 1, expiry_told = false,"
                "    expires_at = case when c.suspended_keep_s is not null then "
                "greatest(s.suspended_at + c.suspended_keep_s * interval '1 second', now() + "
                "interval '1 day') end"
                "  from changed c where s.project_id = c.id and s.state = 'suspended'"
                "    and (s.expires_at is not null or c.suspended_keep_s is not null)"
                "  returning s.*"
                "), event as ("
                "  insert into events (project_id, sandbox, type, actor, data)"
                "  select project_id, public_id, 'sandbox.expiry_set', $3, jsonb_build_object("
                "'state', state, 'epoch', epoch, 'expires_at', space_text(expires_at)) from moved"
                ") select {} from changed p join project_usage u on u.project_id = p.id"
                " join organisations o on o.id = p.organisation_id",
                columns)};

std::optional<std::int64_t> column_of(std::optional<std::uint64_t> limit) {
  if (!limit) return std::nullopt;
  return static_cast<std::int64_t>(*limit);
}

void add_limits(Params& params, domain::Limits const& limits) {
  params.number_or_null(column_of(limits.sandboxes)).number_or_null(column_of(limits.vcpus));
  params.number_or_null(column_of(limits.memory_mib)).number_or_null(column_of(limits.disk_mib));
  params.number_or_null(column_of(limits.snapshots)).number_or_null(column_of(limits.snapshot_mib));
}

ProjectRow read_project(Rows const& rows, std::size_t index) {
  RowReader reader(rows, index);
  auto const limit = [&]() -> std::optional<std::uint64_t> {
    auto const number = reader.number_or_nothing();
    if (!number) return std::nullopt;
    return static_cast<std::uint64_t>(*number);
  };
  ProjectRow project;
  project.id = reader.text();
  project.public_id = reader.text();
  project.name = reader.text();
  project.organisation_public_id = reader.text();
  project.limits.sandboxes = limit();
  project.limits.vcpus = limit();
  project.limits.memory_mib = limit();
  project.limits.disk_mib = limit();
  project.limits.snapshots = limit();
  project.limits.snapshot_mib = limit();
  if (auto const idle = limit()) project.idle_timeout_s = static_cast<std::uint32_t>(*idle);
  if (auto const keep = limit()) project.suspended_keep_s = static_cast<std::uint32_t>(*keep);
  project.used.sandboxes = reader.as<std::uint64_t>();
  project.used.vcpus = reader.as<std::uint64_t>();
  project.used.memory_mib = reader.as<std::uint64_t>();
  project.used.disk_mib = reader.as<std::uint64_t>();
  project.created_at = reader.time();
  return project;
}

OrganisationRow read_organisation(Rows const& rows, std::size_t index) {
  RowReader reader(rows, index);
  OrganisationRow organisation;
  organisation.id = reader.text();
  organisation.public_id = reader.text();
  organisation.name = reader.text();
  organisation.created_at = reader.time();
  return organisation;
}

}  // namespace

async::Task<OrganisationRow> Projects::create_organisation(std::string name,
                                                           base::Deadline deadline) {
  Params params;
  params.text(base::make_uuid7()).text(base::make_short_id('o')).text(name);
  auto rows = co_await database_.run(create_organisation_statement, std::move(params), deadline);
  if (!rows && rows.error().code() == base::Code::conflict) {
    co_return base::fail(base::Code::conflict,
                         fmt::format("an organisation named \"{}\" exists", name),
                         rows.error().detail());
  }
  if (!rows) co_return base::passing(rows);
  co_return read_organisation(*rows, 0);
}

async::Task<std::vector<OrganisationRow>> Projects::list_organisations(std::string public_id,
                                                                       base::Deadline deadline) {
  Params params;
  params.text(public_id);
  auto rows = co_await database_.run(list_organisations_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<OrganisationRow> all;
  for (std::size_t i = 0; i < rows->size(); ++i)
    all.push_back(read_organisation(*rows, i));
  co_return all;
}

async::Task<ProjectRow> Projects::create(std::string organisation_public_id,
                                         std::string name,
                                         domain::Limits limits,
                                         base::Deadline deadline) {
  Params params;
  params.text(base::make_uuid7())
      .text(base::make_short_id('p'))
      .text(organisation_public_id)
      .text(name);
  add_limits(params, limits);
  auto rows = co_await database_.run(create_statement, std::move(params), deadline);
  if (!rows && rows.error().code() == base::Code::conflict) {
    co_return base::fail(base::Code::conflict,
                         fmt::format("a project named \"{}\" exists in that organisation", name),
                         rows.error().detail());
  }
  if (!rows) co_return base::passing(rows);
  if (rows->empty()) co_return base::fail(base::Code::not_found, "the organisation does not exist");
  co_return read_project(*rows, 0);
}

async::Task<std::vector<ProjectRow>> Projects::list(std::string public_id,
                                                    base::Deadline deadline) {
  Params params;
  params.text(public_id);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<ProjectRow> all;
  for (std::size_t i = 0; i < rows->size(); ++i)
    all.push_back(read_project(*rows, i));
  co_return all;
}

async::Task<std::optional<ProjectRow>> Projects::set_limits(std::string public_id,
                                                            domain::Limits limits,
                                                            base::Deadline deadline) {
  Params params;
  params.text(public_id);
  add_limits(params, limits);
  return change(&set_limits_statement, std::move(params), deadline);
}

async::Task<std::optional<ProjectRow>> Projects::set_idle_timeout(
    std::string public_id, std::optional<std::uint32_t> seconds, base::Deadline deadline) {
  Params params;
  std::optional<std::int64_t> column;
  if (seconds) column = *seconds;
  params.text(public_id).number_or_null(column);
  return change(&set_idle_statement, std::move(params), deadline);
}

async::Task<std::optional<ProjectRow>> Projects::set_suspended_keep(
    std::string public_id,
    std::optional<std::uint32_t> seconds,
    std::string actor,
    base::Deadline deadline) {
  Params params;
  std::optional<std::int64_t> column;
  if (seconds) column = *seconds;
  params.text(public_id).number_or_null(column).text(actor);
  return change(&set_keep_statement, std::move(params), deadline);
}

async::Task<std::optional<ProjectRow>> Projects::change(Statement const* statement,
                                                        Params params,
                                                        base::Deadline deadline) {
  auto rows = co_await database_.run(*statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<ProjectRow> changed;
  if (!rows->empty()) changed = read_project(*rows, 0);
  co_return changed;
}

}  // namespace store
