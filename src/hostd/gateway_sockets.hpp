#pragma once

#include "os/fd.hpp"

#include <string>

/// The descriptors that a gateway is born with: it may open none of them itself.
namespace hostd {

/// Where the slot's rules steer the guest's packets to (slot.nft). They are transparent: each
/// accepted connection keeps the address that the guest dialled as its own name.
struct GatewaySockets {
  os::Fd tcp;           // listens on 127.0.0.1:15001
  os::Fd dns_datagram;  // 127.0.0.1:53, tells each datagram's destination
  os::Fd dns_stream;    // listens on 127.0.0.1:53
};

base::Result<GatewaySockets> open_gateway_sockets(os::FdRef netns);

/// A connection to the broker that the kernel vouches for as `user`'s (SO_PEERCRED). Empty when no
/// broker listens there: the gateway then knows no credentials.
base::Result<os::Fd> connect_broker_as(std::uint32_t user, std::string const& path);

/// The network namespace behind a file; `invalid_argument` when it is none.
base::Result<os::Fd> open_network_namespace(std::string const& path);

}  // namespace hostd
