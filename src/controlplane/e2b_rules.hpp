#pragma once

#include "store/credentials.hpp"

/// E2B's `network.rules`: header fields that are set on requests to a host on their way out. Their
/// values may be secrets, so they are credentials here: of one sandbox, sealed at once, never shown
/// again.
namespace controlplane::e2b {

namespace json = boost::json;

/// One header of one host, with its value, which is wiped in the end.
struct HeaderRule {
  std::string host;  // exact, lower case
  std::string header;
  std::string value;

  HeaderRule(std::string host_of, std::string header_of, std::string value_of)
      : host(std::move(host_of)), header(std::move(header_of)), value(std::move(value_of)) {}

  HeaderRule(HeaderRule&&) = default;
  HeaderRule& operator=(HeaderRule&&) = default;
  HeaderRule(HeaderRule const&) = delete;
  HeaderRule& operator=(HeaderRule const&) = delete;
  ~HeaderRule();
};

/// Takes the values out of `rules`, {domain: [{"transform": {"headers": {name: value}}}]}, and
/// leaves "" in their places. invalid_argument, which never repeats a value, for what cannot be
/// done: the values are wiped then, too.
base::Result<std::vector<HeaderRule>> take_header_rules(json::value& rules);

/// Is it one that never holds a secret, and whose words an answer may well have, such as Accept?
bool is_plain_header(std::string_view header);

/// What the sandbox's policy calls it.
std::string credential_name_of(std::string_view host, std::string_view header);

}  // namespace controlplane::e2b
