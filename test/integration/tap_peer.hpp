#pragma once

#include "os/fd.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace test {

using Bytes = std::vector<std::uint8_t>;
using Mac = std::array<std::uint8_t, 6>;
using Address = std::array<std::uint8_t, 4>;

inline constexpr Mac gateway_mac{2, 0, 0, 0, 0, 1};
inline constexpr Mac guest_mac{2, 0, 0, 0, 0, 2};
inline constexpr Address gateway{192, 0, 2, 1};
inline constexpr Address guest{192, 0, 2, 2};

struct Ip {
  Address from = guest;
  Address to = gateway;
  std::uint8_t protocol = 1;
  std::uint16_t fragment = 0;  // flags and offset as on the wire
  std::uint8_t ttl = 64;
  Bytes options{};  // a multiple of four
};

/// Without padding, as virtio-net sends it.
Bytes ethernet(Mac const& to, Mac const& from, std::uint16_t type, Bytes const& payload);
Bytes ip(Ip const& head, Bytes payload);
Bytes icmp(std::uint8_t type, std::uint16_t sequence);
Bytes udp(std::uint16_t from, std::uint16_t to, Bytes const& payload);
/// `flags`: 2 SYN, 18 SYN+ACK, 16 ACK.
Bytes tcp(Address const& source,
          Address const& destination,
          std::uint16_t from,
          std::uint16_t to,
          std::uint8_t flags,
          std::uint32_t sequence,
          std::uint32_t acknowledged);
Bytes arp(std::uint16_t operation,
          Mac const& sender,
          Address const& sender_address,
          Address const& target);

/// An IPv4 frame that came out of the tap.
struct Seen {
  std::uint16_t type = 0;  // ethertype
  Ip ip;
  Bytes payload;  // behind the IP header, or behind the ethernet header when it is no IPv4
};

/// Plays the guest at the tap's descriptor: whatever a VMM that was taken over could send.
class TapPeer {
 public:
  explicit TapPeer(os::Fd tap) : tap_(std::move(tap)) {}

  void send(Bytes const& frame);
  /// An ordinary IPv4 packet from the guest's own addresses.
  void send_ip(Ip const& head, Bytes payload);
  /// The next frame that fits, skipping others.
  std::optional<Seen> receive(std::function<bool(Seen const&)> const& wanted,
                              std::chrono::milliseconds limit = std::chrono::seconds(2));
  /// Everything that has come so far.
  std::vector<Seen> drain();

 private:
  std::optional<Seen> next(std::chrono::milliseconds limit);
  os::Fd tap_;
};

}  // namespace test
