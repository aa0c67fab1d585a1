#include "integration/tap_peer.hpp"

#include <cerrno>
#include <stdexcept>

#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

constexpr std::size_t virtio_header = 10;  // the tap's default

void put16(Bytes& out, std::uint32_t value) {
  out.push_back(static_cast<std::uint8_t>(value >> 8U));
  out.push_back(static_cast<std::uint8_t>(value));
}

void put32(Bytes& out, std::uint32_t value) {
  put16(out, value >> 16U);
  put16(out, value & 0xFFFFU);
}

template <class T> void put(Bytes& out, T const& part) {
  out.insert(out.end(), part.begin(), part.end());
}

void set16(Bytes& out, std::size_t at, std::uint16_t value) {
  out[at] = static_cast<std::uint8_t>(value >> 8U);
  out[at + 1] = static_cast<std::uint8_t>(value);
}

std::uint16_t get16(Bytes const& in, std::size_t at) {
  return static_cast<std::uint16_t>(in[at] << 8U | in[at + 1]);
}

std::uint16_t checksum(Bytes const& bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += i % 2 == 0 ? std::uint32_t{bytes[i]} << 8U : bytes[i];
  while (sum >> 16U)
    sum = (sum & 0xFFFFU) + (sum >> 16U);
  return static_cast<std::uint16_t>(~sum);
}

Seen parse(Bytes const& frame) {
  Seen seen;
  if (frame.size() < 14) return seen;
  seen.type = get16(frame, 12);
  seen.payload.assign(frame.begin() + 14, frame.end());
  if (seen.type != 0x0800 || seen.payload.size() < 20) return seen;
  auto const length = static_cast<std::size_t>(seen.payload[0] & 15U) * 4;
  auto const total = std::min<std::size_t>(get16(seen.payload, 2), seen.payload.size());
  seen.ip.protocol = seen.payload[9];
  std::copy_n(seen.payload.begin() + 12, 4, seen.ip.from.begin());
  std::copy_n(seen.payload.begin() + 16, 4, seen.ip.to.begin());
  if (length <= total) {
    seen.payload = Bytes(seen.payload.begin() + static_cast<std::ptrdiff_t>(length),
                         seen.payload.begin() + static_cast<std::ptrdiff_t>(total));
  }
  return seen;
}

}  // namespace

Bytes ethernet(Mac const& to, Mac const& from, std::uint16_t type, Bytes const& payload) {
  Bytes out;
  put(out, to);
  put(out, from);
  put16(out, type);
  put(out, payload);
  return out;
}

Bytes ip(Ip const& head, Bytes payload) {
  auto const length = 20 + head.options.size();
  Bytes out;
  out.push_back(static_cast<std::uint8_t>(0x40U | length / 4));
  out.push_back(0);
  put16(out, static_cast<std::uint32_t>(length + payload.size()));
  put16(out, 7);
  put16(out, head.fragment);
  out.push_back(head.ttl);
  out.push_back(head.protocol);
  put16(out, 0);
  put(out, head.from);
  put(out, head.to);
  put(out, head.options);
  set16(out, 10, checksum(out));
  put(out, payload);
  return out;
}

Bytes icmp(std::uint8_t type, std::uint16_t sequence) {
  Bytes out{type, 0, 0, 0, 0, 42};
  put16(out, sequence);
  set16(out, 2, checksum(out));
  return out;
}

Bytes udp(std::uint16_t from, std::uint16_t to, Bytes const& payload) {
  Bytes out;
  put16(out, from);
  put16(out, to);
  put16(out, static_cast<std::uint32_t>(8 + payload.size()));
  put16(out, 0);  // no checksum: allowed for IPv4
  put(out, payload);
  return out;
}

Bytes tcp(Address const& source,
          Address const& destination,
          std::uint16_t from,
          std::uint16_t to,
          std::uint8_t flags,
          std::uint32_t sequence,
          std::uint32_t acknowledged) {
  Bytes out;
  put16(out, from);
  put16(out, to);
  put32(out, sequence);
  put32(out, acknowledged);
  out.push_back(0x50);
  out.push_back(flags);
  put16(out, 64'240);
  put32(out, 0);
  Bytes pseudo;
  put(pseudo, source);
  put(pseudo, destination);
  put16(pseudo, 6);
  put16(pseudo, static_cast<std::uint32_t>(out.size()));
  put(pseudo, out);
  set16(out, 16, checksum(pseudo));
  return out;
}

Bytes arp(std::uint16_t operation,
          Mac const& sender,
          Address const& sender_address,
          Address const& target) {
  Bytes out;
  put16(out, 1);
  put16(out, 0x0800);
  out.push_back(6);
  out.push_back(4);
  put16(out, operation);
  put(out, sender);
  put(out, sender_address);
  put(out, Mac{});
  put(out, target);
  return out;
}

void TapPeer::send(Bytes const& frame) {
  Bytes out(virtio_header);
  put(out, frame);
  if (::write(tap_.get(), out.data(), out.size()) != static_cast<ssize_t>(out.size()))
    throw std::runtime_error("the tap takes no frame");
}

void TapPeer::send_ip(Ip const& head, Bytes payload) {
  send(ethernet(gateway_mac, guest_mac, 0x0800, ip(head, std::move(payload))));
}

std::optional<Seen> TapPeer::next(std::chrono::milliseconds limit) {
  pollfd waited{.fd = tap_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waited, 1, static_cast<int>(limit.count())) <= 0) return std::nullopt;
  Bytes frame(70'000);
  auto const got = ::read(tap_.get(), frame.data(), frame.size());
  if (got < static_cast<ssize_t>(virtio_header)) return std::nullopt;
  return parse(Bytes(frame.begin() + virtio_header, frame.begin() + got));
}

std::optional<Seen> TapPeer::receive(std::function<bool(Seen const&)> const& wanted,
                                     std::chrono::milliseconds limit) {
  auto const end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    auto seen = next(std::max(left, std::chrono::milliseconds(0)));
    if (!seen || wanted(*seen)) return seen;
  }
}

std::vector<Seen> TapPeer::drain() {
  std::vector<Seen> all;
  while (auto seen = next(std::chrono::milliseconds(0)))
    all.push_back(std::move(*seen));
  return all;
}

}  // namespace test
