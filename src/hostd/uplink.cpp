#include "hostd/uplink.hpp"

#include "base/fault.hpp"
#include "hostd/nft.hpp"
#include "hostd/uplink_rules.hpp"
#include "os/host_resolvers.hpp"
#include "os/netlink.hpp"
#include "os/netns.hpp"
#include "os/text_file.hpp"

#include <net/if.h>
#include <netinet/in.h>
#include <sys/file.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>

#include <fcntl.h>
#include <ifaddrs.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr char forwarding_switch[] = "/proc/sys/net/ipv4/ip_forward";

/// Two installations that start at the same moment shall not choose the same addresses.
base::Result<os::Fd> lock_uplinks() {
  os::Fd lock(::open("/run/space-uplinks.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return base::fail_errno("open the lock of uplinks");
  if (::flock(lock.get(), LOCK_EX) != 0) return base::fail_errno("take the lock of uplinks");
  return lock;
}

base::Result<void> write_setting(std::string const& path, std::string_view value) {
  os::Fd const file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open a network setting", path);
  if (::write(file.get(), value.data(), value.size()) < 0)
    return base::fail_errno("write a network setting", path);
  return {};
}

/// Nothing where the kernel has no IPv6.
base::Result<void> disable_ipv6(std::string const& link) {
  auto const path = "/proc/sys/net/ipv6/conf/" + link + "/disable_ipv6";
  if (::access(path.c_str(), F_OK) != 0) return {};
  return write_setting(path, "1");
}

struct HostAddress {
  std::string link;
  os::Ipv4 address{};
};

/// IPv4 addresses of the namespace that the thread is in.
std::vector<HostAddress> addresses_here() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const owner(list, &::freeifaddrs);
  std::vector<HostAddress> found;
  for (auto const* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    HostAddress entry;
    entry.link = one->ifa_name;
    sockaddr_in address{};
    std::memcpy(&address, one->ifa_addr, sizeof address);
    std::memcpy(entry.address.data(), &address.sin_addr, entry.address.size());
    found.push_back(std::move(entry));
  }
  return found;
}

bool is_ours(os::Ipv4 const& address) {
  return address[0] == 198 && address[1] == 51 && address[2] == 100;
}

/// The number of the link that stands already, or else the first free one from a place that the
/// name decides, so that a restart mostly finds the same.
base::Result<unsigned> choose_number(std::string const& link) {
  std::set<unsigned> taken;
  for (auto const& [name, address] : addresses_here()) {
    if (!is_ours(address)) continue;
    if (name == link) return uplink_number_of(address);
    taken.insert(uplink_number_of(address));
  }
  auto const first = static_cast<unsigned>(std::hash<std::string>()(link) % uplinks_max);
  for (unsigned i = 0; i < uplinks_max; ++i) {
    auto const number = (first + i) % uplinks_max;
    if (!taken.contains(number)) return number;
  }
  return base::fail(base::Code::exhausted, "198.51.100.0/24 has no place for an uplink");
}

bool any_uplink_stands() {
  auto* const list = ::if_nameindex();
  if (list == nullptr) return true;
  std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> const owner(
      list, &::if_freenameindex);
  for (auto* one = list; one->if_index != 0; ++one)
    if (std::string_view(one->if_name).starts_with(uplink_link_prefix)) return true;
  return false;
}

base::Result<void> remove_host_link(std::string const& name) {
  auto const index = ::if_nametoindex(name.c_str());
  if (index == 0) return {};
  auto netlink = os::Rtnetlink::open();
  if (!netlink) return base::passing(netlink);
  return netlink->remove_link(static_cast<int>(index));
}

/// Pinned, with both ends of its pair.
base::Result<os::Fd> find_uplink(std::string const& path, std::string const& link) {
  auto netns = os::open_pinned_netns(path);
  if (!netns) return netns;
  bool whole = ::if_nametoindex(link.c_str()) != 0;
  if (whole) {
    auto inside = os::InNetns::enter(*netns);
    if (!inside) return base::passing(inside);
    whole = ::if_nametoindex(uplink_inner_link) != 0;
  }
  if (!whole) return base::fail(base::Code::not_found, "the uplink's pair of links is gone");
  return netns;
}

base::Result<os::Fd> make_namespace(UplinkPlan const& plan) {
  auto inside = os::InNetns::make();
  if (!inside) return base::passing(inside);
  auto netns = os::InNetns::current();
  if (!netns) return netns;
  auto step = write_setting(forwarding_switch, "0");
  for (char const* which : {"all", "default"})
    if (step) step = disable_ipv6(which);
  if (step) step = load_rules(uplink_inner_rules(plan));
  if (!step) return base::passing(step);
  auto netlink = os::Rtnetlink::open();
  if (!netlink) return base::passing(netlink);
  auto loopback = os::link_index("lo");
  if (!loopback) return base::passing(loopback);
  step = netlink->set_up(*loopback);
  if (!step) return base::passing(step);
  return netns;
}

base::Result<void> set_end(char const* link,
                           os::Ipv4 const& address,
                           os::Ipv4 const* default_route) {
  auto netlink = os::Rtnetlink::open();
  if (!netlink) return base::passing(netlink);
  auto index = os::link_index(link);
  if (!index) return base::passing(index);
  auto step = disable_ipv6(link);
  if (step) step = netlink->add_address(*index, address, 30);
  if (step) step = netlink->set_up(*index);
  if (step && default_route != nullptr) step = netlink->add_default_route(*default_route);
  return step;
}

/// Rules first, links after: no packet ever passes without them.
base::Result<os::Fd> make_uplink(UplinkPlan const& plan, std::string const& path) {
  auto cleared = remove_host_link(plan.link);
  if (cleared) cleared = os::unpin_netns(path);
  if (!cleared) return base::passing(cleared);
  auto netns = make_namespace(plan);
  if (!netns) return netns;
  auto step = load_rules(uplink_host_rules(plan));
  if (!step) return base::passing(step);
  auto netlink = os::Rtnetlink::open();
  if (!netlink) return base::passing(netlink);
  step = netlink->add_veth(plan.link, uplink_inner_link, *netns);
  if (step && SPACE_FAULT("hostd.uplink.linked"))
    step = base::fail(base::Code::internal, "told to fail");
  if (step) step = set_end(plan.link.c_str(), plan.host_end, nullptr);
  if (step) {
    auto inside = os::InNetns::enter(*netns);
    if (!inside) return base::passing(inside);
    step = set_end(uplink_inner_link, plan.inner_end, &plan.host_end);
  }
  // The commit point.
  if (step) step = os::pin_netns(*netns, path);
  if (!step) return base::passing(step);
  return netns;
}

base::Result<void> refresh_rules(UplinkPlan const& plan, os::FdRef netns) {
  auto step = load_rules(uplink_host_rules(plan));
  if (!step) return step;
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return load_rules(uplink_inner_rules(plan));
}

base::Result<void> ensure_forwarding() {
  auto const is = os::read_text(forwarding_switch);
  if (is && is->starts_with('1')) return {};
  // It was off, so nobody here counts on being forwarded: let it stay so for everybody else.
  auto step = load_rules(forwarding_guard_rules());
  if (step) step = write_setting(forwarding_switch, "1");
  return step;
}

/// Only where we turned it on, which the guard's table says, and when the last of us goes.
base::Result<void> end_forwarding() {
  if (any_uplink_stands() || !load_rules("list table inet space_guard\n")) return {};
  auto step = write_setting(forwarding_switch, "0");
  if (step) step = load_rules("delete table inet space_guard\n");
  return step;
}

}  // namespace

std::string uplink_path(wire::Config const& config) {
  return config.run_dir + "/hostd/netns/uplink";
}

base::Result<os::Fd> ensure_uplink(wire::Config const& config) {
  auto lock = lock_uplinks();
  if (!lock) return base::passing(lock);
  auto number = choose_number(uplink_link_prefix + config.instance);
  if (!number) return base::passing(number);
  auto plan = plan_uplink(
      config, config.resolvers.empty() ? os::host_resolvers() : config.resolvers, *number);
  if (!plan) return base::passing(plan);
  auto const path = uplink_path(config);
  auto netns = find_uplink(path, plan->link);
  if (netns) {
    auto refreshed = refresh_rules(*plan, *netns);
    if (!refreshed) return base::passing(refreshed);
  } else {
    netns = make_uplink(*plan, path);
    if (!netns) return netns;
  }
  if (SPACE_FAULT("hostd.uplink.pinned")) return base::fail(base::Code::internal, "told to fail");
  auto forwarding = ensure_forwarding();
  if (!forwarding) return base::passing(forwarding, "turn forwarding on");
  return netns;
}

std::optional<unsigned> standing_uplink(wire::Config const& config) {
  auto const link = uplink_link_prefix + config.instance;
  for (auto const& [name, address] : addresses_here())
    if (name == link && is_ours(address)) return uplink_number_of(address);
  return std::nullopt;
}

base::Result<void> remove_uplink(wire::Config const& config) {
  auto lock = lock_uplinks();
  if (!lock) return base::passing(lock);
  auto step = remove_host_link(uplink_link_prefix + config.instance);
  if (step) step = os::unpin_netns(uplink_path(config));
  // Two commands, so that a table that is not there is no error.
  if (step)
    step = load_rules(
        fmt::format("add table inet space_{0}\ndelete table inet space_{0}\n", config.instance));
  if (step) step = end_forwarding();
  return step;
}

}  // namespace hostd
