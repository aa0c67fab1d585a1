#include "store/templates.hpp"

#include "base/id.hpp"

namespace store {
namespace {

using Kind = Statement::Kind;

constexpr std::string_view build_columns =
    " b.id, t.public_id, t.name, b.build, b.version, b.state, b.vcpus, b.memory_mib, b.disk_mib, "
    "b.default_user,"
    " b.default_workdir, b.manifest, space_us(b.created_at) ";

// The template is locked by its own update, so that two registrations do not take the same version.
Statement const register_statement{
    "templates.register",
    fmt::format(
        "with t as ("
        "  insert into templates (id, public_id, project_id, name, is_public) values ($1, $2, "
        "$3::uuid, $4, $3::uuid is null)"
        "  on conflict do nothing returning *"
        "), existing as ("
        "  select * from t union all"
        "  select * from templates where name = $4 and project_id is not distinct from $3::uuid"
        "  limit 1"
        "), made as ("
        "  insert into template_builds (id, template_id, build, version, state, vcpus, memory_mib, "
        "disk_mib,"
        "    default_user, default_workdir, manifest)"
        "  select $5::uuid, e.id, $6, coalesce((select max(version) from template_builds v where "
        "v.template_id = e.id), 0) + 1,"
        "    'ready', $7, $8, $9, $10, $11, coalesce($12::jsonb, '{{}}') from existing e"
        "  on conflict (template_id, build) do nothing returning *"
        "), b as ("
        "  select * from made union all"
        "  select v.* from template_builds v join existing e on e.id = v.template_id where v.build "
        "= $6"
        "  limit 1"
        "), tagged as ("
        "  insert into template_tags (template_id, tag, build_id) select b.template_id, $13, b.id "
        "from b"
        "  on conflict (template_id, tag) do update set build_id = excluded.build_id, updated_at = "
        "now()"
        "  where template_tags.build_id <> excluded.build_id"
        ") select {} from b join existing t on t.id = b.template_id",
        build_columns)};

// A project's own template hides one of the installation with the same name.
Statement const resolve_statement{
    "templates.resolve",
    fmt::format("select {} from templates t join template_tags g on g.template_id = t.id"
                " join template_builds b on b.id = g.build_id"
                " where (t.name = $2 or t.public_id = $2) and g.tag = $3 and b.state = 'ready'"
                " and (t.project_id is null or t.project_id = $1)"
                " order by t.project_id is null, t.public_id = $2 desc limit 1",
                build_columns),
    Kind::read};

constexpr std::string_view template_columns =
    " t.id, t.public_id, t.name, t.project_id, t.is_public,"
    " (select count(*) from template_builds v join sandboxes s on s.build_id = v.id where "
    "v.template_id = t.id)"
    " + (select count(*) from template_builds v join ended_sandboxes s on s.build_id = v.id where "
    "v.template_id = t.id),"
    " (select count(*) from template_builds v where v.template_id = t.id),"
    " space_us(t.created_at), space_us(t.updated_at), b.id is not null, ";

Statement const list_statement{
    "templates.list",
    fmt::format("select {} {} from templates t"
                " left join template_tags g on g.template_id = t.id and g.tag = 'default'"
                " left join template_builds b on b.id = g.build_id"
                " where (t.project_id is null or t.project_id = $1) and ($2 = '' or t.name = $2 or "
                "t.public_id = $2)"
                " order by t.project_id is null, t.id",
                template_columns,
                build_columns),
    Kind::read};

Statement const builds_statement{
    "templates.builds",
    fmt::format(
        "select {} from template_builds b join templates t on t.id = b.template_id where t.id = $1"
        " order by b.version desc limit 1000",
        build_columns),
    Kind::read};

Statement const tags_statement{"templates.tags",
                               "select tag, build_id, space_us(updated_at) from template_tags "
                               "where template_id = $1 order by tag",
                               Kind::read};

BuildRow read_build(RowReader& reader) {
  BuildRow build;
  build.id = reader.text();
  build.template_public_id = reader.text();
  build.template_name = reader.text();
  build.build = reader.text();
  build.version = static_cast<std::uint32_t>(reader.number_or_nothing().value_or(0));
  build.state = reader.text();
  build.vcpus = static_cast<std::uint32_t>(reader.number_or_nothing().value_or(0));
  build.memory_mib = static_cast<std::uint32_t>(reader.number_or_nothing().value_or(0));
  build.disk_mib = static_cast<std::uint32_t>(reader.number_or_nothing().value_or(0));
  build.default_user = reader.text();
  build.default_workdir = reader.text();
  build.manifest = reader.document();
  build.created_at = reader.time_or_nothing().value_or(base::WallTime());
  return build;
}

}  // namespace

async::Task<BuildRow> Templates::register_build(NewBuild build, base::Deadline deadline) {
  Params params;
  // E2B's template ids have 20 characters.
  params.text(base::make_uuid7())
      .text(base::make_short_id('t').substr(0, 20))
      .text_unless_empty(build.project_id);
  params.text(build.name).text(base::make_uuid7()).text(build.build);
  params.number(build.vcpus).number(build.memory_mib).number(build.disk_mib);
  params.text(build.default_user)
      .text(build.default_workdir)
      .document(build.manifest)
      .text(build.tag);
  auto rows = co_await database_.run(register_statement, params, deadline);
  if (rows && rows->empty()) {
    // Somebody else made the template in a transaction that our snapshot did not see: now it does.
    rows = co_await database_.run(register_statement, std::move(params), deadline);
  }
  if (!rows) co_return base::passing(rows);
  if (rows->empty())
    co_return base::fail(base::Code::unavailable,
                         "the template is being registered by somebody else; try again");
  RowReader reader(*rows, 0);
  co_return read_build(reader);
}

async::Task<std::optional<BuildRow>> Templates::resolve(std::string project_id,
                                                        std::string name_or_id,
                                                        std::string tag,
                                                        base::Deadline deadline) {
  Params params;
  params.text_unless_empty(project_id).text(name_or_id).text(tag);
  auto rows = co_await database_.run(resolve_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::optional<BuildRow> found;
  if (!rows->empty()) {
    RowReader reader(*rows, 0);
    found = read_build(reader);
  }
  co_return found;
}

async::Task<std::vector<TemplateRow>> Templates::select(std::string project_id,
                                                        std::string name_or_id,
                                                        base::Deadline deadline) {
  Params params;
  params.text_unless_empty(project_id).text(name_or_id);
  auto rows = co_await database_.run(list_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<TemplateRow> all;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    TemplateRow row;
    row.id = reader.text();
    row.public_id = reader.text();
    row.name = reader.text();
    row.project_id = reader.text();
    row.is_public = reader.boolean();
    row.spawn_count = reader.as<std::uint64_t>();
    row.build_count = reader.as<std::uint32_t>();
    row.created_at = reader.time();
    row.updated_at = reader.time();
    if (reader.boolean()) row.latest = read_build(reader);
    all.push_back(std::move(row));
  }
  co_return all;
}

async::Task<std::vector<TemplateRow>> Templates::list(std::string project_id,
                                                      base::Deadline deadline) {
  return select(std::move(project_id), std::string(), deadline);
}

async::Task<std::optional<TemplateRow>> Templates::find(std::string project_id,
                                                        std::string name_or_id,
                                                        base::Deadline deadline) {
  std::optional<TemplateRow> found;
  if (name_or_id.empty()) co_return found;
  auto all = co_await select(std::move(project_id), std::move(name_or_id), deadline);
  if (!all) co_return base::passing(all);
  if (!all->empty()) found = std::move(all->front());
  co_return found;
}

async::Task<std::vector<BuildRow>> Templates::builds(std::string template_id,
                                                     base::Deadline deadline) {
  Params params;
  params.text(template_id);
  auto rows = co_await database_.run(builds_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<BuildRow> all;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    all.push_back(read_build(reader));
  }
  co_return all;
}

async::Task<std::vector<TagRow>> Templates::tags(std::string template_id, base::Deadline deadline) {
  Params params;
  params.text(template_id);
  auto rows = co_await database_.run(tags_statement, std::move(params), deadline);
  if (!rows) co_return base::passing(rows);
  std::vector<TagRow> all;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    RowReader reader(*rows, i);
    TagRow tag;
    tag.tag = reader.text();
    tag.build_id = reader.text();
    tag.updated_at = reader.time();
    all.push_back(std::move(tag));
  }
  co_return all;
}

}  // namespace store
