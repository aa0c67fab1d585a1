#pragma once

#include "base/result.hpp"

#include <array>
#include <cstdint>

namespace agent {

/// Ends the machine's TCP connections to the world, with a reset: who waits for
/// an answer gets an error at once instead of waiting for one that never comes. Listening
/// sockets, connections within the machine and those of the host (which we are asked on) stay. How
/// many; the kernel needs tcp_diag.
base::Result<std::size_t> end_outward_connections();

/// 16 bytes of which IPv4 uses the first four, as sock_diag tells addresses.
using PeerAddress = std::array<std::uint8_t, 16>;

/// Neither within the machine nor the host.
bool is_outward(int family, PeerAddress const& own, PeerAddress const& peer) noexcept;

}  // namespace agent
