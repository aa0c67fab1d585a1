#pragma once

#include "hostd/protocol.hpp"

#include <string_view>

namespace hostd {

/// Which of the guard's rules (slot.nft) dropped a frame.
enum class GuardRule : std::uint32_t {
  sender,           // another MAC address than the guest's own
  receiver,         // or to another than the slot's
  protocol,         // neither ARP nor IPv4: IPv6, VLAN tags, anything else
  arp,              // not as exact as it must be, or too often
  source_address,   // another IP address than the assigned one
  ip_header,        // options, fragments
  special_address,  // this host, metadata services, multicast
  connection_rate,  // new connections, more than the gateway is asked for
  network_budget,   // more bytes than the sandbox may send
  nowhere_to_go,    // what nothing takes: a port, a protocol, or refusals that were too many
};
static_assert(static_cast<std::size_t>(GuardRule::nowhere_to_go) + 1 == guard_rules);

/// For metrics: "source_address".
std::string_view name_of(GuardRule rule);

/// From what the kernel lists of the guard's table, with its counts. Pure. Every rule that drops
/// and counts is one of the above; a line that it does not know counts as `nowhere_to_go`.
GuardDrops drops_in(std::string_view listing);

}  // namespace hostd
