#include "store/credentials.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view columns =
    " c.id, o.public_id, p.public_id, c.template, c.name, c.binding, c.profile, c.grants, c.state, "
    "c.version,"
    " c.created_by, space_us(c.created_at), space_us(c.updated_at) ";
constexpr std::string_view joins =
    " join organisations o on o.id = c.organisation_id left join projects p on p.id = "
    "c.project_id ";
/// Those that a project sees: its own and its organisation's. $1 is the project.
constexpr std::string_view seen =
    " (c.project_id = $1::uuid or (c.project_id is null"
    " and c.organisation_id = (select organisation_id from projects where id = $1::uuid))) ";

Statement const list_statement{
    "credentials.list",
    fmt::format("select {} from credentials c {} where {} order by c.project_id is null, c.name, "
                "c.template",
                columns,
                joins,
                seen),
    Kind::read};

Statement const find_statement{
    "credentials.find",
    fmt::format("select {} from credentials c {} where {} and (c.project_id is null) = $2 and "
                "c.name = $3 and c.template = $4",
                columns,
                joins,
                seen),
    Kind::read};

Statement const create_statement{
    "credentials.create",
    fmt::format("with c as (insert into credentials (id, organisation_id, project_id, name, "
                "binding, profile, grants, version,"
                "  created_by, template) select $1::uuid, j.organisation_id, case when $3 then "
                "null else j.id "
                "end, $4, $5::jsonb, $6, $7::jsonb,"
                "  $8, $9, $13 from projects j where j.id = $2::uuid returning *),"
                " kept as (insert into credential_versions (credential_id, version, binding, "
                "key_id, wrapped_key, ciphertext, actor)"
                "  select id, version, binding, $10, $11, $12, $9 from c)"
                " select {} from c {}",
                columns,
                joins)};

// What a rotation leaves behind is of no use to anybody but a thief.
Statement const rotate_statement{
    "credentials.rotate",
    fmt::format("with c as (update credentials set binding = $2::jsonb, profile = $3, grants = "
                "$4::jsonb, version = $5,"
                "  state = 'active', updated_at = now() where id = $1::uuid and version = $5 - 1 "
                "returning *),"
                " old as (delete from credential_versions v using c where v.credential_id = c.id "
                "and v.version < c.version),"
                " kept as (insert into credential_versions (credential_id, version, binding, "
                "key_id, wrapped_key, ciphertext, actor)"
                "  select id, version, binding, $6, $7, $8, $9 from c)"
                " select {} from c {}",
                columns,
                joins)};

Statement const state_statement{
    "credentials.set_state",
    fmt::format("with c as (update credentials set state = $2, updated_at = now() where id = "
                "$1::uuid returning *)"
                " select {} from c {}",
                columns,
                joins)};

// By its version, not by the time of its last change: that may have been one of its grants, and
// workers' clocks differ. A reflection that is told of again is no new one, also after a release.
Statement const quarantine_statement{
    "credentials.quarantine",
    fmt::format("with was as (select id, state from credentials where id = $1::uuid for update),"
                " c as (update credentials c set state = 'quarantined',"
                "  reflected_at = greatest(c.reflected_at, space_time($5)),"
                "  updated_at = case when was.state = 'active' then now() else c.updated_at end"
                "  from was where c.id = was.id and c.version = $2 and (was.state = 'quarantined'"
                "   or (was.state = 'active' and (c.reflected_at is null"
                "    or c.reflected_at < space_time($5)))) returning c.*, was.state as before),"
                " told as (insert into events (project_id, sandbox, type, actor, data)"
                "  select coalesce(c.project_id, s.project_id), $3, 'credential.quarantined', "
                "'worker', jsonb_build_object('credential', c.name, 'version', c.version, 'host', "
                "$4::text) from c left join sandboxes s on s.public_id = $3"
                "  where c.before = 'active'"
                "   and (c.project_id is not null or s.project_id is not null))"
                " select {} from c {}",
                columns,
                joins)};

Statement const release_statement{
    "credentials.release",
    fmt::format("with c as (update credentials set state = 'active', updated_at = now() where id = "
                "$1::uuid and state = 'quarantined' returning *),"
                " told as (insert into events (project_id, sandbox, type, actor, data)"
                "  select project_id, '', 'credential.released', $2, jsonb_build_object("
                "'credential', name, 'version', version) from c where project_id is not null)"
                " select {} from c {}",
                columns,
                joins)};

Statement const grants_statement{
    "credentials.set_grants",
    fmt::format("with c as (update credentials set grants = $2::jsonb, updated_at = now() where id "
                "= $1::uuid returning *)"
                " select {} from c {}",
                columns,
                joins)};

Statement const remove_statement{"credentials.remove",
                                 "delete from credentials where id = $1::uuid"};

Statement const named_statement{
    "credentials.named",
    fmt::format("select {}, v.version, v.binding, v.key_id, v.wrapped_key, v.ciphertext from "
                "credentials c {}"
                " join credential_versions v on v.credential_id = c.id and v.version = c.version"
                " where {} and c.name = any($2::text[]) and c.template in ('', $3)"
                " order by c.name, c.project_id is null, c.template = ''",
                columns,
                joins,
                seen),
    Kind::read};

Statement const of_sandbox_statement{
    "credentials.of_sandbox",
    "select name, credential, version, binding, key_id, wrapped_key, ciphertext"
    " from sandbox_credentials where sandbox = $1 order by name",
    Kind::read};

Statement const replace_of_sandbox_statement{
    "credentials.replace_of_sandbox",
    "with wanted as (select c ->> 'name' as name, c -> 'sealed' as s from "
    "jsonb_array_elements($2::jsonb) c),"
    " gone as (delete from sandbox_credentials where sandbox = $1 and name not in (select name "
    "from wanted))"
    " insert into sandbox_credentials (sandbox, name, credential, version, binding, key_id, "
    "wrapped_key, ciphertext)"
    " select $1, name, s ->> 'credential', (s ->> 'version')::int, s -> 'binding', s ->> 'key_id',"
    "  s ->> 'wrapped_key', s ->> 'ciphertext' from wanted"
    " on conflict (sandbox, name) do update set credential = excluded.credential, version = "
    "excluded.version,"
    "  binding = excluded.binding, key_id = excluded.key_id, wrapped_key = excluded.wrapped_key,"
    "  ciphertext = excluded.ciphertext, created_at = now()"};

wire::CredentialBinding binding_of(json::value const& value) {
  auto decoded = wire::decode<wire::CredentialBinding>(value, wire::UnknownKeys::ignore);
  return decoded ? std::move(*decoded) : wire::CredentialBinding{};
}

CredentialRow read_credential(RowReader& reader) {
  CredentialRow row;
  row.id = reader.text();
  row.organisation_public_id = reader.text();
  row.project_public_id = reader.text();
  row.template_public_id = reader.text();
  row.name = reader.text();
  row.binding = binding_of(reader.document());
  row.profile = reader.text();
  if (auto const grants = reader.document(); grants.is_object()) {
    auto decoded = wire::decode<CredentialGrants>(grants, wire::UnknownKeys::ignore);
    if (decoded) row.grants = std::move(*decoded);
  }
  row.state = reader.text();
  row.version = reader.as<std::uint32_t>();
  row.created_by = reader.text();
  row.created_at = reader.time();
  row.updated_at = reader.time();
  return row;
}

std::optional<CredentialRow> first_of(Rows const& rows) {
  if (rows.empty()) return std::nullopt;
  RowReader reader(rows, 0);
  return read_credential(reader);
}

void add_grants(Params& params, std::optional<CredentialGrants> const& grants) {
  if (grants)
    params.document(wire::encode(*grants));
  else
    params.text_or_null(std::nullopt);
}

}  // namespace

async::Task<std::vector<CredentialRow>> Credentials::list(std::string project_id,
                                                          base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id));
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<CredentialRow> out;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    out.push_back(read_credential(reader));
  }
  co_return out;
}

async::Task<std::optional<CredentialRow>> Credentials::find(std::string project_id,
                                                            CredentialScope scope,
                                                            std::string name,
                                                            base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id)).boolean(scope.of_organisation).text(std::move(name));
  params.text(std::move(scope.template_public_id));
  auto rows = co_await database_.run(find_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<CredentialRow> Credentials::create(NewCredential credential, base::Deadline deadline) {
  auto const& sealed = credential.sealed;
  Params params;
  params.text(credential.id).text(credential.project_id).boolean(credential.scope.of_organisation);
  params.text(credential.name).document(wire::encode(sealed.binding)).text(credential.profile);
  add_grants(params, credential.grants);
  params.number(sealed.version).text(credential.actor);
  params.text(sealed.key_id).text(sealed.wrapped_key).text(sealed.ciphertext);
  params.text(credential.scope.template_public_id);
  auto rows = co_await database_.run(create_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  auto made = first_of(*rows);
  if (!made) co_return base::fail(base::Code::not_found, "the project does not exist");
  co_return std::move(*made);
}

async::Task<std::optional<CredentialRow>> Credentials::rotate(NewCredential credential,
                                                              base::Deadline deadline) {
  auto const& sealed = credential.sealed;
  Params params;
  params.text(credential.id).document(wire::encode(sealed.binding)).text(credential.profile);
  add_grants(params, credential.grants);
  params.number(sealed.version).text(sealed.key_id).text(sealed.wrapped_key);
  params.text(sealed.ciphertext).text(credential.actor);
  auto rows = co_await database_.run(rotate_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<std::optional<CredentialRow>> Credentials::set_state(std::string id,
                                                                 std::string state,
                                                                 base::Deadline deadline) {
  Params params;
  params.text(std::move(id)).text(std::move(state));
  auto rows = co_await database_.run(state_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<std::optional<CredentialRow>> Credentials::quarantine(std::string id,
                                                                  std::uint32_t version,
                                                                  std::string sandbox,
                                                                  std::string host,
                                                                  base::WallTime at,
                                                                  base::Deadline deadline) {
  Params params;
  params.text(std::move(id))
      .number(version)
      .text(std::move(sandbox))
      .text(std::move(host))
      .time(at);
  auto rows = co_await database_.run(quarantine_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<std::optional<CredentialRow>> Credentials::release(std::string id,
                                                               std::string actor,
                                                               base::Deadline deadline) {
  Params params;
  params.text(std::move(id)).text(std::move(actor));
  auto rows = co_await database_.run(release_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<std::optional<CredentialRow>> Credentials::set_grants(
    std::string id, std::optional<CredentialGrants> grants, base::Deadline deadline) {
  Params params;
  params.text(std::move(id));
  add_grants(params, grants);
  auto rows = co_await database_.run(grants_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return first_of(*rows);
}

async::Task<void> Credentials::remove(std::string id, base::Deadline deadline) {
  Params params;
  params.text(std::move(id));
  auto rows = co_await database_.run(remove_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

async::Task<std::vector<Credentials::Leasable>> Credentials::named(std::string project_id,
                                                                   std::string template_public_id,
                                                                   std::vector<std::string> names,
                                                                   base::Deadline deadline) {
  Params params;
  params.text(std::move(project_id)).texts(names).text(std::move(template_public_id));
  auto rows = co_await database_.run(named_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<Leasable> out;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    Leasable one;
    one.row = read_credential(reader);
    one.sealed.credential = one.row.id;
    one.sealed.version = reader.as<std::uint32_t>();
    one.sealed.binding = binding_of(reader.document());
    one.sealed.key_id = reader.text();
    one.sealed.wrapped_key = reader.text();
    one.sealed.ciphertext = reader.text();
    out.push_back(std::move(one));
  }
  co_return out;
}

async::Task<std::vector<SandboxCredential>> Credentials::of_sandbox(std::string sandbox,
                                                                    base::Deadline deadline) {
  Params params;
  params.text(std::move(sandbox));
  auto rows = co_await database_.run(of_sandbox_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<SandboxCredential> out;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    SandboxCredential one;
    one.name = reader.text();
    one.sealed.credential = reader.text();
    one.sealed.version = reader.as<std::uint32_t>();
    one.sealed.binding = binding_of(reader.document());
    one.sealed.key_id = reader.text();
    one.sealed.wrapped_key = reader.text();
    one.sealed.ciphertext = reader.text();
    out.push_back(std::move(one));
  }
  co_return out;
}

async::Task<void> Credentials::replace_of_sandbox(std::string sandbox,
                                                  std::vector<SandboxCredential> credentials,
                                                  base::Deadline deadline) {
  json::array wanted;
  for (auto const& one : credentials)
    wanted.push_back(json::object{{"name", one.name}, {"sealed", wire::encode(one.sealed)}});
  Params params;
  params.text(std::move(sandbox)).document(wanted);
  auto rows = co_await database_.run(replace_of_sandbox_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  co_return base::Result<void>();
}

}  // namespace store
