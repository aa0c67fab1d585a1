#include "base/assert.hpp"
#include "net/byte_stream.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <fcntl.h>

namespace net {
namespace {

using Socket = asio::generic::stream_protocol::socket;
constexpr auto as_result = asio::as_tuple(asio::use_awaitable);

base::Error error_of(boost::system::error_code const& error, std::string_view step) {
  if (error == asio::error::operation_aborted) {
    return {base::Code::cancelled, fmt::format("{}: cancelled", step)};
  }
  return {base::Code::unavailable, fmt::format("{}: {}", step, error.message())};
}

std::string name_of_unix_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "unix";
  return fmt::format("unix:uid={}", peer.uid);
}

std::string name_of_peer(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  // SAFETY: the socket calls take any address type through sockaddr*; `size` says how much was
  // written.
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket, any, &size) != 0) return "unknown";
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    auto const* v4 = reinterpret_cast<sockaddr_in const*>(&address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), ntohs(v4->sin_port));
  }
  if (address.ss_family == AF_INET6) {
    auto const* v6 = reinterpret_cast<sockaddr_in6 const*>(&address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6->sin6_port));
  }
  return name_of_unix_peer(socket);
}

class SocketStream final : public ByteStream {
 public:
  explicit SocketStream(Socket socket) : socket_(std::move(socket)) {}

  async::Task<std::size_t> read_some(std::span<char> into) override {
    auto [error, count] =
        co_await socket_.async_read_some(asio::buffer(into.data(), into.size()), as_result);
    if (error == asio::error::eof) co_return std::size_t{0};
    if (error) co_return std::unexpected(error_of(error, "read"));
    co_return count;
  }

  async::Task<void> write_all(std::span<char const> bytes) override {
    while (!bytes.empty()) {
      // Most of what is written fits in the socket's buffer: no turn of the loop for that.
      if (auto const now = send_now(bytes); now > 0) {
        bytes = bytes.subspan(now);
        continue;
      }
      auto [error, count] =
          co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), as_result);
      if (error) co_return std::unexpected(error_of(error, "write"));
      bytes = bytes.subspan(count);
    }
    co_return base::Result<void>();
  }

  async::Task<void> shutdown_write() override {
    boost::system::error_code error;
    socket_.shutdown(asio::socket_base::shutdown_send, error);
    if (error) co_return std::unexpected(error_of(error, "shut down"));
    co_return base::Result<void>();
  }

  void close() noexcept override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  std::string peer_name() const override {
    return peer_name_.empty() ? name_of_peer(native_handle()) : peer_name_;
  }

  int native_handle() const noexcept override {
    // asio's native_handle() is not const although it changes nothing.
    return socket_.is_open() ? const_cast<Socket&>(socket_).native_handle() : -1;
  }

  void remember_peer() { peer_name_ = name_of_peer(native_handle()); }

  Socket& socket() { return socket_; }

 private:
  /// 0: not now, or never; a write that waits says which.
  std::size_t send_now(std::span<char const> bytes) {
    auto const sent =
        ::send(native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent > 0 ? static_cast<std::size_t>(sent) : 0;
  }

  Socket socket_;
  std::string peer_name_;
};

base::Result<Socket> wrap(asio::any_io_executor const& executor, os::Fd fd) {
  int domain = 0;
  int type = 0;
  socklen_t size = sizeof(int);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    return base::fail_errno("look at the socket");
  }
  if (type != SOCK_STREAM || (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX)) {
    return base::fail(base::Code::invalid_argument, "not a TCP or Unix stream socket");
  }
  int const flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return base::fail_errno("make the socket non-blocking");
  }
  if (domain != AF_UNIX) {
    int const yes = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  Socket socket(executor);
  boost::system::error_code error;
  socket.assign(
      asio::generic::stream_protocol(domain, domain == AF_UNIX ? 0 : IPPROTO_TCP), fd.get(), error);
  if (error) return base::fail(base::Code::internal, "adopt the socket: " + error.message());
  (void)fd.release();
  return socket;
}

base::Result<os::Fd> start_connect(int domain, sockaddr const* address, socklen_t size) {
  os::Fd fd(::socket(domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return base::fail_errno("make a socket");
  if (::connect(fd.get(), address, size) == 0 || errno == EINPROGRESS) return fd;
  if (errno == EAGAIN)
    return base::fail(base::Code::exhausted, "connect: the server's queue is full");
  return base::fail(
      base::Code::unavailable,
      fmt::format("connect: {}",
                  boost::system::error_code(errno, boost::system::system_category()).message()));
}

base::Result<os::Fd> start_connect_unix(std::string const& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return base::fail(base::Code::invalid_argument, "a socket path has 1 to 107 bytes");
  }
  std::ranges::copy(path, address.sun_path);
  // SAFETY: see name_of_peer.
  return start_connect(AF_UNIX, reinterpret_cast<sockaddr const*>(&address), sizeof address);
}

}  // namespace

base::Result<Stream> adopt_socket(asio::any_io_executor executor, os::Fd socket) {
  auto wrapped = wrap(executor, std::move(socket));
  if (!wrapped) return base::passing(wrapped);
  auto stream = std::make_unique<SocketStream>(std::move(*wrapped));
  stream->remember_peer();
  return stream;
}

async::Task<Stream> finish_connect(os::Fd socket) {
  auto executor = co_await asio::this_coro::executor;
  auto wrapped = wrap(executor, std::move(socket));
  if (!wrapped) co_return base::passing(wrapped);
  auto stream = std::make_unique<SocketStream>(std::move(*wrapped));
  auto [error] = co_await stream->socket().async_wait(asio::socket_base::wait_write, as_result);
  if (error) co_return std::unexpected(error_of(error, "connect"));
  int failure = 0;
  socklen_t size = sizeof failure;
  if (::getsockopt(stream->native_handle(), SOL_SOCKET, SO_ERROR, &failure, &size) != 0)
    failure = errno;
  if (failure != 0) {
    auto const why = boost::system::error_code(failure, boost::system::system_category());
    co_return std::unexpected(error_of(why, "connect"));
  }
  stream->remember_peer();
  co_return stream;
}

async::Task<Stream> connect_unix(std::string path) {
  // A full accept queue of a Unix socket refuses at once where TCP would wait: so we wait, up to a
  // second.
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto fd = start_connect_unix(path);
    if (fd) co_return co_await finish_connect(std::move(*fd));
    if (fd.error().code() != base::Code::exhausted) co_return base::passing(fd);
    co_await async::sleep_for(std::chrono::milliseconds(10));
  }
  co_return base::fail(base::Code::unavailable, "connect: the server's queue stayed full", path);
}

async::Task<Stream> connect_tcp(std::string address, std::uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  base::Result<os::Fd> fd;
  // SAFETY: see name_of_peer.
  if (::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    fd = start_connect(AF_INET, reinterpret_cast<sockaddr const*>(&v4), sizeof v4);
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    fd = start_connect(AF_INET6, reinterpret_cast<sockaddr const*>(&v6), sizeof v6);
  } else {
    co_return base::fail(base::Code::invalid_argument, "connect: not an IP address: " + address);
  }
  if (!fd) co_return base::passing(fd);
  co_return co_await finish_connect(std::move(*fd));
}

base::Result<PeerUser> peer_user(ByteStream const& stream) {
  ucred peer{};
  socklen_t size = sizeof peer;
  int domain = 0;
  socklen_t domain_size = sizeof domain;
  int const fd = stream.native_handle();
  // A TCP socket answers SO_PEERCRED too, with nonsense.
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_size) != 0 || domain != AF_UNIX) {
    return base::fail(base::Code::denied, "not a Unix socket: its peer's user is unknown");
  }
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return base::fail_errno("ask for the peer's user");
  return PeerUser{.uid = peer.uid, .gid = peer.gid, .pid = peer.pid};
}

}  // namespace net
