#include "cli/up_check.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace cli {
namespace {

bool is_address(std::string const& text) {
  in6_addr address{};  // room for both kinds
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

bool is_network(std::string const& text) {
  auto const slash = text.find('/');
  if (!is_address(text.substr(0, slash))) return false;
  if (slash == std::string::npos) return true;
  unsigned bits = 0;
  auto const* const end = text.data() + text.size();
  auto const [rest, error] = std::from_chars(text.data() + slash + 1, end, bits);
  return error == std::errc() && rest == end && bits <= (text.find(':') < slash ? 128U : 32U);
}

/// Labels of lower-case letters, digits and dashes, and perhaps a port.
bool is_domain(std::string_view text) {
  auto const colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    std::uint16_t port = 0;
    auto const* const end = text.data() + text.size();
    auto const [rest, error] = std::from_chars(text.data() + colon + 1, end, port);
    if (error != std::errc() || rest != end || port == 0) return false;
    text = text.substr(0, colon);
  }
  if (text.empty() || text.size() > 200 || text.find("..") != std::string_view::npos) return false;
  auto const allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  auto const edge = [](char c) { return c == '-' || c == '.'; };
  return std::ranges::all_of(text, allowed) && !edge(text.front()) && !edge(text.back());
}

bool is_name(std::string_view text) {
  auto const allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !text.empty() && text.size() <= 63 && std::ranges::all_of(text, allowed);
}

}  // namespace

std::string problem_of_names(wire::Config const& config) {
  if (config.http_port == 0 || config.tls_port == 0 || config.http_port == config.tls_port)
    return "http-port, tls-port: two different ports from 1 to 65535";
  if (config.listen_addresses.empty() ||
      !std::ranges::all_of(config.listen_addresses, is_address)) {
    return "listen: IPv4 or IPv6 addresses of this host, like 127.0.0.1 or ::1";
  }
  if (!is_domain(config.domain))
    return "domain: a name of lower-case letters, digits, dashes and dots, and perhaps a port, "
           "like "
           "space.example.org:7443";
  if (!is_name(config.node_name))
    return "node-name: 1 to 63 letters, digits, dashes, dots and underscores";
  if (!std::ranges::all_of(config.private_routes, is_network))
    return "private-route: networks like 10.1.0.0/16";
  return {};
}

}  // namespace cli
