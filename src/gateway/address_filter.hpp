#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gateway {

/// An IPv4 or IPv6 address in network order; IPv4 as ::ffff:a.b.c.d.
using Address = std::array<std::uint8_t, 16>;

Address address_of_ipv4(std::uint32_t host_order) noexcept;
bool is_ipv4(Address const& address) noexcept;
std::string to_text(Address const& address);

/// Decides which addresses the dialer may connect to, whatever name led there and whatever a policy
/// says. Refuses every special-purpose block of both families (private, loopback, link-local with
/// the metadata services, carrier NAT, documentation, benchmarking, multicast, reserved), v6 forms
/// that carry a v4 address (mapped, compatible, 6to4, Teredo, NAT64) by the v4 inside, the host's
/// own addresses and the control plane's.
class AddressFilter {
 public:
  struct Network {
    Address base;
    unsigned bits;  // of 128
  };

  /// `refused_too`: the host's and the control plane's addresses, refreshed by whoever owns this.
  explicit AddressFilter(std::vector<Network> refused_too = {}, std::vector<Network> admitted = {});

  /// True when the address may be dialled. `admitted` networks are an operator's private routes:
  /// they win.
  bool allows(Address const& address) const noexcept;

 private:
  std::vector<Network> refused_too_;
  std::vector<Network> admitted_;
};

/// "10.0.0.0/8", "fd00::/8"; nothing when it is no network.
bool parse_network(std::string const& text, AddressFilter::Network& out);

}  // namespace gateway
