#include "store/policies.hpp"

#include "store/sandbox_rows.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view columns =
    " l.level, l.subject, l.version, l.policy, l.actor, space_us(l.updated_at) ";

Statement const over_statement{
    "policies.over",
    fmt::format(
        "with mine as (select p.public_id as project, o.public_id as organisation from projects p"
        "  join organisations o on o.id = p.organisation_id where p.id = $1)"
        " select {} from (values (1, 'platform', ''), (2, 'organisation', (select organisation "
        "from mine)),"
        "  (3, 'project', (select project from mine)), (4, 'template', $2), (5, 'sandbox', $3))"
        "  as w (place, level, subject)"
        " join policies l on l.level = w.level and l.subject = w.subject order by w.place",
        columns),
    Kind::read};

Statement const find_statement{
    "policies.find",
    fmt::format("select {} from policies l where l.level = $1 and l.subject = $2", columns),
    Kind::read};

// $5 is the version that must be there: null none in particular, 0 none at all.
Statement const put_statement{
    "policies.put",
    fmt::format("with l as (insert into policies as c (level, subject, policy, actor)"
                "  select $1, $2, $3::jsonb, $4 where $5::bigint is null or $5::bigint = 0"
                "    or exists (select from policies where level = $1 and subject = $2 and version "
                "= $5::bigint)"
                "  on conflict (level, subject) do update set version = c.version + 1, policy = "
                "excluded.policy,"
                "    actor = excluded.actor, updated_at = now()"
                "    where $5::bigint is null or c.version = $5::bigint"
                "  returning *),"
                " kept as (insert into policy_versions (level, subject, version, policy, actor)"
                "  select level, subject, version, policy, actor from l)"
                " select {} from l",
                columns)};

Statement const versions_statement{
    "policies.versions",
    "select level, subject, version, policy, actor, space_us(created_at) from policy_versions"
    " where level = $1 and subject = $2 order by version desc limit $3",
    Kind::read};

Statement const live_statement{
    "policies.live_under",
    fmt::format(
        "select {} from sandboxes s {} join organisations o on o.id = p.organisation_id"
        " where s.state not in ('deleting', 'suspended') and case $1 when 'platform' then true"
        " when 'organisation' then o.public_id = $2 when 'project' then p.public_id = $2"
        " when 'template' then t.public_id = $2 else s.public_id = $2 end order by s.id",
        live_columns,
        row_joins),
    Kind::read};

Statement const note_statement{
    "policies.note_network",
    "update sandboxes set network = $2::jsonb, version = version + 1 where id = $1::uuid"};

Statement const changed_statement{
    "policies.changed_within",
    "select level, subject from policies where updated_at > now() - $1 * interval '1 second'"
    " union select case when p.id is null then 'organisation' else 'project' end, "
    "coalesce(p.public_id, o.public_id)"
    " from credentials c join organisations o on o.id = c.organisation_id left join projects p on "
    "p.id = c.project_id"
    " where c.updated_at > now() - $1 * interval '1 second'",
    Kind::read};

Statement const trim_statement{
    "policies.trim",
    "with gone as (select subject from policies l where level = 'sandbox' and updated_at < now() - "
    "interval '1 day'"
    "   and not exists (select from sandboxes s where s.public_id = l.subject)"
    "   and not exists (select from ended_sandboxes e where e.public_id = l.subject) limit 1000),"
    " secrets as (delete from sandbox_credentials c where created_at < now() - interval '1 day'"
    "   and not exists (select from sandboxes s where s.public_id = c.sandbox)),"
    " history as (delete from policy_versions v using gone where v.level = 'sandbox' and v.subject "
    "= gone.subject)"
    " delete from policies l using gone where l.level = 'sandbox' and l.subject = gone.subject"};

PolicyRow read_policy(Rows const& rows, std::size_t index) {
  RowReader reader(rows, index);
  PolicyRow row;
  row.level = reader.text();
  row.subject = reader.text();
  row.version = reader.as<std::uint64_t>();
  row.policy = reader.document();
  row.actor = reader.text();
  row.updated_at = reader.time();
  return row;
}

std::vector<PolicyRow> read_policies(Rows const& rows) {
  std::vector<PolicyRow> out;
  for (std::size_t i = 0; i < rows.size(); ++i)
    out.push_back(read_policy(rows, i));
  return out;
}

std::optional<PolicyRow> first_of(Rows const& rows) {
  if (rows.empty()) return std::nullopt;
  return read_policy(rows, 0);
}

}  // namespace

async::Task<std::vector<PolicyRow>> Policies::over(std::string project_id,
                                                   std::string template_public_id,
                                                   std::string sandbox_public_id,
                                                   base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id))
      .text(std::move(template_public_id))
      .text(std::move(sandbox_public_id));
  auto rows = co_await database_.run(over_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_policies(*rows);
}

async::Task<std::optional<PolicyRow>> Policies::find(std::string level,
                                                     std::string subject,
                                                     base::Deadline deadline) {
  Params params;
  params.text(std::move(level)).text(std::move(subject));
  auto rows = co_await database_.run(find_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<std::optional<PolicyRow>> Policies::put(NewPolicy policy, base::Deadline deadline) {
  Params params;
  params.text(policy.level).text(policy.subject);
  if (policy.policy.is_null())
    params.text_or_null(std::nullopt);
  else
    params.document(policy.policy);
  params.text(policy.actor);
  params.number_or_null(policy.if_version
                            ? std::optional(static_cast<std::int64_t>(*policy.if_version))
                            : std::nullopt);
  auto rows = co_await database_.run(put_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<std::vector<PolicyRow>> Policies::versions(std::string level,
                                                       std::string subject,
                                                       std::uint32_t limit,
                                                       base::Deadline deadline) {
  Params params;
  params.text(std::move(level)).text(std::move(subject)).number(limit);
  auto rows = co_await database_.run(versions_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_policies(*rows);
}

async::Task<std::vector<SandboxRow>> Policies::live_under(std::string level,
                                                          std::string subject,
                                                          base::Deadline deadline) {
  Params params;
  params.text(std::move(level)).text(std::move(subject));
  auto rows = co_await database_.run(live_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return read_sandboxes(*rows);
}

async::Task<std::vector<Policies::Scope>> Policies::changed_within(std::chrono::seconds age,
                                                                   base::Deadline deadline) {
  Params params;
  params.number(age.count());
  auto rows = co_await database_.run(changed_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<Scope> out;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    auto level = reader.text();
    out.push_back({std::move(level), reader.text()});
  }
  co_return out;
}

async::Task<void> Policies::note_network(std::string sandbox_id,
                                         json::value network,
                                         base::Deadline deadline) {
  Params params;
  params.text(std::move(sandbox_id)).document(network);
  auto rows = co_await database_.run(note_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::uint64_t> Policies::trim(base::Deadline deadline) {
  auto rows = co_await database_.run(trim_statement, Params(), deadline);
  if (!rows) co_return base::passing(rows);
  co_return rows->affected();
}

}  // namespace store
