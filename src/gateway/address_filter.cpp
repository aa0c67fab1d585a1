#include "gateway/address_filter.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace gateway {
namespace {

bool contains(AddressFilter::Network const& network, Address const& address) noexcept {
  unsigned const whole = network.bits / 8;
  unsigned const rest = network.bits % 8;
  if (std::memcmp(network.base.data(), address.data(), whole) != 0) return false;
  if (rest == 0) return true;
  auto const mask = static_cast<std::uint8_t>(0xff << (8 - rest));
  return ((network.base.at(whole) ^ address.at(whole)) & mask) == 0;
}

// IANA's special-purpose registries for IPv4 and IPv6, and multicast. Globally reachable exceptions
// inside these blocks (192.0.0.9, 2001:4:112::/48 and the like) are anycast services nobody needs
// from a sandbox.
constexpr char const* special_purpose[] = {
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    // The metadata and platform addresses of clouds that lie in public space.
    "168.63.129.16/32",
    "100.100.100.200/32",
    "::/128",
    "::1/128",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001:db8::/32",
    "2620:4f:8000::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
};

std::vector<AddressFilter::Network> const& special_networks() {
  static std::vector<AddressFilter::Network> const networks = [] {
    std::vector<AddressFilter::Network> out;
    for (auto const* text : special_purpose) {
      AddressFilter::Network network{};
      if (parse_network(text, network)) out.push_back(network);
    }
    return out;
  }();
  return networks;
}

/// The IPv4 address that a v6 one would really lead to, as its mapped form; the address itself
/// otherwise.
Address unwrap(Address const& address) noexcept {
  auto const embedded = [&](std::size_t at, std::uint8_t invert) {
    Address out{};
    out[10] = out[11] = 0xff;
    for (std::size_t i = 0; i < 4; ++i)
      out.at(12 + i) = static_cast<std::uint8_t>(address.at(at + i) ^ invert);
    return out;
  };
  if (is_ipv4(address)) return address;
  constexpr std::array<std::uint8_t, 12> nat64 = {0, 0x64, 0xff, 0x9b};
  if (std::memcmp(address.data(), nat64.data(), nat64.size()) == 0) return embedded(12, 0);
  if (address[0] == 0x20 && address[1] == 0x02) return embedded(2, 0);                     // 6to4
  if (std::memcmp(address.data(), "\x20\x01\x00\x00", 4) == 0) return embedded(12, 0xff);  // Teredo
  bool const upper_zero =
      std::all_of(address.begin(), address.begin() + 12, [](auto b) { return b == 0; });
  bool const loopback_or_none =
      upper_zero && address[12] == 0 && address[13] == 0 && address[14] == 0 && address[15] <= 1;
  if (upper_zero && !loopback_or_none) return embedded(12, 0);  // v4-compatible
  return address;
}

}  // namespace

Address address_of_ipv4(std::uint32_t host_order) noexcept {
  Address out{};
  out[10] = out[11] = 0xff;
  for (std::size_t i = 0; i < 4; ++i)
    out.at(12 + i) = static_cast<std::uint8_t>(host_order >> (8 * (3 - i)));
  return out;
}

bool is_ipv4(Address const& address) noexcept {
  return std::all_of(address.begin(), address.begin() + 10, [](auto b) { return b == 0; }) &&
         address[10] == 0xff && address[11] == 0xff;
}

std::string to_text(Address const& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4(address)) {
    inet_ntop(AF_INET, address.data() + 12, text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, address.data(), text.data(), text.size());
  }
  return text.data();
}

bool parse_network(std::string const& text, AddressFilter::Network& out) {
  auto const slash = text.find('/');
  auto const host = text.substr(0, slash);
  bool const v6 = host.find(':') != std::string::npos;
  unsigned const bits_max = v6 ? 128 : 32;
  unsigned bits = bits_max;
  if (slash != std::string::npos) {
    auto const* const end = text.data() + text.size();
    auto const [stop, error] = std::from_chars(text.data() + slash + 1, end, bits);
    if (error != std::errc() || stop != end || bits > bits_max) return false;
  }
  Address base{};
  if (v6) {
    if (inet_pton(AF_INET6, host.c_str(), base.data()) != 1) return false;
  } else {
    in_addr v4{};
    if (inet_pton(AF_INET, host.c_str(), &v4) != 1) return false;
    base = address_of_ipv4(ntohl(v4.s_addr));
    bits += 96;
  }
  out = {base, bits};
  return true;
}

AddressFilter::AddressFilter(std::vector<Network> refused_too, std::vector<Network> admitted)
    : refused_too_(std::move(refused_too)), admitted_(std::move(admitted)) {}

bool AddressFilter::allows(Address const& address) const noexcept {
  auto const in = [](std::vector<Network> const& list, Address const& one) {
    return std::ranges::any_of(list,
                               [&](Network const& network) { return contains(network, one); });
  };
  auto const real = unwrap(address);
  if (in(admitted_, real)) return true;
  // A wrapped address is judged twice: as what it is and as what it leads to.
  for (auto const& one : {address, real})
    if (in(special_networks(), one) || in(refused_too_, one)) return false;
  return true;
}

}  // namespace gateway
