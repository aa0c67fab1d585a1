#pragma once

#include "base/result.hpp"
#include "wire/policy.hpp"

#include <vector>

namespace domain {

/// What the packet rules of a slot must let through to its gateway besides the addresses that the
/// DNS front gives out. An upper bound of what the policy allows, in numbers: the gateway still
/// judges every connection.
struct Network {
  std::uint32_t address = 0;  // host byte order, no bits beyond the length
  std::uint32_t bits = 0;

  friend auto operator<=>(Network const&, Network const&) = default;
};

struct Reach {
  std::vector<Network> networks;  // disjoint, in order
  bool named = false;  // TCP 80 and 443 to any address, where the connection says its name

  friend bool operator==(Reach const&, Reach const&) = default;
};

inline constexpr std::size_t reach_networks_max = 128;

/// Refuses what is no IPv4 network and more networks than a slot's rules take.
base::Result<Reach> reach_of(wire::EffectivePolicy const& policy);
/// What both let through.
Reach common(Reach const& one, Reach const& other);

}  // namespace domain
