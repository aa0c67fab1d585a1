// The `network` object of a create: checked as a whole, remembered as it came.
#include "controlplane/e2b_schema.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

namespace controlplane::e2b {
namespace {

constexpr std::size_t list_max = 256;
constexpr std::string_view all_traffic = "0.0.0.0/0";

struct Network {
  std::optional<std::vector<std::string>> allowOut;
  std::optional<std::vector<std::string>> denyOut;
  std::optional<bool> allowPublicTraffic;
  std::optional<std::string> maskRequestHost;
  json::value egressProxy;
  json::value rules;
};
BOOST_DESCRIBE_STRUCT(Network,
                      (),
                      (allowOut, denyOut, allowPublicTraffic, maskRequestHost, egressProxy, rules))

std::unexpected<base::Error> invalid(std::string why) {
  return base::fail(base::Code::invalid_argument, std::move(why));
}

/// An address, or one with "/bits".
bool is_network(std::string const& text) {
  auto const slash = text.find('/');
  auto const address = text.substr(0, slash);
  std::array<unsigned char, 16> bytes{};
  int most = 0;
  if (::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) most = 32;
  if (most == 0 && ::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) most = 128;
  if (most == 0) return false;
  if (slash == std::string::npos) return address != "0.0.0.0" && address != "::";
  auto const bits = text.substr(slash + 1);
  bool const digits = !bits.empty() && bits.size() <= 3 &&
                      std::ranges::all_of(bits, [](char c) { return c >= '0' && c <= '9'; });
  return digits && std::stoi(bits) <= most;
}

/// "example.com", "*.example.com", "*".
bool is_domain(std::string_view text) {
  if (text == "*") return true;
  if (text.starts_with("*.")) text.remove_prefix(2);
  if (text.empty() || text.size() > 253 || text.starts_with('.') || text.ends_with('.') ||
      text.contains(".."))
    return false;
  auto const fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return std::ranges::all_of(text, fits);
}

base::Result<void> check_lists(Network const& network, bool closed) {
  static std::vector<std::string> const none;
  auto const& allow = network.allowOut ? *network.allowOut : none;
  auto const& deny = network.denyOut ? *network.denyOut : none;
  if (allow.size() > list_max || deny.size() > list_max) {
    return invalid(
        fmt::format("network: at most {} entries in allowOut and denyOut each", list_max));
  }
  for (auto const& one : deny) {
    if (!is_network(one)) return invalid(fmt::format("invalid denied CIDR {}", one.substr(0, 100)));
  }
  bool names = false;
  for (auto const& one : allow) {
    if (is_network(one)) continue;
    if (!is_domain(one))
      return invalid(fmt::format("invalid allowed address or domain {}", one.substr(0, 100)));
    names = true;
  }
  if (names && !closed && std::ranges::find(deny, all_traffic) == deny.end()) {
    return invalid(
        "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
        "to block all other traffic.");
  }
  return {};
}

base::Result<void> check_ingress(Network const& network, bool secure) {
  if (network.allowPublicTraffic && !*network.allowPublicTraffic && !secure) {
    return invalid("network.allowPublicTraffic false needs secure true");
  }
  if (!network.maskRequestHost) return {};
  auto host = *network.maskRequestHost;
  if (auto const port = host.find("${PORT}"); port != std::string::npos)
    host.replace(port, 7, "80");
  auto const fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == ':' || c == '_';
  };
  if (host.empty() || host.size() > 255 || !std::ranges::all_of(host, fits)) {
    return invalid(
        "network.maskRequestHost: expected an ASCII host name with an optional port, such as "
        "\"localhost:${PORT}\"");
  }
  return {};
}

}  // namespace

base::Result<json::value> network_of(NewSandbox const& request, bool secure) {
  json::object kept;
  if (request.allow_internet_access) kept["allowInternetAccess"] = *request.allow_internet_access;
  if (request.network.is_null()) return kept.empty() ? json::value() : json::value(std::move(kept));
  auto network = wire::decode<Network>(request.network, wire::UnknownKeys::ignore);
  if (!network) return base::passing(network, "network");
  if (auto checked = check_lists(*network, !request.allow_internet_access.value_or(true)); !checked)
    return base::passing(checked);
  if (auto checked = check_ingress(*network, secure); !checked) return base::passing(checked);
  if (network->allowOut) kept["allowOut"] = wire::encode(*network->allowOut);
  if (network->denyOut) kept["denyOut"] = wire::encode(*network->denyOut);
  if (network->allowPublicTraffic) kept["allowPublicTraffic"] = *network->allowPublicTraffic;
  if (network->maskRequestHost) kept["maskRequestHost"] = *network->maskRequestHost;
  if (auto const* rules = network->rules.if_object(); rules && !rules->empty())
    kept["rules"] = *rules;  // without their values: take_header_rules()
  return json::value(std::move(kept));
}

}  // namespace controlplane::e2b
