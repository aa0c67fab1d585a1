#include "controlplane/e2b_routes.hpp"
#include "domain/template_name.hpp"
#include "wire/agent.hpp"

namespace controlplane::e2b {
namespace {

using base::Code;

std::unexpected<base::Error> no_such_template(std::string_view name) {
  return base::fail(Code::not_found, fmt::format("template '{}' not found", name.substr(0, 128)));
}

json::object build_reply(store::BuildRow const& build) {
  return {{"buildID", build.id},
          {"status", build.state == "failed" ? std::string("error") : build.state},
          {"createdAt", base::to_rfc3339(build.created_at)},
          {"updatedAt", base::to_rfc3339(build.created_at)},
          {"finishedAt", base::to_rfc3339(build.created_at)},
          {"cpuCount", build.vcpus},
          {"memoryMB", build.memory_mib},
          {"diskSizeMB", build.disk_mib},
          {"envdVersion", wire::envd_version}};
}

}  // namespace

void E2b::add_template_routes(Router& router) {
  auto const add = [&](std::string pattern, Handler handler) {
    add_route(router, "GET", std::move(pattern), std::move(handler));
  };
  add("/templates", [this](Call& call) { return list_templates(call); });
  add("/v2/templates", [this](Call& call) { return list_templates(call); });
  // Ids may hold slashes and colons, escaped or not: "team/snap:default".
  add("/templates/aliases/{alias*}", [this](Call& call) { return show_alias(call); });
  add("/templates/{id*}/tags", [this](Call& call) { return list_tags(call); });
  add("/templates/{id*}", [this](Call& call) { return show_template(call); });
  add("/teams", [this](Call& call) { return teams(call); });
}

/// not_found, or what the caller may use. A name of another project is not found: it must not be
/// told apart from one that does not exist.
async::Task<std::optional<store::TemplateRow>> E2b::find_template(Call& call, std::string name) {
  auto parsed = domain::parse_template_name(name);
  if (!parsed) co_return no_such_template(name);
  if (!parsed->name_space.empty() && parsed->name_space != call.owner.project_public_id)
    co_return no_such_template(name);
  auto found = co_await store_.templates.find(call.owner.project_id, parsed->alias, call.deadline);
  if (!found) co_return base::passing(found);
  if (!*found) co_return no_such_template(name);
  co_return found;
}

async::Task<Reply> E2b::list_templates(Call& call) {
  auto rows = co_await store_.templates.list(call.owner.project_id, call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(template_reply(row));
  co_return json_reply(200, array);
}

async::Task<Reply> E2b::show_template(Call& call) {
  auto found = co_await find_template(call, call.param("id"));
  if (!found) co_return base::passing(found);
  auto& row = **found;
  auto builds = co_await store_.templates.builds(row.id, call.deadline);
  if (!builds) co_return base::passing(builds);
  json::array array;
  for (auto const& build : *builds)
    array.push_back(build_reply(build));
  auto reply = template_reply(row);
  reply.as_object()["builds"] = std::move(array);
  co_return json_reply(200, reply);
}

async::Task<Reply> E2b::show_alias(Call& call) {
  auto found = co_await find_template(call, call.param("alias"));
  if (!found) co_return base::passing(found);
  auto const& row = **found;
  co_return json_reply(200,
                       json::object{{"templateID", row.public_id},
                                    {"public", row.is_public || row.project_id.empty()}});
}

async::Task<Reply> E2b::list_tags(Call& call) {
  auto found = co_await find_template(call, call.param("id"));
  if (!found) co_return base::passing(found);
  auto tags = co_await store_.templates.tags((*found)->id, call.deadline);
  if (!tags) co_return base::passing(tags);
  json::array array;
  for (auto const& tag : *tags) {
    array.push_back(json::object{{"tag", tag.tag},
                                 {"buildID", tag.build_id},
                                 {"createdAt", base::to_rfc3339(tag.updated_at)}});
  }
  co_return json_reply(200, array);
}

/// The one project of the key. Its key is not repeated: only a hash of it is kept.
async::Task<Reply> E2b::teams(Call& call) {
  json::object team{{"teamID", call.owner.project_public_id},
                    {"name", call.owner.project_public_id},
                    {"apiKey", ""},
                    {"isDefault", true}};
  co_return json_reply(200, json::array{std::move(team)});
}

}  // namespace controlplane::e2b
