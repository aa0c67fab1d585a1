#include "controlplane/admin_key.hpp"

#include "controlplane/tokens.hpp"

namespace controlplane {
namespace {

constexpr char const* default_name = "default";
constexpr char const* key_name = "install";
constexpr std::size_t prefix_length = 8;

async::Task<std::string> default_project(store::Store* store, base::Deadline deadline) {
  auto organisations = co_await store->projects.list_organisations("", deadline);
  if (!organisations) co_return base::passing(organisations);
  std::string organisation;
  for (auto const& one : *organisations)
    if (one.name == default_name) organisation = one.public_id;
  if (organisation.empty()) {
    auto made = co_await store->projects.create_organisation(default_name, deadline);
    if (!made) co_return base::passing(made);
    organisation = made->public_id;
  }
  auto projects = co_await store->projects.list("", deadline);
  if (!projects) co_return base::passing(projects);
  for (auto const& one : *projects) {
    if (one.organisation_public_id == organisation && one.name == default_name)
      co_return one.public_id;
  }
  // Without limits of its own: what the hosts have is the limit of the first project.
  auto made = co_await store->projects.create(organisation, default_name, {}, deadline);
  if (!made) co_return base::passing(made);
  co_return made->public_id;
}

}  // namespace

async::Task<std::string> make_admin_key(store::Store* store,
                                        Replace replace,
                                        base::Deadline deadline) {
  auto project = co_await default_project(store, deadline);
  if (!project) co_return base::passing(project);
  if (replace == Replace::yes) {
    auto revoked = co_await store->keys.revoke_installation(key_name, deadline);
    if (!revoked) co_return base::passing(revoked);
  } else {
    auto keys = co_await store->keys.list("", deadline);
    if (!keys) co_return base::passing(keys);
    for (auto const& key : *keys) {
      if (key.installation && key.role == store::Role::admin && !key.revoked_at)
        co_return std::string();
    }
  }
  auto const secret = make_key();
  store::NewKey wanted;
  wanted.project_public_id = *project;
  wanted.name = key_name;
  wanted.role = store::Role::admin;
  wanted.installation = true;
  wanted.key_sha256 = sha256_hex(secret);
  wanted.prefix = secret.substr(0, prefix_length);
  auto made = co_await store->keys.create(std::move(wanted), deadline);
  if (!made) co_return base::passing(made);
  co_return secret;
}

}  // namespace controlplane
