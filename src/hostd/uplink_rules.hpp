#pragma once

#include "os/netlink.hpp"
#include "wire/config.hpp"

#include <string>
#include <vector>

/// The packet rules of `uplink: host`, as text. Pure: made from the configuration and a number, so
/// that `space doctor` can make them again and compare them with what the kernel has.
namespace hostd {

/// What every installation's link on the host is called, with the instance behind it.
inline constexpr char uplink_link_prefix[] = "spup-";
/// The pair's other end, in the uplink's namespace.
inline constexpr char uplink_inner_link[] = "out0";
/// How many installations a host can take: networks of four addresses in 198.51.100.0/24, which
/// nobody's network uses (it is for documentation).
inline constexpr unsigned uplinks_max = 64;

struct UplinkPlan {
  std::string link;   // on the host
  std::string table;  // on the host; the namespace's is always "uplink"
  os::Ipv4 host_end{};
  os::Ipv4 inner_end{};
  std::uint32_t user_min = 0;  // gateways
  std::uint32_t user_max = 0;
  std::vector<std::string> resolvers;
  std::vector<std::string> admitted;
};

/// `invalid_argument` for a private route that is no IPv4 network; IPv6 has no way out here.
base::Result<UplinkPlan> plan_uplink(wire::Config const& config,
                                     std::vector<std::string> const& resolvers,
                                     unsigned number);
/// The number behind a host end's address.
unsigned uplink_number_of(os::Ipv4 const& host_end);
std::string text_of(os::Ipv4 const& address);

/// The refusing rules of the namespace in which gateways live.
std::string uplink_inner_rules(UplinkPlan const& plan);
/// Forwarding and masquerading on the host, for this link only, and the second belt: what the
/// namespace's rules refuse is refused here once more, by rules that no gateway's namespace holds.
std::string uplink_host_rules(UplinkPlan const& plan);
/// Where forwarding was off before us: it is on for our links, and for nothing else.
std::string forwarding_guard_rules();

}  // namespace hostd
