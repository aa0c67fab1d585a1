#pragma once

#include "os/fd.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace os {

using Ipv4 = std::array<std::uint8_t, 4>;
using MacAddress = std::array<std::uint8_t, 6>;

/// Changes links, addresses, neighbours, rules and routes of the network namespace that the thread
/// is in when open() is called. Each call waits for the kernel's answer. Failures are `internal`
/// with the kernel's reason.
class Rtnetlink {
 public:
  static base::Result<Rtnetlink> open();

  base::Result<void> set_mac(int link, MacAddress const& mac);
  base::Result<void> set_up(int link);
  base::Result<void> add_address(int link, Ipv4 const& address, int prefix_length);
  /// An entry that never times out and that no ARP packet changes.
  base::Result<void> add_permanent_neighbour(int link, Ipv4 const& address, MacAddress const& mac);
  /// What comes in by the link named `in` is looked up in `table` only.
  base::Result<void> add_rule(std::string_view in, std::uint32_t priority, std::uint32_t table);
  /// `table`: every destination is local, by way of `link` (the loopback).
  base::Result<void> add_local_default(int link, std::uint32_t table);
  /// A pair of links, one here and one in another namespace; either end's end is the pair's.
  base::Result<void> add_veth(std::string_view name, std::string_view peer, FdRef peer_netns);
  base::Result<void> remove_link(int link);
  base::Result<void> add_default_route(Ipv4 const& gateway);

 private:
  class Message;

  explicit Rtnetlink(Fd socket) : socket_(std::move(socket)) {}

  base::Result<void> call(Message& message, std::string_view step);

  Fd socket_;
  std::uint32_t sequence_ = 0;
};

/// Index of a link in the thread's network namespace.
base::Result<int> link_index(char const* name);

}  // namespace os
