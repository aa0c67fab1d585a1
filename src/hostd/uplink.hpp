#pragma once

#include "os/fd.hpp"
#include "wire/config.hpp"

#include <optional>

/// `uplink: host`: a network namespace for the gateways, a pair of links to the host's, and rules
/// on both sides (uplink_rules.hpp). One per installation; several stand side by side.
namespace hostd {

/// The file to which the namespace is pinned.
std::string uplink_path(wire::Config const& config);

/// Makes it, or finds it and gives it the rules of this configuration again; live connections stay.
/// Must be called in the host's network namespace. What a killed predecessor left is taken over or
/// cleared. Turns forwarding on where it was off, and then for our links only.
base::Result<os::Fd> ensure_uplink(wire::Config const& config);

/// The number of addresses of the link that stands on this host; nothing when there is none.
std::optional<unsigned> standing_uplink(wire::Config const& config);

/// Namespace, links, rules and forwarding; succeeds when nothing is there.
base::Result<void> remove_uplink(wire::Config const& config);

}  // namespace hostd
