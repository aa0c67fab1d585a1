#pragma once

#include "gateway/gateway.hpp"

namespace gateway {

/// What space-hostd hands over when it starts a gateway.
struct Sockets {
  os::Fd control;       // listener: the worker connects, and again after its restart; the newest
                        // connection counts
  os::Fd tcp;           // listener, transparent, in the slot
  os::Fd dns_datagram;  // port 53 in the slot
  os::Fd dns_stream;
  os::Fd renewals;  // packet listener: space-hostd brings new connections to the broker
  os::Fd broker;    // connected to the broker's use.sock; may be absent: no credentials then
};

/// Runs until the control connection has been gone for longer than the policy may age, or
/// cancelled.
asio::awaitable<int> run_gateway(Sockets sockets);

/// Which denials are one and the same, so that repeats within a second are one record with a count:
/// what was asked for, and what decided. Pure.
std::string repeat_key(wire::GatewayDecision const& decision);

/// Gives up every system call that a gateway does not need any more. After this no file can be
/// opened and no program started. `fail` instead of going on when the kernel refuses.
base::Result<void> confine();

}  // namespace gateway
