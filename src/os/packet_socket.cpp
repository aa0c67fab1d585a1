#include "os/packet_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include <unistd.h>

namespace os {
namespace {

constexpr std::size_t fds_max = 8;

base::Result<sockaddr_un> address_of(std::string const& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path)
    return base::fail(base::Code::invalid_argument, "a socket path is too long", path);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// SAFETY of the casts to sockaddr: how every socket call wants it.
base::Result<Fd> listen_at(std::string const& path, int type, int backlog) {
  auto address = address_of(path);
  if (!address) return base::passing(address);
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::fail_errno("make a socket");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("remove a stale socket", path);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0) {
    return base::fail_errno("bind a socket", path);
  }
  if (::chmod(path.c_str(), 0600) != 0) return base::fail_errno("protect a socket", path);
  if (::listen(socket.get(), backlog) != 0) return base::fail_errno("listen on a socket", path);
  return socket;
}

base::Result<Fd> connect_to(std::string const& path, int type) {
  auto address = address_of(path);
  if (!address) return base::passing(address);
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket) return base::fail_errno("make a socket");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&*address), sizeof *address) != 0) {
    bool const absent = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
    if (absent) return base::fail(base::Code::unavailable, "nobody answers at the socket", path);
    return base::fail_errno("connect to a socket", path);
  }
  return socket;
}

}  // namespace

base::Result<Fd> listen_packets(std::string const& path, gid_t group) {
  auto socket = listen_at(path, SOCK_SEQPACKET, 128);
  if (!socket) return socket;
  if (::chown(path.c_str(), 0, group) != 0)
    return base::fail_errno("give a socket to its clients", path);
  if (::chmod(path.c_str(), 0660) != 0)
    return base::fail_errno("open a socket to its clients", path);
  return socket;
}

base::Result<Fd> connect_packets(std::string const& path, std::chrono::milliseconds limit) {
  auto socket = connect_to(path, SOCK_SEQPACKET);
  if (!socket) return socket;
  timeval const time{.tv_sec = limit.count() / 1000, .tv_usec = (limit.count() % 1000) * 1000};
  for (int const option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (::setsockopt(socket->get(), SOL_SOCKET, option, &time, sizeof time) != 0) {
      return base::fail_errno("limit a socket");
    }
  }
  return socket;
}

base::Result<Fd> listen_stream(std::string const& path) {
  return listen_at(path, SOCK_STREAM, 4);
}

base::Result<Fd> connect_stream(std::string const& path) {
  return connect_to(path, SOCK_STREAM | SOCK_NONBLOCK);
}

base::Result<uid_t> peer_user(FdRef socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return base::fail_errno("ask who the peer is");
  return peer.uid;
}

base::Result<void> send_packet(FdRef socket,
                               std::span<std::byte const> bytes,
                               std::span<int const> fds) {
  if (fds.size() > fds_max)
    return base::fail(base::Code::invalid_argument, "too many descriptors for one message");
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * fds_max)> control{};
  // SAFETY: sendmsg() does not write to the buffer; the API is older than const.
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()),
             .iov_len = bytes.size()};  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    auto* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(head), fds.data(), sizeof(int) * fds.size());
  }
  for (;;) {
    auto const sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return {};
    if (errno == EINTR) continue;
    bool const gone = errno == EPIPE || errno == ECONNRESET || errno == EAGAIN;
    if (gone) return base::fail(base::Code::unavailable, "the peer of the socket is gone or busy");
    return base::fail_errno("send a message");
  }
}

base::Result<Packet> receive_packet(FdRef socket, std::span<std::byte> buffer) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * fds_max)> control{};
  iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    bool const gone = errno == EAGAIN || errno == ECONNRESET;
    if (gone) return base::fail(base::Code::unavailable, "no message came");
    return base::fail_errno("receive a message");
  }
  Packet packet;
  packet.size = static_cast<std::size_t>(got);
  packet.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (auto* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    auto const count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  return packet;
}

}  // namespace os
