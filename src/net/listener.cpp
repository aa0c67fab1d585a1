#include "base/log.hpp"
#include "net/byte_stream.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <fcntl.h>
#include <unistd.h>

namespace net {
namespace {

constexpr int backlog = 1024;
constexpr std::chrono::milliseconds exhausted_pause{50};

bool is_exhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

bool is_peer_gone(int error) {
  return error == ECONNABORTED || error == EPROTO || error == EINTR || error == ENETDOWN ||
         error == EHOSTUNREACH;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  // SAFETY: the socket calls take any address type through sockaddr*; the family says which it is.
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<sockaddr_in const*>(&address)->sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<sockaddr_in6 const*>(&address)->sin6_port);
  return 0;
}

/// A client that vanished without a word (its machine lost power) must not hold its connection for
/// ever.
void probe_when_silent(int socket) {
  int const yes = 1;
  int const idle_s = 60;
  int const interval_s = 20;
  int const probes = 4;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

class SocketListener final : public Listener {
 public:
  explicit SocketListener(asio::posix::stream_descriptor socket)
      : socket_(std::move(socket)), port_(port_of(socket_.native_handle())) {}

  async::Task<Stream> accept() override {
    while (socket_.is_open()) {
      os::Fd fd(::accept4(socket_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd) {
        if (port_ != 0) probe_when_silent(fd.get());
        auto stream = adopt_socket(socket_.get_executor(), std::move(fd));
        if (stream) co_return std::move(*stream);
        continue;  // it went away before we looked
      }
      int const error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) {
        auto [failed] = co_await socket_.async_wait(asio::posix::descriptor_base::wait_read,
                                                    asio::as_tuple(asio::use_awaitable));
        if (failed) break;
      } else if (is_exhaustion(error)) {
        // The connection stays in the queue: without a pause this loop would eat the processor.
        base::log::warn("accept_exhausted", {{"errno", error}});
        co_await async::sleep_for(exhausted_pause);
      } else if (!is_peer_gone(error)) {
        co_return base::fail_errno(error, "accept");
      }
    }
    co_return base::fail(base::Code::cancelled, "the listener is closed");
  }

  void close() noexcept override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  std::uint16_t port() const noexcept override { return port_; }

 private:
  asio::posix::stream_descriptor socket_;
  std::uint16_t port_;
};

base::Result<std::unique_ptr<Listener>> start(asio::any_io_executor const& executor,
                                              os::Fd fd,
                                              sockaddr const* address,
                                              socklen_t size,
                                              std::string const& where) {
  if (::bind(fd.get(), address, size) != 0) {
    auto const code = errno == EADDRINUSE ? base::Code::conflict : base::Code::internal;
    auto const why = boost::system::error_code(errno, boost::system::system_category()).message();
    return base::fail(code, fmt::format("listen on {}: {}", where, why));
  }
  if (::listen(fd.get(), backlog) != 0) return base::fail_errno("listen on " + where);
  return adopt_listener(executor, std::move(fd));
}

}  // namespace

base::Result<std::unique_ptr<Listener>> adopt_listener(asio::any_io_executor executor,
                                                       os::Fd socket) {
  int listening = 0;
  socklen_t size = sizeof listening;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 ||
      listening == 0) {
    return base::fail(base::Code::invalid_argument, "not a listening socket");
  }
  int const flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return base::fail_errno("make the listener non-blocking");
  }
  asio::posix::stream_descriptor descriptor(executor);
  boost::system::error_code error;
  descriptor.assign(socket.get(), error);
  if (error) return base::fail(base::Code::internal, "adopt the listener: " + error.message());
  (void)socket.release();
  return std::make_unique<SocketListener>(std::move(descriptor));
}

base::Result<std::unique_ptr<Listener>> listen_tcp(asio::any_io_executor executor,
                                                   std::string const& address,
                                                   std::uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  bool const is_v4 = ::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1;
  if (!is_v4 && ::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) != 1) {
    return base::fail(base::Code::invalid_argument, "listen: not an IP address: " + address);
  }
  os::Fd fd(::socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return base::fail_errno("make a socket");
  int const yes = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0)
    return base::fail_errno("set SO_REUSEADDR");
  // SAFETY: see port_of.
  if (is_v4) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return start(executor,
                 std::move(fd),
                 reinterpret_cast<sockaddr const*>(&v4),
                 sizeof v4,
                 fmt::format("{}:{}", address, port));
  }
  if (::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes) != 0)
    return base::fail_errno("set IPV6_V6ONLY");
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  return start(executor,
               std::move(fd),
               reinterpret_cast<sockaddr const*>(&v6),
               sizeof v6,
               fmt::format("[{}]:{}", address, port));
}

base::Result<std::unique_ptr<Listener>> listen_unix(asio::any_io_executor executor,
                                                    std::string const& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return base::fail(base::Code::invalid_argument, "a socket path has 1 to 107 bytes");
  }
  std::ranges::copy(path, address.sun_path);
  // Only a socket is replaced: a mistyped path must not cost a file.
  struct stat old{};
  if (::lstat(path.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode))
      return base::fail(base::Code::conflict, "listen: a file is in the way", path);
    if (::unlink(path.c_str()) != 0) return base::fail_errno("remove the old socket", path);
  }
  os::Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return base::fail_errno("make a socket");
  // The file gets the mode of the socket at bind(): no moment at which others could connect.
  if (::fchmod(fd.get(), 0660) != 0) return base::fail_errno("set the socket's mode");
  // SAFETY: see port_of.
  auto listener = start(
      executor, std::move(fd), reinterpret_cast<sockaddr const*>(&address), sizeof address, path);
  if (!listener) return base::passing(listener);
  if (::chmod(path.c_str(), 0660) != 0)
    return base::fail_errno("set the socket's mode", path);  // whatever the umask was
  return listener;
}

}  // namespace net
