#include "integration/guest_net.hpp"

#include "base/id.hpp"
#include "os/netns.hpp"
#include "os/tap.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <list>
#include <stdexcept>
#include <vector>

#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

constexpr char dns_server[] = "203.0.113.53";

sockaddr_in address_of(std::string const& address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &out.sin_addr);
  return out;
}

os::Fd socket_here(int type, std::uint16_t port, std::string const& address = "0.0.0.0") {
  os::Fd made(::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int const yes = 1;
  ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  auto const where = address_of(address, port);
  // SAFETY: how bind() wants it.
  if (::bind(made.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0 ||
      (type == SOCK_STREAM && ::listen(made.get(), 64) != 0))
    throw std::runtime_error("no server");
  return made;
}

std::string question_for(std::string const& name) {
  std::string out("\x12\x34\x01\0\0\1\0\0\0\0\0\0", 12);
  std::string_view rest = name;
  while (!rest.empty()) {
    auto const label = rest.substr(0, rest.find('.'));
    out += static_cast<char>(label.size());
    out += label;
    rest.remove_prefix(std::min(rest.size(), label.size() + 1));
  }
  return out + std::string("\0\0\1\0\1", 5);
}

/// The same address for every name, other types without data.
std::string answer_for(std::string question, Names names) {
  bool const wants_a = question.size() > 16 && question[question.find('\0', 12) + 2] == 1;
  auto const end = question.find('\0', 12) + 5;
  question.resize(end);
  question[2] = '\x81';
  question[3] = '\x80';
  question.replace(6, 6, std::string("\0\0\0\0\0\0", 6));
  if (names == Names::failing) question[3] = '\x82';
  if (!wants_a || names == Names::failing) return question;
  question[7] = 1;
  auto const address =
      names == Names::inside ? std::string("\x0a\x42\0\1", 4) : std::string("\xcb\0\x71\x0a", 4);
  return question + std::string("\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4", 12) + address;
}

void copy_frames(os::Fd const& from, os::Fd const& to) {
  std::array<char, 70'000> frame;
  for (int i = 0; i < 64; ++i) {
    auto const got = ::read(from.get(), frame.data(), frame.size());
    if (got <= 0) return;
    auto const put = ::write(to.get(), frame.data(), static_cast<std::size_t>(got));
    static_cast<void>(put);  // a frame that does not fit is lost, as on a wire
  }
}

}  // namespace

os::Fd make_netns() {
  auto const inside = os::InNetns::make();
  if (!inside) throw std::runtime_error(inside.error().message());
  return std::move(*os::InNetns::current());
}

void run_in(os::FdRef netns, std::string const& command) {
  auto const inside = os::InNetns::enter(netns);
  if (!inside || ::system(command.c_str()) != 0)  // NOLINT: test set-up with fixed words
    throw std::runtime_error("failed: " + command);
}

GuestNet::GuestNet(os::Fd tap) : slot_(std::move(tap)) {
  {
    auto const inside = os::InNetns::enter(netns_);
    auto own = os::open_persistent_tap("eth0");
    if (!own) throw std::runtime_error(own.error().message());
    own_ = std::move(*own);
  }
  run_in(netns_,
         "ip link set lo up && ip link set eth0 address 02:00:00:00:00:02 && ip addr add "
         "192.0.2.2/30 dev eth0 && ip link set eth0 up && ip route add default via 192.0.2.1");
  carrier_ = std::thread([this] { carry(); });
}

GuestNet::~GuestNet() {
  ending_ = true;
  carrier_.join();
}

void GuestNet::carry() {
  while (!ending_) {
    std::array<pollfd, 2> wait{pollfd{.fd = slot_.get(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = own_.get(), .events = POLLIN, .revents = 0}};
    if (::poll(wait.data(), wait.size(), 50) <= 0) continue;
    copy_frames(slot_, own_);
    copy_frames(own_, slot_);
  }
}

os::Fd GuestNet::dial(std::string const& address, std::uint16_t port) const {
  auto const inside = os::InNetns::enter(netns_);
  os::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  timeval const limit{.tv_sec = 5, .tv_usec = 0};
  for (int const which : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(socket.get(), SOL_SOCKET, which, &limit, sizeof limit);
  auto const where = address_of(address, port);
  // SAFETY: how connect() wants it.
  if (::connect(socket.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0)
    return {};
  return socket;
}

os::Fd GuestNet::begin_dial(std::string const& address, std::uint16_t port) const {
  auto const inside = os::InNetns::enter(netns_);
  os::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  auto const where = address_of(address, port);
  // SAFETY: how connect() wants it.
  auto const begun =
      ::connect(socket.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where);
  if (begun != 0 && errno != EINPROGRESS) return {};
  return socket;
}

std::string GuestNet::resolve(std::string const& name) const {
  auto const inside = os::InNetns::enter(netns_);
  os::Fd const socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto const where = address_of("192.0.2.1", 53);
  auto const question = question_for(name);
  // SAFETY: how connect() wants it.
  if (::connect(socket.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0 ||
      ::send(socket.get(), question.data(), question.size(), 0) < 0)
    return "";
  pollfd wait{.fd = socket.get(), .events = POLLIN, .revents = 0};
  std::array<unsigned char, 600> answer{};
  if (::poll(&wait, 1, 2000) != 1) return "";
  auto const got = ::recv(socket.get(), answer.data(), answer.size(), 0);
  if (got < 16 || (answer[3] & 15U) != 0 || answer[7] != 1) return "";
  auto const at = static_cast<std::size_t>(got) - 4;
  return fmt::format(
      "{}.{}.{}.{}", answer.at(at), answer.at(at + 1), answer.at(at + 2), answer.at(at + 3));
}

std::string GuestNet::talk(os::Fd const& socket,
                           std::string const& text,
                           std::string const& until) {
  if (!socket || ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return "";
  std::string heard;
  std::array<char, 4096> part{};
  for (;;) {
    auto const got = ::recv(socket.get(), part.data(), part.size(), 0);
    if (got <= 0) return heard;
    heard.append(part.data(), static_cast<std::size_t>(got));
    if (!until.empty() && heard.find(until) != std::string::npos) return heard;
  }
}

SmallInternet::SmallInternet() : path_("/run/space-test-" + base::random_hex(4)) {
  run_in(netns_,
         fmt::format("ip link set lo up && ip addr add 203.0.113.10/32 dev lo && ip addr add "
                     "203.0.113.20/32 dev lo && ip addr add 10.66.0.1/32 dev lo && ip addr add "
                     "{}/32 dev lo",
                     dns_server));
  auto pinned = os::pin_netns(netns_, path_);
  if (!pinned) throw std::runtime_error(pinned.error().message());
  server_ = std::thread([this] { serve(); });
}

SmallInternet::~SmallInternet() {
  ending_ = true;
  server_.join();
  auto removed = os::unpin_netns(path_);
  static_cast<void>(removed);
}

void SmallInternet::serve() {
  auto const inside = os::InNetns::enter(netns_);
  // At its own address: the answer must come from where the question went.
  auto names = socket_here(SOCK_DGRAM, 53, dns_server);
  std::array const listeners{socket_here(SOCK_STREAM, 7), socket_here(SOCK_STREAM, 80)};
  std::list<os::Fd> peers;
  std::array<char, 16'384> buffer{};
  while (!ending_) {
    bool const gone = names_ == Names::gone;
    if (gone) names.reset();
    if (!gone && !names) names = socket_here(SOCK_DGRAM, 53, dns_server);
    std::vector<pollfd> wait{{.fd = names.get(), .events = POLLIN, .revents = 0}};
    for (auto const& one : listeners)
      wait.push_back({.fd = one.get(), .events = POLLIN, .revents = 0});
    for (auto const& one : peers)
      wait.push_back({.fd = one.get(), .events = POLLIN, .revents = 0});
    if (::poll(wait.data(), wait.size(), 50) <= 0) continue;
    sockaddr_in from{};
    socklen_t size = sizeof from;
    // SAFETY: how the socket calls want it.
    auto* const out = reinterpret_cast<sockaddr*>(&from);
    auto const asked = ::recvfrom(names.get(), buffer.data(), 512, MSG_DONTWAIT, out, &size);
    if (asked > 16) {
      ++questions_;
      auto const text =
          answer_for(std::string(buffer.data(), static_cast<std::size_t>(asked)), names_);
      ::sendto(names.get(), text.data(), text.size(), 0, out, size);
    }
    std::erase_if(peers, [&](os::Fd const& peer) {
      auto const got = ::recv(peer.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0) return errno != EAGAIN;
      arrived_ += static_cast<std::uint64_t>(got);
      return got == 0 ||
             ::send(peer.get(), buffer.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) < 0;
    });
    for (auto const& one : listeners) {
      os::Fd peer(::accept4(one.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer) peers.push_back(std::move(peer));
    }
  }
}

}  // namespace test
