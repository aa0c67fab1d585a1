// A slot from the side of a guest that sends what it likes: only the agent's conversation passes,
// everything else is refused or dropped, and nothing ever leaves. No other process is needed: the
// test holds the tap in place of a VMM.

#include "hostd/gateway_sockets.hpp"
#include "hostd/guard_drops.hpp"
#include "hostd/nft.hpp"
#include "hostd/rule_watch.hpp"
#include "hostd/slot_network.hpp"
#include "integration/hostd_fixture.hpp"
#include "integration/tap_peer.hpp"
#include "os/netlink.hpp"
#include "os/netns.hpp"
#include "os/text_file.hpp"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

constexpr Address foreign{203, 0, 113, 9};
constexpr Address synthetic{198, 18, 0, 7};
constexpr Address metadata{169, 254, 169, 254};

bool is_arp_reply(Seen const& seen) {
  return seen.type == 0x0806 && seen.payload.size() >= 8 && seen.payload[7] == 2;
}

bool is_icmp(Seen const& seen, int type) {
  return seen.type == 0x0800 && seen.ip.protocol == 1 && seen.payload[0] == type;
}

bool is_reset(Seen const& seen) {
  return seen.type == 0x0800 && seen.ip.protocol == 6 && (seen.payload[13] & 4U) != 0;
}

class Slot : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::geteuid(), 0U) << "these tests make network namespaces: run them as root";
    auto made = hostd::make_slot_network();
    ASSERT_TRUE(made) << made.error().message() << " " << made.error().detail();
    netns_ = std::move(made->netns);
    peer_.emplace(std::move(made->tap));
  }

  template <class F> auto inside(F work) {
    auto in = os::InNetns::enter(netns_);
    if (!in) throw std::runtime_error(in.error().message());
    return work();
  }

  /// A counter of the slot's own IP layer ("InReceives"): what the guard dropped never gets there.
  long ip_counter(std::string const& name) {
    auto const text =
        inside([] { return os::read_text("/proc/thread-self/net/snmp").value_or(""); });
    std::istringstream lines(text);
    std::string names, values;
    while (std::getline(lines, names) && std::getline(lines, values)) {
      if (!names.starts_with("Ip:")) continue;
      std::istringstream name_words(names), value_words(values);
      for (std::string one, value; name_words >> one && value_words >> value;) {
        if (one == name) return std::stol(value);
      }
    }
    throw std::runtime_error("no such counter");
  }

  /// Asks the gateway who it is; its answer proves that everything sent before has been dealt with.
  bool gateway_answers() {
    peer_->send(ethernet(gateway_mac, guest_mac, 0x0806, arp(1, guest_mac, guest, gateway)));
    return peer_->receive(is_arp_reply).has_value();
  }

  void run_inside(std::string const& command) {
    int const status =
        inside([&] { return ::system(command.c_str()); });  // NOLINT: test set-up with fixed words
    ASSERT_EQ(status, 0) << command;
  }

  os::Fd netns_;
  std::optional<TapPeer> peer_;
};

TEST_F(Slot, HasALoopbackATapAndNoWayOut) {
  EXPECT_EQ(inside([] {
              std::vector<std::string> names;
              auto* const list = ::if_nameindex();
              for (auto* link = list; link->if_index != 0; ++link)
                names.emplace_back(link->if_name);
              ::if_freenameindex(list);
              return names;
            }),
            (std::vector<std::string>{"lo", "sbx0"}));
  // Connected network and nothing else: no line with destination 00000000.
  auto const routes =
      inside([] { return os::read_text("/proc/thread-self/net/route").value_or(""); });
  EXPECT_THAT(routes, testing::HasSubstr("sbx0\t000200C0\t"));
  EXPECT_THAT(routes, testing::Not(testing::HasSubstr("\t00000000\t00000000\t")));
  EXPECT_EQ(inside([] { return os::read_text("/proc/sys/net/ipv4/ip_forward").value_or(""); }),
            "0\n");
  EXPECT_EQ(inside([] { return os::read_text("/proc/thread-self/net/if_inet6").value_or(""); }),
            "");
}

TEST_F(Slot, AnswersItsGuestsEchoAndAddressQuestion) {
  ASSERT_TRUE(gateway_answers());
  auto const before = ip_counter("InReceives");
  peer_->send_ip({}, icmp(8, 1));
  EXPECT_TRUE(peer_->receive([](auto const& s) { return is_icmp(s, 0); }));
  EXPECT_EQ(ip_counter("InReceives"), before + 1);
}

struct BadFrame {
  char const* name;
  Bytes frame;
};

Bytes echo(Ip const& head = {}) {
  return ip(head, icmp(8, 9));
}

Bytes from_guest(std::uint16_t type, Bytes const& payload) {
  return ethernet(gateway_mac, guest_mac, type, payload);
}

Bytes tagged(std::uint16_t id, Bytes const& payload) {
  Bytes out{static_cast<std::uint8_t>(id >> 8U), static_cast<std::uint8_t>(id), 0x08, 0x00};
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}

Bytes ipv6_solicitation() {
  Bytes out{0x60, 0, 0, 0, 0, 8, 58, 255, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  out.insert(out.end(),
             {0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 133, 0, 0, 0, 0, 0, 0, 0});
  return out;
}

/// The frames of the attack catalogue's link and network part (N01–N19).
std::vector<BadFrame> bad_frames() {
  constexpr Mac stranger{2, 0, 0, 0, 0, 0x99};
  constexpr Mac all{255, 255, 255, 255, 255, 255};
  constexpr Address neighbour{192, 0, 2, 3};
  std::vector<BadFrame> frames{
      {"N01 spoofed address", from_guest(0x0800, echo({.from = neighbour}))},
      {"N01 gateway as source", from_guest(0x0800, echo({.from = gateway}))},
      {"N01 no source", from_guest(0x0800, echo({.from = {0, 0, 0, 0}}))},
      {"N03 spoofed query",
       from_guest(0x0800, ip({.from = neighbour, .protocol = 17}, udp(1000, 53, {1, 2})))},
      {"N04 spoofed MAC", ethernet(gateway_mac, stranger, 0x0800, echo())},
      {"N04 gateway's MAC", ethernet(gateway_mac, gateway_mac, 0x0800, echo())},
      {"another's MAC as target", ethernet(stranger, guest_mac, 0x0800, echo())},
      {"N18 broadcast frame", ethernet(all, guest_mac, 0x0800, echo())},
      {"N07 VLAN 5", from_guest(0x8100, tagged(5, echo()))},
      {"N07 priority tag", from_guest(0x8100, tagged(0, echo()))},
      {"N08 QinQ", from_guest(0x88a8, tagged(5, echo()))},
      {"N08 MPLS", from_guest(0x8847, echo())},
      {"N08 LLDP", from_guest(0x88cc, Bytes(40))},
      {"N08 EAPOL", from_guest(0x888e, Bytes(40))},
      {"N09 router solicitation", from_guest(0x86dd, ipv6_solicitation())},
      {"N13 record route", from_guest(0x0800, echo({.options = {7, 7, 4, 0, 0, 0, 0, 0}}))},
      {"N13 loose source route",
       from_guest(0x0800, echo({.options = {131, 7, 4, 192, 0, 2, 9, 0}}))},
      {"N14 first fragment", from_guest(0x0800, echo({.fragment = 0x2000}))},
      {"N14 last fragment", from_guest(0x0800, echo({.fragment = 0x0001}))},
      {"N16 echo to elsewhere", from_guest(0x0800, echo({.to = foreign}))},
      {"N16 timestamp question", from_guest(0x0800, ip({}, icmp(13, 1)))},
      {"N17 redirect", from_guest(0x0800, ip({}, icmp(5, 1)))},
      {"N18 multicast",
       from_guest(0x0800, ip({.to = {224, 0, 0, 251}, .protocol = 17}, udp(5353, 5353, {1})))},
      {"N18 limited broadcast",
       from_guest(0x0800, ip({.to = {255, 255, 255, 255}, .protocol = 17}, udp(68, 67, {1})))},
      {"loopback as target", from_guest(0x0800, echo({.to = {127, 0, 0, 1}}))},
  };
  for (int const protocol : {2, 4, 33, 41, 47, 50, 51, 89, 115, 132, 136, 255}) {
    static std::vector<std::string> names;
    names.reserve(16);
    names.push_back("N15 protocol " + std::to_string(protocol));
    frames.push_back(
        {names.back().c_str(),
         from_guest(0x0800, ip({.protocol = static_cast<std::uint8_t>(protocol)}, Bytes(24)))});
  }
  return frames;
}

TEST_F(Slot, NoBadFrameReachesEvenItsOwnIpLayer) {
  for (auto const& [name, frame] : bad_frames()) {
    ASSERT_TRUE(gateway_answers()) << name;
    peer_->drain();
    auto const before = ip_counter("InReceives");
    for (int i = 0; i < 3; ++i)
      peer_->send(frame);
    ASSERT_TRUE(gateway_answers()) << name;
    EXPECT_EQ(ip_counter("InReceives"), before) << name;
    EXPECT_TRUE(peer_->drain().empty()) << name << " was answered";
    ::poll(nullptr, 0, 110);  // the guard lets 20 address questions a second through
  }
  // The control: the same echo, well formed, is counted and answered.
  auto const before = ip_counter("InReceives");
  peer_->send(from_guest(0x0800, echo()));
  EXPECT_TRUE(peer_->receive([](auto const& s) { return is_icmp(s, 0); }));
  EXPECT_EQ(ip_counter("InReceives"), before + 1);
}

TEST_F(Slot, WhatItsGuardDropsIsCountedRuleByRule) {
  using enum hostd::GuardRule;
  constexpr Mac stranger{2, 0, 0, 0, 0, 0x99};
  std::vector<std::pair<hostd::GuardRule, Bytes>> const frames{
      {sender, ethernet(gateway_mac, stranger, 0x0800, echo())},
      {receiver, ethernet(stranger, guest_mac, 0x0800, echo())},
      {protocol, from_guest(0x86dd, Bytes(40))},
      {hostd::GuardRule::arp, from_guest(0x0806, Bytes(28))},
      {source_address, from_guest(0x0800, echo({.from = {192, 0, 2, 9}}))},
      {ip_header, from_guest(0x0800, echo({.options = {1, 1, 1, 1}}))},
      {ip_header, from_guest(0x0800, echo({.fragment = 0x2000}))},
      {special_address,
       from_guest(0x0800, ip({.to = {224, 0, 0, 251}, .protocol = 17}, udp(5353, 5353, {1})))},
      {nowhere_to_go, from_guest(0x0800, ip({.protocol = 47}, Bytes(24)))},
  };
  hostd::GuardDrops expected{};
  for (auto const& [rule, frame] : frames) {
    expected.at(static_cast<std::size_t>(rule)) += 2;
    peer_->send(frame);
    peer_->send(frame);
  }
  ASSERT_TRUE(gateway_answers());
  auto const listing = inside([] { return hostd::list_counts("list table netdev guard\n"); });
  ASSERT_TRUE(listing) << listing.error().detail();
  auto const drops = hostd::drops_in(*listing);
  for (std::size_t i = 0; i < drops.size(); ++i)
    EXPECT_EQ(drops.at(i), expected.at(i)) << name_of(static_cast<hostd::GuardRule>(i));
}

TEST_F(Slot, ForgedAddressAnswersChangeNothing) {
  constexpr Mac stranger{2, 0, 0, 0, 0, 0x99};
  auto const neighbours = [&] {
    return inside([] { return os::read_text("/proc/thread-self/net/arp").value_or(""); });
  };
  auto const before = neighbours();
  EXPECT_THAT(before, testing::HasSubstr("02:00:00:00:00:02"));
  ASSERT_TRUE(gateway_answers());
  for (auto const& forged : {arp(2, stranger, guest, gateway),
                             arp(2, guest_mac, gateway, gateway),
                             arp(1, guest_mac, {192, 0, 2, 3}, gateway),
                             arp(2, stranger, {192, 0, 2, 3}, gateway),
                             arp(1, guest_mac, guest, guest)}) {
    peer_->send(ethernet(gateway_mac, guest_mac, 0x0806, forged));
  }
  EXPECT_FALSE(peer_->receive(is_arp_reply, std::chrono::milliseconds(200)));
  EXPECT_EQ(neighbours(), before);
  // Permanent also against a well-formed announcement.
  ASSERT_TRUE(gateway_answers());
  EXPECT_EQ(neighbours(), before);
}

TEST_F(Slot, WhatAGuestProgramTriesIsRefusedAtOnce) {
  auto const refused = [&](Address const& to, std::uint16_t port) {
    peer_->drain();
    peer_->send_ip({.to = to, .protocol = 6}, tcp(guest, to, 40'000, port, 2, 1, 0));
    auto const answer = peer_->receive([](auto const& s) { return s.ip.protocol == 6; });
    return answer && is_reset(*answer) && answer->ip.from == to;
  };
  EXPECT_TRUE(refused(foreign, 443));
  EXPECT_TRUE(refused(synthetic, 443)) << "a synthetic address, while no gateway listens";
  EXPECT_TRUE(refused(metadata, 80)) << "cloud libraries look there at their start";
  EXPECT_TRUE(refused({10, 0, 0, 1}, 22));
  EXPECT_TRUE(refused(gateway, 22));
  EXPECT_TRUE(refused(gateway, 53));
  EXPECT_TRUE(refused(foreign, 53));

  auto const unreachable = [&](Address const& to, std::uint16_t port) {
    peer_->drain();
    peer_->send_ip({.to = to, .protocol = 17}, udp(40'000, port, Bytes(20)));
    return peer_->receive([](auto const& s) { return is_icmp(s, 3); }).has_value();
  };
  EXPECT_TRUE(unreachable(gateway, 53)) << "names cannot be asked: a program shall know at once";
  EXPECT_TRUE(unreachable(foreign, 53));
  EXPECT_TRUE(unreachable(foreign, 123));
}

/// What the gateway's listener in the slot gets of the guest's connections.
class Passage : public Slot {
 protected:
  void SetUp() override {
    Slot::SetUp();
    auto sockets = hostd::open_gateway_sockets(netns_);
    ASSERT_TRUE(sockets) << sockets.error().message();
    gateway_ = std::move(*sockets);
  }

  void let_through(std::vector<hostd::Network> const& networks, bool named = false) {
    hostd::Passage passage;
    passage.named = named ? 1 : 0;
    for (auto const& one : networks)
      passage.networks.at(passage.count++) = one;
    auto changed = hostd::let_through(netns_, passage);
    ASSERT_TRUE(changed) << changed.error().detail();
  }

  std::optional<Seen> answer_to(Address const& to,
                                std::uint16_t port,
                                std::uint8_t flags,
                                std::uint32_t acknowledged = 0) {
    peer_->drain();
    peer_->send_ip({.to = to, .protocol = 6}, tcp(guest, to, 40'000, port, flags, 1, acknowledged));
    return peer_->receive([&](auto const& s) { return s.ip.protocol == 6 && s.ip.from == to; });
  }

  bool reaches(Address const& to, std::uint16_t port) {
    auto const answer = answer_to(to, port, 2);
    if (!answer) return false;
    if (!is_reset(*answer)) {
      // Ends it, so that the next question from the same port is a new connection.
      peer_->send_ip({.to = to, .protocol = 6}, tcp(guest, to, 40'000, port, 4, 2, 0));
    }
    return !is_reset(*answer);
  }

  hostd::GatewaySockets gateway_;
};

constexpr hostd::Network documentation{.address = 0xcb007100, .bits = 24};  // 203.0.113.0/24
constexpr hostd::Network everywhere{.address = 0, .bits = 0};

TEST_F(Passage, AtFirstOnlySyntheticAddressesReachTheGateway) {
  EXPECT_TRUE(reaches(synthetic, 443));
  EXPECT_FALSE(reaches(foreign, 443));
  EXPECT_FALSE(reaches(foreign, 7));
}

TEST_F(Passage, ANetworkOfThePolicyReachesTheGatewayAtAnyPort) {
  let_through({documentation, {.address = 0x08080808, .bits = 32}});
  EXPECT_TRUE(reaches(foreign, 7));
  EXPECT_TRUE(reaches(foreign, 443));
  EXPECT_TRUE(reaches({8, 8, 8, 8}, 7));
  EXPECT_FALSE(reaches({8, 8, 8, 9}, 7));
  EXPECT_TRUE(reaches(synthetic, 443));
  let_through({});
  EXPECT_FALSE(reaches(foreign, 7));
  EXPECT_TRUE(reaches(synthetic, 443));
}

TEST_F(Passage, ConnectionsThatSayTheirNameReachItAtTwoPorts) {
  let_through({}, true);
  EXPECT_TRUE(reaches(foreign, 443));
  EXPECT_TRUE(reaches(foreign, 80));
  EXPECT_FALSE(reaches(foreign, 22));
  let_through({});
  EXPECT_FALSE(reaches(foreign, 443));
}

TEST_F(Passage, NoPolicyOpensWhatIsNeverOpen) {
  let_through({everywhere}, true);
  EXPECT_TRUE(reaches(foreign, 7)) << "the control";
  for (auto const& never : {metadata,
                            gateway,
                            Address{127, 0, 0, 1},
                            Address{224, 0, 0, 1},
                            Address{255, 255, 255, 255},
                            Address{0, 0, 0, 1}})
    EXPECT_FALSE(reaches(never, 443)) << int{never[0]};
}

TEST_F(Passage, NoPolicyOpensUdp) {
  let_through({documentation, everywhere}, true);
  EXPECT_TRUE(reaches(foreign, 443)) << "the control: TCP";
  for (std::uint16_t const port : std::array<std::uint16_t, 3>{443, 123, 51820}) {
    peer_->drain();
    peer_->send_ip({.to = foreign, .protocol = 17}, udp(40'000, port, Bytes(20)));
    EXPECT_TRUE(peer_->receive([](auto const& s) { return is_icmp(s, 3); })) << port;
  }
  std::array<char, 2048> datagram{};
  EXPECT_EQ(::recv(gateway_.dns_datagram.get(), datagram.data(), datagram.size(), MSG_DONTWAIT), -1)
      << "nothing came to the gateway";
}

TEST_F(Passage, WhatIsTakenAwayEndsLiveConnections) {
  let_through({documentation});
  auto const opened = answer_to(foreign, 7, 2);
  ASSERT_TRUE(opened);
  ASSERT_FALSE(is_reset(*opened));
  auto const& head = opened->payload;
  auto const sequence = std::uint32_t{head[4]} << 24U | std::uint32_t{head[5]} << 16U |
                        std::uint32_t{head[6]} << 8U | head[7];
  peer_->send_ip({.to = foreign, .protocol = 6},
                 tcp(guest, foreign, 40'000, 7, 16, 2, sequence + 1));
  os::Fd flow;
  ASSERT_TRUE(eventually([&] {
    flow = os::Fd(::accept4(gateway_.tcp.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return static_cast<bool>(flow);
  }));
  let_through({});
  auto const refused = answer_to(foreign, 7, 16 | 8, sequence + 1);
  ASSERT_TRUE(refused);
  EXPECT_TRUE(is_reset(*refused));
  char byte = 0;
  EXPECT_EQ(::recv(flow.get(), &byte, 1, 0), -1) << "nothing of it came to the gateway";
}

TEST_F(Passage, AsManyNetworksAsFitAreTakenAtOnce) {
  std::vector<hostd::Network> many;
  for (std::uint32_t i = 0; i < hostd::networks_max; ++i)
    many.push_back({.address = 0x0b000000 + (i << 8U), .bits = 24});
  let_through(many);
  EXPECT_TRUE(reaches({11, 0, 127, 1}, 7));
  EXPECT_FALSE(reaches({11, 0, 128, 1}, 7));
}

TEST_F(Slot, AServiceInTheSlotIsOutOfReach) {
  // A trap on every address of the slot, as if somebody had started a service there by mistake.
  auto const trap = inside([] {
    os::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(22);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
    EXPECT_EQ(::listen(listener.get(), 4), 0);
    return listener;
  });
  peer_->send_ip({.protocol = 6},
                 tcp(guest, gateway, 49'983, 22, 2, 1, 0));  // N29: from the agent's port
  auto const answer = peer_->receive([](auto const& s) { return s.ip.protocol == 6; });
  ASSERT_TRUE(answer);
  EXPECT_TRUE(is_reset(*answer));
  EXPECT_EQ(::accept(trap.get(), nullptr, nullptr), -1);
}

TEST_F(Slot, AMarkedSocketOfTheHostReachesTheGuestAndNoOtherDoes) {
  auto const plays_guest = [&](os::Fd const& socket) {
    auto const asked =
        peer_->receive([](auto const& s) { return s.ip.protocol == 6 && s.payload[13] == 2; });
    if (!asked) return false;
    auto const& head = asked->payload;
    auto const port = static_cast<std::uint16_t>(head[0] << 8U | head[1]);
    auto const sequence = std::uint32_t{head[4]} << 24U | std::uint32_t{head[5]} << 16U |
                          std::uint32_t{head[6]} << 8U | head[7];
    peer_->send_ip({.protocol = 6}, tcp(guest, gateway, 49'983, port, 18, 1000, sequence + 1));
    pollfd waited{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    int error = -1;
    socklen_t size = sizeof error;
    return ::poll(&waited, 1, 700) == 1 &&
           ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  };
  auto const socket = hostd::dial_guest(netns_, 49'983);
  ASSERT_TRUE(socket);
  EXPECT_TRUE(plays_guest(*socket));

  auto const unmarked = inside([] {
    os::Fd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(49'983);
    to.sin_addr.s_addr = ::inet_addr("192.0.2.2");
    EXPECT_EQ(::connect(made.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), -1);
    return made;
  });
  EXPECT_FALSE(plays_guest(unmarked));
}

TEST_F(Slot, ForwardsNothingEvenWhenForwardingIsSwitchedOn) {
  // Sabotage: a second link with a default route and forwarding on, as a broken tool on the host
  // might leave it.
  run_inside(
      "ip link add out0 type veth peer name out1 && ip addr add 198.51.100.1/24 dev out0 && ip "
      "link set out0 up && ip link set out1 up && "
      "ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:77 dev out0 && ip route add default via "
      "198.51.100.2 dev out0 && "
      "echo 1 > /proc/sys/net/ipv4/ip_forward");
  auto const watch = inside([] {
    os::Fd made(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_IP)));
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = htons(ETH_P_IP);
    to.sll_ifindex = static_cast<int>(::if_nametoindex("out1"));
    EXPECT_EQ(::bind(made.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return made;
  });
  auto const leaks = [&] {
    for (auto const& to : {foreign, synthetic, Address{10, 0, 0, 1}}) {
      peer_->send_ip({.to = to, .protocol = 17}, udp(40'000, 7777, {'l', 'e', 'a', 'k'}));
      peer_->send_ip({.to = to, .protocol = 6}, tcp(guest, to, 40'000, 443, 2, 1, 0));
      peer_->send_ip({.to = to}, icmp(8, 1));
    }
    EXPECT_TRUE(gateway_answers());
    ::poll(nullptr, 0, 50);
    int count = 0;
    std::array<char, 2048> frame{};
    while (::recv(watch.get(), frame.data(), frame.size(), 0) > 0)
      ++count;
    return count;
  };
  EXPECT_EQ(leaks(), 0);
  // Rules lost as well: the routing rule alone still keeps everything inside.
  auto flushed = inside([] { return hostd::load_rules("flush ruleset\n"); });
  ASSERT_TRUE(flushed);
  EXPECT_EQ(leaks(), 0);
  // The control: with that taken away too, the rig does see what leaves.
  run_inside("ip rule del pref 10");
  EXPECT_GT(leaks(), 0);
}

/// What somebody with root on the host may do to a slot's rules.
constexpr char const* changes_of_strangers[] = {
    "nft flush ruleset",
    "nft delete table netdev guard",
    "nft flush chain inet steer pre",
    "nft add element netdev guard dst_policy '{ 203.0.113.0/24 }'",
    "nft insert rule netdev guard from_guest accept",
    "nft add rule netdev guard budget_in accept",
    "nft add table ip nat",
};

TEST_F(Slot, ItsRulesAreKnownToBeOursUntilSomebodyChangesThem) {
  hostd::RuleWatch watch;
  for (auto const* change : changes_of_strangers) {
    SetUp();
    hostd::RuleState state(inside([] { return hostd::rules_generation().value_or(0); }));
    auto const ours = [&] { return watch.slot_is_ours(netns_, state, {}, 0).value_or(false); };
    EXPECT_TRUE(ours()) << change;
    peer_->send_ip({}, icmp(8, 1));  // counts grow; that is no change
    EXPECT_TRUE(gateway_answers());
    EXPECT_TRUE(ours()) << change;
    run_inside(change);
    EXPECT_FALSE(ours()) << change;
    EXPECT_FALSE(ours()) << change << ", asked again";
  }
}

TEST_F(Slot, AChangeThatWasTakenBackIsNone) {
  hostd::RuleWatch watch;
  hostd::RuleState state(inside([] { return hostd::rules_generation().value_or(0); }));
  run_inside("nft add table ip nat && nft delete table ip nat");
  EXPECT_TRUE(watch.slot_is_ours(netns_, state, {}, 0).value_or(false));
}

TEST_F(Slot, ChangesOfOurOwnAreKnownAlsoToTheNextHostd) {
  hostd::RuleWatch watch;
  hostd::RuleState state(inside([] { return hostd::rules_generation().value_or(0); }));
  hostd::Passage passage;
  passage.named = 1;
  passage.count = 2;
  passage.networks[0] = {.address = 0xcb007100, .bits = 24};
  passage.networks[1] = {.address = 0xcb007180, .bits = 25};  // within the first
  auto const told =
      state.change(netns_, [&] { return hostd::let_through(netns_, passage); }, &passage);
  ASSERT_TRUE(told);
  auto const limited = state.change(netns_, [&] { return hostd::limit_network(netns_, 8192); });
  ASSERT_TRUE(limited);
  EXPECT_TRUE(watch.slot_is_ours(netns_, state, passage, 8192).value_or(false));
  EXPECT_FALSE(watch.slot_is_ours(netns_, state, {}, 8192).value_or(true)) << "another passage";

  hostd::RuleWatch another;
  hostd::RuleState unknown;
  EXPECT_FALSE(another.slot_is_ours(netns_, unknown, {}, {}).value_or(true));
  EXPECT_TRUE(another.slot_is_ours(netns_, unknown, passage, {}).value_or(false));
  // Somebody's change beside one of ours is not covered by it.
  run_inside("nft add table ip nat");
  ASSERT_TRUE(unknown.change(netns_, [&] { return hostd::let_through(netns_, {}); }, &passage));
  EXPECT_FALSE(another.slot_is_ours(netns_, unknown, {}, {}).value_or(true));
}

TEST_F(Slot, ABudgetThatSomebodyTookAwayOrMadeWiderIsNoticed) {
  hostd::RuleWatch watch;
  constexpr std::uint64_t bytes = 3'000'000;
  char const* const flush =
      "nft flush chain netdev guard budget_in && nft flush chain inet steer budget_out";
  hostd::RuleState state;
  ASSERT_TRUE(state.change(netns_, [&] { return hostd::limit_network(netns_, bytes); }));
  EXPECT_TRUE(watch.slot_is_ours(netns_, state, {}, bytes).value_or(false));
  hostd::RuleState unknown;  // of a hostd that was started since
  EXPECT_TRUE(watch.slot_is_ours(netns_, unknown, {}, {}).value_or(false));
  run_inside(flush);
  EXPECT_FALSE(watch.slot_is_ours(netns_, state, {}, bytes).value_or(true));
  EXPECT_FALSE(watch.slot_is_ours(netns_, unknown, {}, {}).value_or(true)) << "it was there before";
  ASSERT_TRUE(state.change(netns_, [&] { return hostd::limit_network(netns_, 2 * bytes); }));
  EXPECT_FALSE(watch.slot_is_ours(netns_, state, {}, bytes).value_or(true)) << "a wider one";
  EXPECT_TRUE(watch.slot_is_ours(netns_, state, {}, 2 * bytes).value_or(false));
}

TEST_F(Slot, PolicesBothDirectionsToItsBudget) {
  auto const in_flood = [&] {
    auto const before = ip_counter("InReceives");
    for (int i = 0; i < 100; ++i)
      peer_->send_ip({.protocol = 17}, udp(40'000, 53, Bytes(1372)));  // 1400 bytes of IP
    ::poll(nullptr, 0, 50);
    return ip_counter("InReceives") - before;
  };
  auto const out_flood = [&] {
    peer_->drain();
    auto const socket = inside([] {
      os::Fd made(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(9);
      to.sin_addr.s_addr = ::inet_addr("192.0.2.2");
      EXPECT_EQ(::connect(made.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
      return made;
    });
    std::array<char, 1372> payload{};
    for (int i = 0; i < 100; ++i) {
      auto const sent = ::send(socket.get(), payload.data(), payload.size(), 0);
      static_cast<void>(sent);  // refused is what we count
    }
    ::poll(nullptr, 0, 50);
    return std::ranges::count_if(peer_->drain(), [](auto const& s) { return s.ip.protocol == 17; });
  };
  EXPECT_EQ(in_flood(), 100);
  EXPECT_EQ(out_flood(), 100);
  auto limited = hostd::limit_network(netns_, 8192);
  ASSERT_TRUE(limited) << limited.error().detail();
  // 64 KiB of burst are 46 packets; a few more may pass while it runs.
  EXPECT_LT(in_flood(), 60);
  EXPECT_LT(out_flood(), 60);
  ::poll(nullptr, 0, 1500);
  EXPECT_TRUE(gateway_answers()) << "a budget slows, it does not cut off";
}

}  // namespace
}  // namespace test
