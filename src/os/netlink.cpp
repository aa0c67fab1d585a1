#include "os/netlink.hpp"

#include "base/assert.hpp"

#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>

#include <unistd.h>

namespace os {

/// One request with its attributes. All of ours fit in 256 bytes.
class Rtnetlink::Message {
 public:
  Message(std::uint16_t type, std::uint16_t flags) {
    header()->nlmsg_len = NLMSG_HDRLEN;
    header()->nlmsg_type = type;
    header()->nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
  }

  template <class T> void body(T const& value) { append(&value, sizeof value); }

  void attribute(std::uint16_t type, void const* data, std::size_t size) {
    rtattr head{.rta_len = static_cast<unsigned short>(RTA_LENGTH(size)), .rta_type = type};
    append(&head, sizeof head);
    append(data, size);
  }

  void name(std::uint16_t type, std::string_view text) {
    std::array<char, IFNAMSIZ> name{};
    text.copy(name.data(), name.size() - 1);
    attribute(type, name.data(), std::min(text.size(), name.size() - 1) + 1);
  }

  /// What is written until end() becomes the attribute's content.
  std::uint32_t begin(std::uint16_t type) {
    auto const at = header()->nlmsg_len;
    attribute(type, nullptr, 0);
    return at;
  }

  void end(std::uint32_t at) {
    auto const size = static_cast<unsigned short>(header()->nlmsg_len - at);
    std::memcpy(bytes_.data() + at, &size, sizeof size);  // rta_len is the first field
  }

  // SAFETY: the buffer is aligned for the header, which lies at its start.
  nlmsghdr* header() { return reinterpret_cast<nlmsghdr*>(bytes_.data()); }

 private:
  void append(void const* data, std::size_t size) {
    auto const at = header()->nlmsg_len;
    SPACE_ASSERT(at + NLMSG_ALIGN(size) <= bytes_.size(),
                 "requests are made here, from fixed parts");
    if (size > 0) std::memcpy(bytes_.data() + at, data, size);
    header()->nlmsg_len = static_cast<std::uint32_t>(at + NLMSG_ALIGN(size));
  }

  alignas(nlmsghdr) std::array<char, 256> bytes_{};
};

base::Result<Rtnetlink> Rtnetlink::open() {
  Fd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!socket) return base::fail_errno("open a netlink socket");
  // The kernel answers at once; the limit is for a kernel in trouble.
  timeval const limit{.tv_sec = 5, .tv_usec = 0};
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) {
    return base::fail_errno("limit a netlink socket");
  }
  return Rtnetlink(std::move(socket));
}

base::Result<void> Rtnetlink::call(Message& message, std::string_view step) {
  auto* const header = message.header();
  header->nlmsg_seq = ++sequence_;
  if (::send(socket_.get(), header, header->nlmsg_len, 0) < 0) return base::fail_errno(step);
  alignas(nlmsghdr) std::array<char, 4096> answer{};
  for (;;) {
    auto const got = ::recv(socket_.get(), answer.data(), answer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(step);
    // SAFETY: aligned buffer; the length is checked before the fields are read.
    auto const* reply = reinterpret_cast<nlmsghdr const*>(answer.data());
    if (static_cast<std::size_t>(got) < NLMSG_LENGTH(sizeof(nlmsgerr))) continue;
    if (reply->nlmsg_seq != sequence_ || reply->nlmsg_type != NLMSG_ERROR) continue;
    nlmsgerr verdict{};
    std::memcpy(&verdict, answer.data() + NLMSG_HDRLEN, sizeof verdict);
    if (verdict.error != 0) return base::fail_errno(-verdict.error, step);
    return {};
  }
}

base::Result<void> Rtnetlink::set_mac(int link, MacAddress const& mac) {
  Message message(RTM_NEWLINK, 0);
  message.body(ifinfomsg{.ifi_family = AF_UNSPEC,
                         .__ifi_pad = 0,
                         .ifi_type = 0,
                         .ifi_index = link,
                         .ifi_flags = 0,
                         .ifi_change = 0});
  message.attribute(IFLA_ADDRESS, mac.data(), mac.size());
  return call(message, "set the address of a link");
}

base::Result<void> Rtnetlink::set_up(int link) {
  Message message(RTM_NEWLINK, 0);
  message.body(ifinfomsg{.ifi_family = AF_UNSPEC,
                         .__ifi_pad = 0,
                         .ifi_type = 0,
                         .ifi_index = link,
                         .ifi_flags = IFF_UP,
                         .ifi_change = IFF_UP});
  return call(message, "set a link up");
}

base::Result<void> Rtnetlink::add_address(int link, Ipv4 const& address, int prefix_length) {
  Message message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
  message.body(ifaddrmsg{.ifa_family = AF_INET,
                         .ifa_prefixlen = static_cast<std::uint8_t>(prefix_length),
                         .ifa_flags = 0,
                         .ifa_scope = RT_SCOPE_UNIVERSE,
                         .ifa_index = static_cast<std::uint32_t>(link)});
  message.attribute(IFA_LOCAL, address.data(), address.size());
  message.attribute(IFA_ADDRESS, address.data(), address.size());
  return call(message, "add an address");
}

base::Result<void> Rtnetlink::add_permanent_neighbour(int link,
                                                      Ipv4 const& address,
                                                      MacAddress const& mac) {
  Message message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE);
  ndmsg body{};
  body.ndm_family = AF_INET;
  body.ndm_ifindex = link;
  body.ndm_state = NUD_PERMANENT;
  message.body(body);
  message.attribute(NDA_DST, address.data(), address.size());
  message.attribute(NDA_LLADDR, mac.data(), mac.size());
  return call(message, "add a neighbour");
}

base::Result<void> Rtnetlink::add_rule(std::string_view in,
                                       std::uint32_t priority,
                                       std::uint32_t table) {
  Message message(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL);
  fib_rule_hdr body{};
  body.family = AF_INET;
  body.action = FR_ACT_TO_TBL;
  message.body(body);
  message.name(FRA_IIFNAME, in);
  message.attribute(FRA_PRIORITY, &priority, sizeof priority);
  message.attribute(FRA_TABLE, &table, sizeof table);
  return call(message, "add a routing rule");
}

base::Result<void> Rtnetlink::add_local_default(int link, std::uint32_t table) {
  Message message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
  rtmsg body{};
  body.rtm_family = AF_INET;
  body.rtm_protocol = RTPROT_STATIC;
  body.rtm_scope = RT_SCOPE_HOST;
  body.rtm_type = RTN_LOCAL;
  message.body(body);
  message.attribute(RTA_TABLE, &table, sizeof table);
  message.attribute(RTA_OIF, &link, sizeof link);
  return call(message, "add a route");
}

base::Result<void> Rtnetlink::add_veth(std::string_view name,
                                       std::string_view peer,
                                       FdRef peer_netns) {
  Message message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
  message.body(ifinfomsg{});
  message.name(IFLA_IFNAME, name);
  auto const info = message.begin(IFLA_LINKINFO);
  message.attribute(IFLA_INFO_KIND, "veth", 4);
  auto const data = message.begin(IFLA_INFO_DATA);
  auto const other = message.begin(VETH_INFO_PEER);
  message.body(ifinfomsg{});
  message.name(IFLA_IFNAME, peer);
  int const netns = peer_netns.get();
  message.attribute(IFLA_NET_NS_FD, &netns, sizeof netns);
  for (auto const nested : {other, data, info})
    message.end(nested);
  return call(message, "make a pair of links");
}

base::Result<void> Rtnetlink::remove_link(int link) {
  Message message(RTM_DELLINK, 0);
  ifinfomsg body{};
  body.ifi_index = link;
  message.body(body);
  return call(message, "remove a link");
}

base::Result<void> Rtnetlink::add_default_route(Ipv4 const& gateway) {
  Message message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
  rtmsg body{};
  body.rtm_family = AF_INET;
  body.rtm_table = RT_TABLE_MAIN;
  body.rtm_protocol = RTPROT_STATIC;
  body.rtm_scope = RT_SCOPE_UNIVERSE;
  body.rtm_type = RTN_UNICAST;
  message.body(body);
  message.attribute(RTA_GATEWAY, gateway.data(), gateway.size());
  return call(message, "add a default route");
}

base::Result<int> link_index(char const* name) {
  auto const index = ::if_nametoindex(name);
  if (index == 0) return base::fail_errno("find a link", name);
  return static_cast<int>(index);
}

}  // namespace os
