#include "domain/credential_profiles.hpp"

#include "domain/credential_profiles_data.hpp"
#include "domain/egress_policy.hpp"

#include <set>
#include <stdexcept>

namespace domain {
namespace {

struct Document {
  Carriers carriers;
  std::vector<CredentialProfile> profiles;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(Document, (), (carriers, profiles))

using Names = std::set<std::string, std::less<>>;

struct Known {
  std::vector<CredentialProfile> profiles;
  Names headers;
  Names parameters;
};

Known read_all() {
  auto document = wire::decode_text<Document>(credential_profiles_json);
  // A test reads the same text. Whoever cannot read it anyway must not go on without it.
  if (!document) throw std::logic_error("credential_profiles.json: " + document.error().message());
  Known out;
  auto const add = [&](Carriers const& carriers) {
    out.headers.insert(carriers.headers.begin(), carriers.headers.end());
    out.parameters.insert(carriers.parameters.begin(), carriers.parameters.end());
  };
  add(document->carriers);
  for (auto const& one : document->profiles)
    add(one.carriers);
  out.profiles = std::move(document->profiles);
  return out;
}

Known const& known() {
  static Known const all = read_all();
  return all;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

}  // namespace

std::vector<CredentialProfile> const& credential_profiles() {
  return known().profiles;
}

CredentialProfile const* find_profile(std::string_view name) {
  auto const& all = credential_profiles();
  auto const found = std::ranges::find(all, name, &CredentialProfile::name);
  return found == all.end() ? nullptr : &*found;
}

bool is_carrier_header(std::string_view name) {
  return known().headers.contains(name);
}

bool is_carrier_parameter(std::string_view name) {
  return known().parameters.contains(name);
}

bool is_endpoint_of(std::vector<wire::Endpoint> const& endpoints,
                    std::string_view method,
                    std::string_view path) {
  if (endpoints.empty()) return false;
  // Servers forgive case, a slash at the end and needless escapes.
  auto plain = lower(plain_path(path));
  while (plain.size() > 1 && plain.ends_with('/'))
    plain.pop_back();
  bool const ambiguous = is_ambiguous_path(path);
  return std::ranges::any_of(endpoints, [&](wire::Endpoint const& one) {
    if (!one.method.empty() && one.method != method) return false;
    return ambiguous || path_matches(one.path, plain);
  });
}

bool mints_credentials(std::string_view host, std::string_view method, std::string_view path) {
  return std::ranges::any_of(credential_profiles(), [&](CredentialProfile const& profile) {
    auto const& hosts = profile.binding.hosts;
    return std::ranges::find(hosts, host) != hosts.end() &&
           is_endpoint_of(profile.minting, method, path);
  });
}

std::vector<wire::Endpoint> minting_for(std::vector<std::string> const& hosts,
                                        std::string_view profile) {
  std::vector<wire::Endpoint> out;
  for (auto const& one : credential_profiles()) {
    bool const at_home = std::ranges::any_of(one.binding.hosts, [&](std::string const& host) {
      return std::ranges::find(hosts, host) != hosts.end();
    });
    if (one.name == profile || at_home)
      out.insert(out.end(), one.minting.begin(), one.minting.end());
  }
  return out;
}

}  // namespace domain
