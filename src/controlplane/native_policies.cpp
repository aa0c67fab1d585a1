// Egress policies: what a sandbox is under, and the texts of the levels.
#include "controlplane/native_policies.hpp"

#include "domain/egress_policy.hpp"

#include <charconv>

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t policy_bytes_max = 4 << 20;

json::object view_of(store::PolicyRow const& row) {
  return {{"level", row.level},
          {"subject", row.subject.empty() ? "-" : row.subject},
          {"version", row.version},
          {"policy", row.policy},
          {"actor", row.actor},
          {"updated_at", base::to_rfc3339(row.updated_at)}};
}

json::object view_of(Enforced const& one) {
  json::object view{{"sandbox", one.sandbox},
                    {"in_force", one.in_force},
                    {"generation", one.generation},
                    {"connections", one.connections},
                    {"cut", one.cut}};
  if (!one.note.empty()) view["note"] = one.note;
  return view;
}

json::array texts(std::vector<std::string> const& list) {
  json::array array;
  for (auto const& one : list)
    array.emplace_back(one);
  return array;
}

std::vector<std::string> warnings_of(NetworkPlan const& plan) {
  std::vector<std::string> out;
  for (auto const& level : plan.policy.levels)
    for (auto const& warning : domain::lint(level.policy))
      out.push_back(fmt::format("{}: {}", level.level, warning));
  for (auto const& trouble : plan.troubles)
    out.push_back(fmt::format("{}: rule {}: {}", trouble.level, trouble.rule, trouble.sentence));
  return out;
}

base::Result<std::optional<std::uint64_t>> if_version_of(Call const& call) {
  auto const text = call.query_value("if_version");
  if (!text) return std::optional<std::uint64_t>();
  std::uint64_t version = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), version);
  if (error != std::errc() || end != text->data() + text->size())
    return base::fail(Code::invalid_argument, "if_version: expected a version, or 0 for none");
  return std::optional(version);
}

/// What a change was, in words; a text that cannot be read any more has none.
std::vector<std::string> difference(json::value const& before, json::value const& after) {
  auto const decode = [](json::value const& text) {
    return text.is_null() ? base::Result<wire::Policy>(wire::Policy{})
                          : wire::decode<wire::Policy>(text, wire::UnknownKeys::ignore);
  };
  auto const old_text = decode(before);
  auto const new_text = decode(after);
  if (!old_text || !new_text) return {};
  return domain::diff(*old_text, *new_text);
}

}  // namespace

void PolicyRoutes::add_routes(Router& router) {
  using Member = async::Task<Reply> (PolicyRoutes::*)(Call&);
  auto const add = [&](std::string method,
                       std::string pattern,
                       std::string operation,
                       Permission permission,
                       Member member) {
    Route route;
    route.method = std::move(method);
    route.pattern = std::move(pattern);
    route.operation_id = std::move(operation);
    route.permission = permission;
    route.body_max = policy_bytes_max;
    route.handler = [this, member](Call& call) { return (this->*member)(call); };
    router.add(std::move(route));
  };
  std::string const of_sandbox = "/v1/sandboxes/{sandbox}/policy";
  add("GET", of_sandbox, "getSandboxPolicy", Permission::read, &PolicyRoutes::get_sandbox);
  add("PUT", of_sandbox, "setSandboxPolicy", Permission::write, &PolicyRoutes::set_sandbox);
  add("DELETE",
      of_sandbox,
      "removeSandboxPolicy",
      Permission::write,
      &PolicyRoutes::remove_sandbox);
  add("GET",
      of_sandbox + "/explain",
      "explainSandboxPolicy",
      Permission::read,
      &PolicyRoutes::explain);
  add("GET",
      of_sandbox + "/suggestions",
      "suggestSandboxPolicy",
      Permission::read,
      &PolicyRoutes::suggest);
  add("GET",
      "/v1/sandboxes/{sandbox}/decisions",
      "streamSandboxDecisions",
      Permission::read,
      &PolicyRoutes::stream_decisions);
  add("GET",
      "/v1/sandboxes/{sandbox}/audit",
      "listSandboxAudit",
      Permission::read,
      &PolicyRoutes::list_audit);
  std::string const of_level = "/v1/policies/{level}/{subject}";
  add("GET", of_level, "getPolicy", Permission::read, &PolicyRoutes::get_level);
  add("PUT", of_level, "setPolicy", Permission::admin, &PolicyRoutes::set_level);
  add("DELETE", of_level, "removePolicy", Permission::admin, &PolicyRoutes::remove_level);
  add("GET",
      of_level + "/versions",
      "listPolicyVersions",
      Permission::read,
      &PolicyRoutes::list_versions);
}

async::Task<store::SandboxRow> PolicyRoutes::live(Call& call) {
  return service_.get(
      call.owner.project_id, call.param("sandbox"), SandboxService::Ended::hide, call.deadline);
}

async::Task<Reply> PolicyRoutes::get_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto plan = co_await network_.plan(network_of(*row), {}, call.deadline);
  if (!plan) co_return base::passing(plan);
  json::array levels;
  for (auto const& level : plan->levels)
    if (!level.policy.is_null()) levels.push_back(view_of(level));
  json::array credentials;
  for (auto const& lease : plan->credentials)
    if (!lease.budget) credentials.emplace_back(lease.name);
  json::object view{{"sandbox", row->public_id},
                    {"generation", plan->policy.generation},
                    {"uplink", network_.has_uplink()},
                    {"levels", std::move(levels)},
                    {"credentials", std::move(credentials)},
                    {"warnings", texts(warnings_of(*plan))}};
  auto const& last = plan->policy.levels.back();
  bool const nothing_given = plan->levels.empty() || plan->levels.back().level != last.level ||
                             plan->levels.back().policy.is_null();
  if (!network_.has_uplink())
    view["note"] = offline_note;
  else if (nothing_given && last.level == "sandbox")
    view["note"] =
        "neither its project nor its template nor itself has a policy: nothing is allowed";
  co_return json_reply(200, view);
}

async::Task<Reply> PolicyRoutes::set_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  auto value = body_of(call);
  if (!value) co_return base::passing(value);
  auto policy = wire::decode<wire::Policy>(*value);
  if (!policy) co_return base::passing(policy);
  co_return co_await change_sandbox(call, std::move(*policy));
}

async::Task<Reply> PolicyRoutes::remove_sandbox(Call& call) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  co_return co_await change_sandbox(call, {});
}

/// Answers when it is in force, or says that it is not.
async::Task<Reply> PolicyRoutes::change_sandbox(Call& call, std::optional<wire::Policy> policy) {
  auto row = co_await live(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query({"if_version"}); !ok) co_return base::passing(ok);
  if (policy) {
    auto checked = co_await network_.check_own(network_of(*row), *policy, call.deadline);
    if (!checked) co_return base::passing(checked);
  }
  Level level{"sandbox", row->public_id, row->public_id};
  co_return co_await change(call, std::move(level), std::move(policy));
}

async::Task<Reply> PolicyRoutes::change(Call& call,
                                        Level level,
                                        std::optional<wire::Policy> policy) {
  auto const if_version = if_version_of(call);
  if (!if_version) co_return std::unexpected(if_version.error());
  auto before = co_await store_.policies.find(level.name, level.subject, call.deadline);
  if (!before) co_return base::passing(before);
  store::NewPolicy wanted{
      level.name, level.subject, nullptr, call.owner.key_public_id, *if_version};
  if (policy) wanted.policy = wire::encode(*policy);
  auto put = co_await store_.policies.put(std::move(wanted), call.deadline);
  if (!put) co_return base::passing(put);
  if (!*put)
    co_return base::fail(Code::conflict,
                         fmt::format("the policy is at version {}; read it again",
                                     *before ? (*before)->version : 0));
  auto view = view_of(**put);
  view["diff"] = texts(difference(*before ? (*before)->policy : json::value(), (*put)->policy));
  view["warnings"] = texts(policy ? domain::lint(*policy) : std::vector<std::string>());
  auto applied = co_await network_.enforce_under(level.name, level.subject, call.deadline);
  if (!applied) co_return base::passing(applied, "the policy is stored, but not yet in force");
  json::array sandboxes;
  for (auto const& one : *applied) {
    if (one.failed && level.name == "sandbox")
      co_return base::fail(Code::unavailable,
                           fmt::format("the policy is stored as version {}, but it is not in "
                                       "force: {}",
                                       (*put)->version,
                                       one.note));
    sandboxes.push_back(view_of(one));
  }
  view["sandboxes"] = std::move(sandboxes);
  co_return json_reply(200, view);
}

/// Whose level may be read: one's own project and organisation, what everybody is under, the
/// templates one sees. Changed: one's own project and templates; the rest by the installation.
async::Task<PolicyRoutes::Level> PolicyRoutes::level_of(Call& call, bool to_change) {
  auto const& name = call.param("level");
  auto const& subject = call.param("subject");
  auto const& owner = call.owner;
  auto const nothing = [&] {
    return base::fail(
        Code::not_found,
        fmt::format("there is no {} \"{}\"", name.substr(0, 20), subject.substr(0, 60)));
  };
  auto const not_yours =
      base::fail(Code::denied, "this level is changed with a key of the installation only");
  Level level{name, subject, subject};
  if (name == "platform") {
    if (subject != "-") co_return nothing();
    if (to_change && !owner.installation) co_return not_yours;
    level.subject.clear();
    co_return level;
  }
  if (name == "organisation") {
    if (!owner.installation && subject != owner.organisation_public_id) co_return nothing();
    if (to_change && !owner.installation) co_return not_yours;
    if (subject.empty() || !base::is_short_id('o', subject)) co_return nothing();
    co_return level;
  }
  if (name == "project") {
    if (subject == owner.project_public_id) co_return level;
    if (!owner.installation) co_return nothing();
    auto found = co_await store_.projects.list(subject, call.deadline);
    if (!found) co_return base::passing(found);
    if (subject.empty() || found->empty()) co_return nothing();
    co_return level;
  }
  if (name == "sandbox" && !to_change) {
    auto row = co_await service_.get(
        owner.project_id, subject, SandboxService::Ended::show, call.deadline);
    if (!row) co_return base::passing(row);
    co_return level;
  }
  if (name == "template") {
    auto found = co_await store_.templates.find(owner.project_id, subject, call.deadline);
    if (!found) co_return base::passing(found);
    if (!*found) co_return nothing();
    if (to_change && (*found)->project_id.empty() && !owner.installation) co_return not_yours;
    level.subject = (*found)->public_id;
    level.shown = level.subject;
    co_return level;
  }
  co_return base::fail(
      Code::not_found,
      "a level is platform (subject -), organisation, project or template; a sandbox's own is "
      "changed at /v1/sandboxes/{sandbox}/policy");
}

async::Task<Reply> PolicyRoutes::get_level(Call& call) {
  auto level = co_await level_of(call, false);
  if (!level) co_return base::passing(level);
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto row = co_await store_.policies.find(level->name, level->subject, call.deadline);
  if (!row) co_return base::passing(row);
  if (!*row || (*row)->policy.is_null())
    co_return base::fail(Code::not_found,
                         fmt::format("the {} has no policy: it limits nothing", level->name));
  co_return json_reply(200, view_of(**row));
}

async::Task<Reply> PolicyRoutes::set_level(Call& call) {
  auto level = co_await level_of(call, true);
  if (!level) co_return base::passing(level);
  if (auto ok = call.allow_query({"if_version"}); !ok) co_return base::passing(ok);
  auto value = body_of(call);
  if (!value) co_return base::passing(value);
  auto policy = wire::decode<wire::Policy>(*value);
  if (!policy) co_return base::passing(policy);
  auto compiled = domain::EgressPolicy::compile({1, {{level->name, *policy}}});
  if (!compiled) co_return base::passing(compiled);
  auto checked = co_await check_credentials(call, *level, *policy);
  if (!checked) co_return base::passing(checked);
  co_return co_await change(call, std::move(*level), std::move(*policy));
}

/// Credentials are looked up where the rule's sandboxes are, so above a project a rule cannot know
/// which one it means.
async::Task<void> PolicyRoutes::check_credentials(Call& call,
                                                  Level const& level,
                                                  wire::Policy const& policy) {
  std::vector<std::string> names;
  for (auto const& rule : policy.rules)
    for (auto const& one : rule.inject)
      names.push_back(one.credential);
  if (names.empty()) co_return base::Result<void>();
  if (level.name == "platform" || level.name == "organisation")
    co_return base::fail(
        Code::invalid_argument,
        "inject: a level above projects only limits; name credentials in a project's, template's "
        "or sandbox's policy");
  if (level.subject != call.owner.project_public_id && level.name == "project")
    co_return base::Result<void>();
  auto found = co_await store_.credentials.list(call.owner.project_id, call.deadline);
  if (!found) co_return base::passing(found);
  // Of a project's rule each template may have its own.
  auto const may_be_meant = [&](store::CredentialRow const& row) {
    return level.name == "project" || row.template_public_id.empty() ||
           row.template_public_id == level.subject;
  };
  for (auto const& name : names) {
    auto const there = std::ranges::any_of(
        *found, [&](auto const& one) { return one.name == name && may_be_meant(one); });
    if (!there)
      co_return base::fail(Code::invalid_argument,
                           fmt::format("inject: there is no credential \"{}\"", name));
  }
  co_return base::Result<void>();
}

async::Task<Reply> PolicyRoutes::remove_level(Call& call) {
  auto level = co_await level_of(call, true);
  if (!level) co_return base::passing(level);
  if (auto ok = call.allow_query({"if_version"}); !ok) co_return base::passing(ok);
  co_return co_await change(call, std::move(*level), {});
}

async::Task<Reply> PolicyRoutes::list_versions(Call& call) {
  auto level = co_await level_of(call, false);
  if (!level) co_return base::passing(level);
  if (auto ok = call.allow_query({"limit"}); !ok) co_return base::passing(ok);
  auto const limit = limit_of(call);
  if (!limit) co_return std::unexpected(limit.error());
  auto rows =
      co_await store_.policies.versions(level->name, level->subject, *limit + 1, call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (std::size_t i = 0; i < rows->size() && i < *limit; ++i) {
    auto view = view_of((*rows)[i]);
    auto const before = i + 1 < rows->size() ? (*rows)[i + 1].policy : json::value();
    view["diff"] = texts(difference(before, (*rows)[i].policy));
    array.push_back(std::move(view));
  }
  co_return json_reply(200, json::object{{"versions", std::move(array)}});
}

}  // namespace controlplane
