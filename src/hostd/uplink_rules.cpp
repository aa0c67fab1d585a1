#include "hostd/uplink_rules.hpp"

#include <arpa/inet.h>

#include <charconv>

namespace hostd {
namespace {

// Special-purpose registry of IANA, multicast, and the clouds' metadata addresses in public space.
// Written down a second time on purpose: the gateway's own list (gateway/address_filter.cpp) is
// what this one covers for.
constexpr std::string_view private_networks =
    "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, "
    "192.0.0.0/24, 192.0.2.0/24, 192.31.196.0/24, 192.52.193.0/24, 192.88.99.0/24, "
    "192.168.0.0/16, 192.175.48.0/24, 198.18.0.0/15, 198.51.100.0/24, 203.0.113.0/24, "
    "224.0.0.0/4, 240.0.0.0/4, 168.63.129.16";

/// The network with its host bits cleared, as nft wants it; "" when it is none.
std::string network_text(std::string_view text) {
  auto const slash = text.find('/');
  unsigned bits = 32;
  if (slash != std::string_view::npos) {
    auto const* const end = text.data() + text.size();
    auto const [stop, error] = std::from_chars(text.data() + slash + 1, end, bits);
    if (error != std::errc() || stop != end || bits > 32) return {};
  }
  in_addr address{};
  if (::inet_pton(AF_INET, std::string(text.substr(0, slash)).c_str(), &address) != 1) return {};
  auto const mask = bits == 0 ? 0U : ~0U << (32 - bits);
  address.s_addr = htonl(ntohl(address.s_addr) & mask);
  os::Ipv4 bytes{};
  std::memcpy(bytes.data(), &address, bytes.size());
  return fmt::format("{}/{}", text_of(bytes), bits);
}

std::string set_of(std::string_view name, std::string_view elements) {
  return fmt::format(
      "  set {} {{\n    type ipv4_addr\n    flags interval\n    auto-merge\n{}  }}\n",
      name,
      elements.empty() ? std::string() : fmt::format("    elements = {{ {} }}\n", elements));
}

std::string sets_of(UplinkPlan const& plan) {
  return set_of("private", private_networks) +
         set_of("admitted", fmt::format("{}", fmt::join(plan.admitted, ", "))) +
         set_of("resolvers", fmt::format("{}", fmt::join(plan.resolvers, ", ")));
}

/// One transaction: the old table is there until the new one is.
std::string replacing(std::string_view table, std::string_view content) {
  return fmt::format(
      "add table inet {0}\ndelete table inet {0}\ntable inet {0} {{\n{1}}}\n", table, content);
}

}  // namespace

std::string text_of(os::Ipv4 const& address) {
  return fmt::format("{}.{}.{}.{}", address[0], address[1], address[2], address[3]);
}

unsigned uplink_number_of(os::Ipv4 const& host_end) {
  return host_end[3] / 4;
}

base::Result<UplinkPlan> plan_uplink(wire::Config const& config,
                                     std::vector<std::string> const& resolvers,
                                     unsigned number) {
  UplinkPlan plan;
  plan.link = uplink_link_prefix + config.instance;
  plan.table = "space_" + config.instance;
  auto const first = static_cast<std::uint8_t>(4 * (number % uplinks_max));
  plan.host_end = {198, 51, 100, static_cast<std::uint8_t>(first + 1)};
  plan.inner_end = {198, 51, 100, static_cast<std::uint8_t>(first + 2)};
  plan.user_min = config.slot_uid_base + config.slots_max;
  plan.user_max = plan.user_min + config.slots_max - 1;
  for (auto const& one : resolvers) {
    if (one.find(':') != std::string::npos) continue;
    auto network = network_text(one);
    if (!network.ends_with("/32"))
      return base::fail(base::Code::invalid_argument, "resolvers: not an IPv4 address", one);
    plan.resolvers.push_back(network.substr(0, network.size() - 3));
  }
  for (auto const& route : config.private_routes) {
    if (route.find(':') != std::string::npos) continue;
    auto network = network_text(route);
    if (network.empty())
      return base::fail(base::Code::invalid_argument, "private_routes: not an IPv4 network", route);
    plan.admitted.push_back(std::move(network));
  }
  return plan;
}

std::string uplink_inner_rules(UplinkPlan const& plan) {
  auto const gateways = fmt::format("meta skuid {}-{}", plan.user_min, plan.user_max);
  // What is refused here answers at once, so that a gateway need not wait; the answers travel by
  // the loopback, which carries nothing else.
  return replacing("uplink",
                   sets_of(plan) + fmt::format(R"(  chain output {{
    type filter hook output priority filter; policy drop;
    oif "lo" accept
    meta nfproto != ipv4 counter drop
    ct state established,related counter accept
    ip daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 {0} counter accept
    ip daddr @admitted meta l4proto tcp {0} counter accept
    ip daddr @private meta l4proto tcp counter reject with tcp reset
    ip daddr @private counter reject with icmp type admin-prohibited
    meta l4proto tcp {0} counter accept
    counter reject with icmp type admin-prohibited
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iif "lo" tcp flags & rst == rst counter accept
    iif "lo" meta l4proto icmp counter accept
    iif "lo" counter drop
    ct state established,related counter accept
    counter drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    counter drop
  }}
)",
                                               gateways));
}

std::string uplink_host_rules(UplinkPlan const& plan) {
  // The host's own addresses are refused before any other program's address translation could
  // turn them into a service behind it; the kernel knows which they are at each moment.
  return replacing(plan.table,
                   sets_of(plan) + fmt::format(R"(  chain arriving {{
    type filter hook prerouting priority raw; policy accept;
    iifname != "{0}" accept
    meta nfproto != ipv4 counter drop
    ip saddr != {1} counter drop
    ip daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 counter accept
    fib daddr type != unicast counter drop
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname != "{0}" accept
    ip daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 counter accept
    counter drop
  }}
  chain outward {{
    oifname "{2}*" counter drop
    ip daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 counter accept
    ip daddr @admitted meta l4proto tcp counter accept
    ip daddr @private counter drop
    meta l4proto tcp counter accept
    counter drop
  }}
  chain inward {{
    ct state established,related counter accept
    counter drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname "{0}" jump outward
    oifname "{0}" jump inward
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {1} oifname != "{0}" counter masquerade
  }}
)",
                                               plan.link,
                                               text_of(plan.inner_end),
                                               uplink_link_prefix));
}

std::string forwarding_guard_rules() {
  return replacing("space_guard",
                   fmt::format(R"(  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname != "{0}*" oifname != "{0}*" counter drop
  }}
)",
                               uplink_link_prefix));
}

}  // namespace hostd
