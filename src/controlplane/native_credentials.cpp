#include "controlplane/native_credentials.hpp"

#include "domain/credential_profiles.hpp"

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t body_bytes_max = 64 << 10;

struct BindingBody {
  std::vector<std::string> hosts;
  std::vector<std::uint16_t> ports;
  std::vector<std::string> methods;
  std::vector<std::string> paths;
  std::string header;
  std::string form;
  std::string username;
  std::optional<std::uint32_t> requests_per_s;
  std::optional<std::uint32_t> concurrent;
  std::optional<std::uint64_t> requests_per_day;
};
BOOST_DESCRIBE_STRUCT(BindingBody,
                      (),
                      (hosts,
                       ports,
                       methods,
                       paths,
                       header,
                       form,
                       username,
                       requests_per_s,
                       concurrent,
                       requests_per_day))

struct PutCredential {
  std::string value;
  std::string profile;
  BindingBody binding;
  std::optional<store::CredentialGrants> grants;

  static bool required(std::string_view name) { return name == "value"; }
};
BOOST_DESCRIBE_STRUCT(PutCredential, (), (value, profile, binding, grants))

struct RotateCredential {
  std::string value;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(RotateCredential, (), (value))

/// The profile's binding with what was said beside it in its place.
base::Result<wire::CredentialBinding> binding_of(PutCredential const& body) {
  wire::CredentialBinding out;
  out.form.clear();
  if (!body.profile.empty()) {
    auto const* found = domain::find_profile(body.profile);
    if (!found)
      return base::fail(Code::invalid_argument,
                        fmt::format("profile: there is no \"{}\"; see GET /v1/credential-profiles",
                                    body.profile.substr(0, 40)));
    out = found->binding;
  }
  auto const& said = body.binding;
  if (!said.hosts.empty()) out.hosts = said.hosts;
  if (!said.ports.empty()) out.ports = said.ports;
  if (!said.methods.empty()) out.methods = said.methods;
  if (!said.paths.empty()) out.paths = said.paths;
  if (!said.header.empty()) out.header = said.header;
  if (!said.form.empty()) out.form = said.form;
  if (!said.username.empty()) out.username = said.username;
  if (said.requests_per_s) out.requests_per_s = said.requests_per_s;
  if (said.concurrent) out.concurrent = said.concurrent;
  if (said.requests_per_day) out.requests_per_day = said.requests_per_day;
  if (out.form == "plain")
    return base::fail(Code::invalid_argument, "binding.form: header, bearer or basic");
  if (out.form.empty()) out.form = "header";
  if (out.header.empty() && out.form != "header") out.header = "authorization";
  auto deny = domain::minting_for(out.hosts, body.profile);
  if (!deny.empty()) out.deny = std::move(deny);
  return out;
}

base::Result<void> check_credential_name(std::string_view name) {
  auto const fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  bool const good =
      !name.empty() && name.size() <= 63 && std::ranges::all_of(name, fits) && name.front() != '.';
  if (good) return {};
  return base::fail(
      Code::invalid_argument,
      "a credential's name has 1 to 63 lower-case letters, digits, dashes, underscores and dots");
}

base::Result<void> check_grants(std::optional<store::CredentialGrants> const& grants) {
  if (!grants) return {};
  if (grants->projects.size() > 256 || grants->sandboxes.size() > 256)
    return base::fail(Code::invalid_argument, "grants: at most 256 projects and 256 sandboxes");
  for (auto const& one : grants->projects)
    if (one != "*" && !base::is_short_id('p', one))
      return base::fail(Code::invalid_argument, "grants.projects: expected ids of projects, or *");
  for (auto const& one : grants->sandboxes)
    if (!base::is_short_id('i', one))
      return base::fail(Code::invalid_argument, "grants.sandboxes: expected ids of sandboxes");
  return {};
}

constexpr std::initializer_list<std::string_view> scope_words{"scope", "template"};

json::object view_of(store::CredentialRow const& row) {
  json::object view{{"name", row.name},
                    {"scope",
                     row.project_public_id.empty()     ? "organisation"
                     : !row.template_public_id.empty() ? "template"
                                                       : "project"},
                    {"state", row.state},
                    {"version", row.version},
                    {"binding", wire::encode(row.binding)},
                    {"created_by", row.created_by},
                    {"created_at", base::to_rfc3339(row.created_at)},
                    {"updated_at", base::to_rfc3339(row.updated_at)}};
  if (!row.template_public_id.empty()) view["template"] = row.template_public_id;
  if (!row.profile.empty()) view["profile"] = row.profile;
  if (row.grants) view["grants"] = wire::encode(*row.grants);
  return view;
}

}  // namespace

CredentialRoutes::CredentialRoutes(NetworkService& network,
                                   store::Store& store,
                                   asio::any_io_executor executor,
                                   std::string broker_socket)
    : network_(network), store_(store), sealer_(std::move(executor), std::move(broker_socket)) {}

void CredentialRoutes::add_routes(Router& router) {
  using Member = async::Task<Reply> (CredentialRoutes::*)(Call&);
  auto const add = [&](std::string method,
                       std::string pattern,
                       std::string operation,
                       Permission permission,
                       Member member) {
    Route route;
    route.repeat = method == "POST" ? Repeat::replay : Repeat::none;
    route.method = std::move(method);
    route.pattern = std::move(pattern);
    route.operation_id = std::move(operation);
    route.permission = permission;
    route.body_max = body_bytes_max;
    route.handler = [this, member](Call& call) { return (this->*member)(call); };
    router.add(std::move(route));
  };
  using enum Permission;
  std::string const one = "/v1/credentials/{credential}";
  add("GET", "/v1/credentials", "listCredentials", read, &CredentialRoutes::list);
  add("GET",
      "/v1/credential-profiles",
      "listCredentialProfiles",
      read,
      &CredentialRoutes::profiles);
  add("GET", one, "getCredential", read, &CredentialRoutes::show);
  add("PUT", one, "putCredential", admin, &CredentialRoutes::put);
  add("DELETE", one, "removeCredential", admin, &CredentialRoutes::remove);
  // A value never travels by POST: what a POST was is kept for repeats, if only as a hash.
  add("PUT", one + "/value", "rotateCredential", admin, &CredentialRoutes::rotate);
  add("PUT", one + "/grants", "grantCredential", admin, &CredentialRoutes::set_grants);
  add("POST", one + "/revoke", "revokeCredential", admin, &CredentialRoutes::revoke);
  add("POST", one + "/release", "releaseCredential", admin, &CredentialRoutes::release);
}

/// Those of an organisation only the installation changes; a template's needs a template that the
/// project sees, and is the project's own all the same.
async::Task<store::CredentialScope> CredentialRoutes::scope_of(Call& call, bool to_change) {
  auto const name = call.query_value("template");
  auto const scope = call.query_value("scope").value_or(name ? "template" : "project");
  if ((scope == "template") != name.has_value())
    co_return base::fail(Code::invalid_argument,
                         "scope template needs template=NAME, no other does");
  store::CredentialScope out;
  if (scope == "project") co_return out;
  if (scope == "template") {
    auto found = co_await store_.templates.find(call.owner.project_id, *name, call.deadline);
    if (!found) co_return base::passing(found);
    if (!*found)
      co_return base::fail(Code::not_found,
                           fmt::format("there is no template \"{}\"", name->substr(0, 60)));
    out.template_public_id = (*found)->public_id;
    co_return out;
  }
  if (scope != "organisation")
    co_return base::fail(Code::invalid_argument,
                         "scope: expected project, organisation or template");
  if (to_change && !call.owner.installation)
    co_return base::fail(
        Code::denied, "credentials of an organisation are changed with a key of the installation");
  out.of_organisation = true;
  co_return out;
}

async::Task<store::CredentialRow> CredentialRoutes::named(Call& call) {
  auto scope = co_await scope_of(call, false);
  if (!scope) co_return base::passing(scope);
  auto const& name = call.param("credential");
  auto row = co_await store_.credentials.find(call.owner.project_id, *scope, name, call.deadline);
  if (!row) co_return base::passing(row);
  if (!*row)
    co_return base::fail(Code::not_found,
                         fmt::format("there is no credential \"{}\"", name.substr(0, 63)));
  co_return std::move(**row);
}

async::Task<Reply> CredentialRoutes::list(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  auto rows = co_await store_.credentials.list(call.owner.project_id, call.deadline);
  if (!rows) co_return base::passing(rows);
  json::array array;
  for (auto const& row : *rows)
    array.push_back(view_of(row));
  co_return json_reply(200, json::object{{"credentials", std::move(array)}});
}

async::Task<Reply> CredentialRoutes::profiles(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  co_return json_reply(200,
                       json::object{{"profiles", wire::encode(domain::credential_profiles())}});
}

async::Task<Reply> CredentialRoutes::show(Call& call) {
  auto row = co_await named(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  co_return json_reply(200, view_of(*row));
}

async::Task<store::CredentialRow> CredentialRoutes::store_sealed(store::NewCredential wanted,
                                                                 bool exists,
                                                                 base::Deadline deadline) {
  auto const taken =
      base::fail(Code::conflict, "somebody else changed this credential at this moment; try again");
  if (!exists) {
    auto made = co_await store_.credentials.create(std::move(wanted), deadline);
    if (!made && store::sqlstate_of(made.error()) == "23505") co_return taken;
    co_return made;
  }
  auto rotated = co_await store_.credentials.rotate(std::move(wanted), deadline);
  if (!rotated) co_return base::passing(rotated);
  if (!*rotated) co_return taken;
  co_return std::move(**rotated);
}

/// Makes it, or gives it a new value with whatever binding and grants are said now.
async::Task<Reply> CredentialRoutes::put(Call& call) {
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  Wipe const wipe_body{call.body};
  auto scope = co_await scope_of(call, true);
  if (!scope) co_return base::passing(scope);
  auto const& name = call.param("credential");
  if (auto ok = check_credential_name(name); !ok) co_return base::passing(ok);
  auto before =
      co_await store_.credentials.find(call.owner.project_id, *scope, name, call.deadline);
  if (!before) co_return base::passing(before);
  auto body = decode_body<PutCredential>(call);
  if (!body) co_return base::passing(body);
  Wipe const wipe_value{body->value};
  if (auto ok = check_grants(body->grants); !ok) co_return base::passing(ok);
  auto binding = binding_of(*body);
  if (!binding) co_return base::passing(binding);
  store::NewCredential wanted;
  wanted.id = *before ? (*before)->id : base::make_uuid7();
  wanted.project_id = call.owner.project_id;
  wanted.scope = *scope;
  wanted.name = name;
  wanted.profile = body->profile;
  wanted.grants = body->grants;
  wanted.actor = call.owner.key_public_id;
  auto const version = *before ? (*before)->version + 1 : 1;
  auto sealed =
      co_await sealer_.seal({wanted.id, version, body->value, std::move(*binding)}, call.deadline);
  if (!sealed) co_return base::passing(sealed);
  wanted.sealed = std::move(*sealed);
  auto row = co_await store_sealed(std::move(wanted), before->has_value(), call.deadline);
  if (!row) co_return base::passing(row);
  co_return co_await answer(call, std::move(*row));
}

async::Task<Reply> CredentialRoutes::rotate(Call& call) {
  Wipe const wipe_body{call.body};
  auto row = co_await named(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  if (auto may = co_await scope_of(call, true); !may) co_return base::passing(may);
  auto body = decode_body<RotateCredential>(call);
  if (!body) co_return base::passing(body);
  Wipe const wipe_value{body->value};
  auto sealed =
      co_await sealer_.seal({row->id, row->version + 1, body->value, row->binding}, call.deadline);
  if (!sealed) co_return base::passing(sealed);
  store::NewCredential wanted;
  wanted.id = row->id;
  wanted.profile = row->profile;
  wanted.grants = row->grants;
  wanted.sealed = std::move(*sealed);
  wanted.actor = call.owner.key_public_id;
  auto rotated = co_await store_sealed(std::move(wanted), true, call.deadline);
  if (!rotated) co_return base::passing(rotated);
  co_return co_await answer(call, std::move(*rotated));
}

async::Task<Reply> CredentialRoutes::revoke(Call& call) {
  auto row = co_await named(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  if (auto may = co_await scope_of(call, true); !may) co_return base::passing(may);
  auto revoked = co_await store_.credentials.set_state(row->id, "revoked", call.deadline);
  if (!revoked) co_return base::passing(revoked);
  if (*revoked) *row = std::move(**revoked);
  co_return co_await answer(call, std::move(*row));
}

/// Out of quarantine, with the value that it had: for whoever has looked at why a server sent it
/// back. A new value (rotate) does it, too.
async::Task<Reply> CredentialRoutes::release(Call& call) {
  auto row = co_await named(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  if (auto may = co_await scope_of(call, true); !may) co_return base::passing(may);
  auto released =
      co_await store_.credentials.release(row->id, call.owner.key_public_id, call.deadline);
  if (!released) co_return base::passing(released);
  if (!*released)
    co_return base::fail(
        Code::conflict,
        fmt::format("credential \"{}\" is {}, not quarantined", row->name, row->state));
  co_return co_await answer(call, std::move(**released));
}

async::Task<Reply> CredentialRoutes::set_grants(Call& call) {
  auto row = co_await named(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  if (auto may = co_await scope_of(call, true); !may) co_return base::passing(may);
  auto body = decode_body<store::CredentialGrants>(call);
  if (!body) co_return base::passing(body);
  std::optional<store::CredentialGrants> grants = std::move(*body);
  if (auto ok = check_grants(grants); !ok) co_return base::passing(ok);
  auto changed = co_await store_.credentials.set_grants(row->id, std::move(grants), call.deadline);
  if (!changed) co_return base::passing(changed);
  if (*changed) *row = std::move(**changed);
  co_return co_await answer(call, std::move(*row));
}

async::Task<Reply> CredentialRoutes::remove(Call& call) {
  auto row = co_await named(call);
  if (!row) co_return base::passing(row);
  if (auto ok = call.allow_query(scope_words); !ok) co_return base::passing(ok);
  if (auto may = co_await scope_of(call, true); !may) co_return base::passing(may);
  // Revoked first: should this process die in between, the next one sees what is not done.
  auto revoked = co_await store_.credentials.set_state(row->id, "revoked", call.deadline);
  if (!revoked) co_return base::passing(revoked);
  row->state = "removed";
  auto reply = co_await answer(call, *row);
  if (!reply) co_return base::passing(reply);
  auto gone = co_await store_.credentials.remove(row->id, call.deadline);
  if (!gone) co_return base::passing(gone);
  // What stood behind it, in the project or its organisation, is the nearest now.
  auto next = co_await store_.credentials.named(
      call.owner.project_id, row->template_public_id, {row->name}, call.deadline);
  if (!next) co_return base::passing(next);
  if (next->empty()) co_return reply;
  co_return co_await answer(call, std::move(*row));
}

async::Task<Reply> CredentialRoutes::answer(Call& call, store::CredentialRow row) {
  bool const wide = row.project_public_id.empty();
  auto applied =
      co_await network_.enforce_under(wide ? "organisation" : "project",
                                      wide ? row.organisation_public_id : row.project_public_id,
                                      call.deadline,
                                      row.name);
  if (!applied)
    co_return base::passing(applied, "the change is stored, but not yet with the sandboxes");
  auto view = view_of(row);
  json::array sandboxes;
  for (auto const& one : *applied) {
    json::object line{{"sandbox", one.sandbox}, {"in_force", one.in_force}};
    if (!one.note.empty()) line["note"] = one.note;
    sandboxes.push_back(std::move(line));
  }
  view["sandboxes"] = std::move(sandboxes);
  co_return json_reply(200, view);
}

}  // namespace controlplane
