#include "hostd/slot_network.hpp"

#include "base/fault.hpp"
#include "hostd/nft.hpp"
#include "hostd/slot_rules.hpp"
#include "os/netlink.hpp"
#include "os/netns.hpp"
#include "os/tap.hpp"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr os::Ipv4 host_address{192, 0, 2, 1};
constexpr os::Ipv4 guest_address{192, 0, 2, 2};
constexpr os::MacAddress host_mac{2, 0, 0, 0, 0, 1};
constexpr os::MacAddress guest_mac{2, 0, 0, 0, 0, 2};
constexpr std::uint32_t local_table = 100;

base::Result<void> write_setting(char const* path, std::string_view value) {
  os::Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open a network setting", path);
  if (::write(file.get(), value.data(), value.size()) < 0)
    return base::fail_errno("write a network setting", path);
  return {};
}

/// Before any link exists but the loopback: "default" is what the tap inherits.
base::Result<void> write_settings() {
  struct Setting {
    char const* path;
    std::string_view value;
  };

  static constexpr Setting settings[] = {
      {"/proc/sys/net/ipv4/ip_forward", "0"},
      {"/proc/sys/net/ipv4/conf/all/arp_ignore", "1"},
      {"/proc/sys/net/ipv4/conf/all/arp_announce", "2"},
      // The guard checks sources exactly; the kernel's own check would refuse what TPROXY needs.
      {"/proc/sys/net/ipv4/conf/all/rp_filter", "0"},
      {"/proc/sys/net/ipv4/conf/default/rp_filter", "0"},
      {"/proc/sys/net/ipv4/conf/all/accept_redirects", "0"},
      {"/proc/sys/net/ipv4/conf/default/accept_redirects", "0"},
      {"/proc/sys/net/ipv4/conf/all/send_redirects", "0"},
      {"/proc/sys/net/ipv4/conf/default/send_redirects", "0"},
  };
  for (auto const& setting : settings) {
    auto written = write_setting(setting.path, setting.value);
    if (!written) return written;
  }
  // A kernel without IPv6 has no such file, and needs none.
  for (char const* path : {"/proc/sys/net/ipv6/conf/all/disable_ipv6",
                           "/proc/sys/net/ipv6/conf/default/disable_ipv6"}) {
    if (::access(path, F_OK) != 0) continue;
    auto written = write_setting(path, "1");
    if (!written) return written;
  }
  return {};
}

base::Result<void> configure_links(os::Rtnetlink& netlink, int loopback, int tap) {
  auto step = netlink.set_up(loopback);
  if (step) step = netlink.set_mac(tap, host_mac);
  if (step) step = netlink.add_address(tap, host_address, 30);
  if (step) step = load_rules(slot_rules);
  if (!step) return step;
  if (SPACE_FAULT("hostd.slot.rules_loaded"))
    return base::fail(base::Code::internal, "told to fail");
  step = netlink.set_up(tap);
  if (step) step = netlink.add_permanent_neighbour(tap, guest_address, guest_mac);
  if (step) step = netlink.add_rule(tap_name, 10, local_table);
  if (step) step = netlink.add_local_default(loopback, local_table);
  return step;
}

}  // namespace

base::Result<SlotNetwork> make_slot_network() {
  auto inside = os::InNetns::make();
  if (!inside) return base::passing(inside);
  auto netns = os::InNetns::current();
  if (!netns) return base::passing(netns);
  auto settings = write_settings();
  if (!settings) return base::passing(settings);
  auto tap = os::open_persistent_tap(tap_name);
  if (!tap) return base::passing(tap);
  auto netlink = os::Rtnetlink::open();
  if (!netlink) return base::passing(netlink);
  auto loopback = os::link_index("lo");
  if (!loopback) return base::passing(loopback);
  auto link = os::link_index(tap_name);
  if (!link) return base::passing(link);
  auto configured = configure_links(*netlink, *loopback, *link);
  if (!configured) return base::passing(configured);
  auto generation = rules_generation();
  if (!generation) return base::passing(generation);
  return SlotNetwork{
      .netns = std::move(*netns), .tap = std::move(*tap), .rules_generation = *generation};
}

base::Result<os::Fd> reopen_tap(os::FdRef netns) {
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return os::open_persistent_tap(tap_name);
}

base::Result<void> limit_network(os::FdRef netns, std::uint64_t bytes_per_s) {
  std::string rules =
      "flush chain netdev guard budget_in\n"
      "flush chain inet steer budget_out\n";
  if (bytes_per_s > 0)
    rules += fmt::format(
        "add rule netdev guard budget_in limit rate over {0} bytes/second burst {1} bytes counter "
        "drop\n"
        "add rule inet steer budget_out limit rate over {0} bytes/second burst {1} bytes counter "
        "drop\n",
        bytes_per_s,
        std::max<std::uint64_t>(bytes_per_s, 65536));
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return load_rules(rules);
}

base::Result<void> let_through(os::FdRef netns, Passage const& passage) {
  std::string rules =
      "flush set netdev guard dst_policy\n"
      "flush set netdev guard ports_policy\n";
  for (auto const& [address, bits] : std::span(passage.networks).first(passage.count))
    rules += fmt::format("add element netdev guard dst_policy {{ {}.{}.{}.{}/{} }}\n",
                         address >> 24,
                         address >> 16 & 255,
                         address >> 8 & 255,
                         address & 255,
                         bits);
  if (passage.named != 0) rules += "add element netdev guard ports_policy { 80, 443 }\n";
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return load_rules(rules);
}

base::Result<void> close_slot(os::FdRef netns) {
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return load_rules(std::string("flush ruleset\n") + slot_rules);
}

base::Result<os::Fd> dial_guest(os::FdRef netns, std::uint16_t port) {
  os::Fd socket;
  {
    auto inside = os::InNetns::enter(netns);
    if (!inside) return base::passing(inside);
    socket = os::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  if (!socket) return base::fail_errno("make a socket in the slot");
  int const yes = 1;
  int const mark = host_mark;
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_MARK, &mark, sizeof mark) != 0)
    return base::fail_errno("mark a socket");
  if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0)
    return base::fail_errno("set no delay");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  static_assert(sizeof address.sin_addr == sizeof guest_address);
  address.sin_addr = std::bit_cast<in_addr>(guest_address);
  // SAFETY: how connect() wants it.
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    return base::fail_errno("begin to connect to the guest");
  }
  return socket;
}

}  // namespace hostd
