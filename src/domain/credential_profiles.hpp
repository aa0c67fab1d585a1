#pragma once

#include "wire/credential.hpp"
#include "wire/policy.hpp"

/// What is known of providers' APIs: where a credential goes, what a guest could bring a credential
/// of its own with, and where one credential could be turned into another that the guest would
/// keep. Data: credential_profiles.json, compiled in.
namespace domain {

/// Where credentials stand in a request. Lower case.
struct Carriers {
  std::vector<std::string> headers;
  std::vector<std::string> parameters;  // of the query
};
BOOST_DESCRIBE_STRUCT(Carriers, (), (headers, parameters))

struct CredentialProfile {
  std::string name;
  std::string what;  // a sentence for people
  wire::CredentialBinding binding;
  wire::PolicyRule rule;  // to begin with; the credential's name is added
  Carriers carriers;
  std::vector<wire::Endpoint> minting;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(CredentialProfile, (), (name, what, binding, rule, carriers, minting))

/// Parsed at the first call, which programs that fork make before it.
std::vector<CredentialProfile> const& credential_profiles();
CredentialProfile const* find_profile(std::string_view name);

/// Of every provider, and those that APIs in general use. `name` in lower case.
bool is_carrier_header(std::string_view name);
bool is_carrier_parameter(std::string_view name);

/// Is it one of these, in any spelling that a server may forgive? A path that can be read in two
/// ways could be any of them.
bool is_endpoint_of(std::vector<wire::Endpoint> const& endpoints,
                    std::string_view method,
                    std::string_view path);
/// By the host: an endpoint at which a known provider gives out new credentials.
bool mints_credentials(std::string_view host, std::string_view method, std::string_view path);
/// What a credential for these hosts must never be used for, with those of a named profile.
std::vector<wire::Endpoint> minting_for(std::vector<std::string> const& hosts,
                                        std::string_view profile);

}  // namespace domain
