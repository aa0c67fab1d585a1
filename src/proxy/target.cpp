#include "proxy/target.hpp"

#include <arpa/inet.h>

#include <charconv>

namespace proxy {
namespace {

constexpr std::size_t sandbox_id_max = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

bool is_ip(std::string const& host) {
  std::array<unsigned char, 16> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

bool is_sandbox_id(std::string_view text) {
  return !text.empty() && text.size() <= sandbox_id_max && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || port == 0)
    return std::nullopt;
  return port;
}

Target guest(std::string_view sandbox, std::string_view port_text) {
  auto const port = port_of(port_text);
  if (!port) return ToNobody{"Invalid sandbox port"};
  if (!is_sandbox_id(sandbox)) return ToNobody{"Invalid sandbox ID"};
  return ToGuest{.sandbox = std::string(sandbox), .port = *port};
}

/// One address for everything: only headers can tell.
Target by_headers(http::Headers const& headers, bool also_the_api) {
  // Clients with one URL for both send the sandbox's headers on calls of the API as well; traffic
  // for a guest never carries an API key.
  if (also_the_api && headers.find("X-API-KEY")) return ToApi{};
  auto const sandbox = headers.find("E2b-Sandbox-Id");
  auto const port = headers.find("E2b-Sandbox-Port");
  if (sandbox && port) return guest(*sandbox, *port);
  if (sandbox || port) return ToNobody{"E2b-Sandbox-Id and E2b-Sandbox-Port must be sent together"};
  auto const token = headers.get("X-Access-Token");
  if (!token.empty()) return ToTokensGuest{std::string(token)};
  return ToApi{};
}

}  // namespace

std::string host_without_port(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(1, host.find(']') - 1));
  return lower(host.substr(0, host.find(':')));
}

Target find_target(http::RequestHead const& head, std::string_view domain) {
  auto const host = host_without_port(head.headers.get("Host"));
  bool const plain = host.empty() || host == "localhost" || is_ip(host);
  if (plain || host.starts_with("sandbox.")) return by_headers(head.headers, plain);
  if (host == domain) return ToApi{};
  // Names of other domains are refused: a page elsewhere could point its own name here and read
  // what it gets.
  if (host.size() <= domain.size() + 1 || !host.ends_with(domain) ||
      host[host.size() - domain.size() - 1] != '.') {
    return ToNobody{"Invalid host"};
  }
  auto const label = std::string_view(host).substr(0, host.size() - domain.size() - 1);
  if (label == "api") return ToApi{};
  auto const dash = label.find('-');
  if (dash == std::string_view::npos || label.contains('.')) return ToNobody{"Invalid host"};
  return guest(label.substr(dash + 1), label.substr(0, dash));
}

}  // namespace proxy
