#include "agent/connections.hpp"

#include "os/fd.hpp"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace agent {
namespace {

/// Programs of a guest may hold any number; these are more than its memory has room for.
constexpr std::size_t connections_max = 65'536;
constexpr std::array<std::uint8_t, 4> host_address{192, 0, 2, 1};

struct Found {
  std::uint8_t family = 0;
  inet_diag_sockid id{};
};

/// One line to the kernel's list of sockets.
class SocketList {
 public:
  static base::Result<SocketList> open() {
    os::Fd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    // The kernel answers at once; the limit is for a kernel in trouble, for nothing else is served
    // meanwhile.
    timeval const limit{.tv_sec = 2, .tv_usec = 0};
    if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
      return base::fail_errno("open the list of sockets");
    return SocketList(std::move(socket));
  }

  base::Result<void> find(std::uint8_t family, std::vector<Found>& found) {
    inet_diag_req_v2 request{};
    request.sdiag_family = family;
    request.sdiag_protocol = IPPROTO_TCP;
    request.idiag_states = ~((1U << TCP_LISTEN) | (1U << TCP_CLOSE) | (1U << TCP_TIME_WAIT));
    auto sent = send(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request);
    if (!sent) return sent;
    for (;;) {
      auto got = receive();
      if (!got) return base::passing(got);
      auto done = take(*got, found);
      if (!done) return base::passing(done);
      if (*done) return {};
    }
  }

  /// False when it ended by itself meanwhile.
  base::Result<bool> end(Found const& one) {
    inet_diag_req_v2 request{};
    request.sdiag_family = one.family;
    request.sdiag_protocol = IPPROTO_TCP;
    request.id = one.id;
    auto sent = send(SOCK_DESTROY, NLM_F_ACK, request);
    if (!sent) return base::passing(sent);
    auto got = receive();
    if (!got) return base::passing(got);
    auto const problem = problem_of(answer_.data(), *got);
    if (problem == 0) return true;
    if (problem == ENOENT) return false;
    return base::fail_errno(problem, "end a connection");
  }

 private:
  explicit SocketList(os::Fd socket) : socket_(std::move(socket)) {}

  base::Result<void> send(std::uint16_t type,
                          std::uint16_t flags,
                          inet_diag_req_v2 const& request) {
    struct {
      nlmsghdr head;
      inet_diag_req_v2 body;
    } message{};

    message.head.nlmsg_len = sizeof message;
    message.head.nlmsg_type = type;
    message.head.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
    message.head.nlmsg_seq = ++sequence_;
    message.body = request;
    if (::send(socket_.get(), &message, sizeof message, 0) < 0)
      return base::fail_errno("ask for the list of sockets");
    return {};
  }

  base::Result<std::size_t> receive() {
    for (;;) {
      auto const got = ::recv(socket_.get(), answer_.data(), answer_.size(), 0);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) return base::fail_errno("read the list of sockets");
    }
  }

  /// The kernel's verdict in a message; 0 when it is none or good.
  static int problem_of(char const* bytes, std::size_t size) {
    nlmsghdr head{};
    nlmsgerr verdict{};
    if (size < NLMSG_LENGTH(sizeof verdict)) return 0;
    std::memcpy(&head, bytes, sizeof head);
    if (head.nlmsg_type != NLMSG_ERROR) return 0;
    std::memcpy(&verdict, bytes + NLMSG_HDRLEN, sizeof verdict);
    return -verdict.error;
  }

  /// True at the end of the list.
  base::Result<bool> take(std::size_t size, std::vector<Found>& found) {
    for (std::size_t at = 0; at + sizeof(nlmsghdr) <= size;) {
      nlmsghdr head{};
      std::memcpy(&head, answer_.data() + at, sizeof head);
      if (head.nlmsg_len < sizeof head || head.nlmsg_len > size - at)
        return base::fail(base::Code::internal, "the list of sockets cannot be read");
      if (head.nlmsg_type == NLMSG_DONE) return true;
      auto const problem = problem_of(answer_.data() + at, head.nlmsg_len);
      if (problem != 0) return base::fail_errno(problem, "list sockets");
      inet_diag_msg one{};
      if (head.nlmsg_type == SOCK_DIAG_BY_FAMILY && head.nlmsg_len >= NLMSG_LENGTH(sizeof one)) {
        std::memcpy(&one, answer_.data() + at + NLMSG_HDRLEN, sizeof one);
        add(one, found);
      }
      at += NLMSG_ALIGN(head.nlmsg_len);
    }
    return false;
  }

  static void add(inet_diag_msg const& one, std::vector<Found>& found) {
    PeerAddress own{};
    PeerAddress peer{};
    static_assert(sizeof one.id.idiag_dst == sizeof peer);
    std::memcpy(own.data(), one.id.idiag_src, sizeof own);
    std::memcpy(peer.data(), one.id.idiag_dst, sizeof peer);
    if (found.size() < connections_max && is_outward(one.idiag_family, own, peer))
      found.push_back({one.idiag_family, one.id});
  }

  os::Fd socket_;
  std::uint32_t sequence_ = 0;
  std::array<char, 32 * 1024> answer_{};
};

bool begins_with(PeerAddress const& address, std::size_t at, std::span<std::uint8_t const> bytes) {
  return std::equal(bytes.begin(), bytes.end(), address.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

bool is_outward(int family, PeerAddress const& own, PeerAddress const& peer) noexcept {
  constexpr std::array<std::uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  constexpr std::array<std::uint8_t, 1> loopback_4{127};
  PeerAddress loopback_6{};
  loopback_6.back() = 1;
  if (peer == own || peer == loopback_6) return false;
  std::size_t at = 0;  // of the IPv4 address
  if (family == AF_INET6) {
    // Another IPv6 peer there is none of: the slot passes none.
    if (!begins_with(peer, 0, mapped)) return true;
    at = mapped.size();
  }
  return !begins_with(peer, at, loopback_4) && !begins_with(peer, at, host_address);
}

base::Result<std::size_t> end_outward_connections() {
  auto list = SocketList::open();
  if (!list) return base::passing(list);
  std::vector<Found> found;
  for (int const family : {AF_INET, AF_INET6}) {
    auto listed = list->find(static_cast<std::uint8_t>(family), found);
    if (!listed) return base::passing(listed);
  }
  std::size_t ended = 0;
  for (auto const& one : found) {
    auto gone = list->end(one);
    if (!gone) return base::passing(gone);
    if (*gone) ++ended;
  }
  return ended;
}

}  // namespace agent
