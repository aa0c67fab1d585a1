#include "worker/dialer.hpp"

#include "vmm/descriptor.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace worker {

namespace asio = boost::asio;

namespace {

asio::awaitable<void> wait_writable(vmm::Descriptor* socket) {
  co_await socket->wait_writable();
}

/// A refusal that came while connect() still ran was that call's result, and is no more to be read
/// as SO_ERROR.
bool is_connected(os::FdRef socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  // SAFETY: the socket calls take any address type through sockaddr*; `size` is its length.
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0;
}

}  // namespace

async::Task<os::Fd> Dialer::begin(std::uint32_t slot, std::uint16_t port) const {
  co_return co_await async::blocking(
      [client = hostd_, slot, port] { return client.dial(slot, port); });
}

asio::awaitable<DialResult> Dialer::dial(std::uint32_t slot,
                                         std::uint16_t port,
                                         std::chrono::milliseconds patience) const {
  auto const deadline = base::system_clock().in(patience);
  auto socket = co_await begin(slot, port);
  if (!socket) co_return DialResult{Reached::no_host, nullptr};
  auto executor = co_await asio::this_coro::executor;
  auto const fd = os::FdRef(*socket);
  int error = 0;
  {
    auto copy = socket->duplicate();
    if (!copy) co_return DialResult{Reached::no_host, nullptr};
    auto watched = vmm::Descriptor::adopt(executor, std::move(*copy));
    if (!watched) co_return DialResult{Reached::no_host, nullptr};
    auto const ended = co_await async::run_until(deadline, wait_writable(&*watched));
    if (ended != async::Ended::finished) co_return DialResult{Reached::slow, nullptr};
    socklen_t size = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  if (error == 0 && !is_connected(fd)) error = ECONNREFUSED;
  if (error == ECONNREFUSED || error == ECONNRESET) co_return DialResult{Reached::refused, nullptr};
  if (error != 0) co_return DialResult{Reached::slow, nullptr};
  auto stream = net::adopt_socket(executor, std::move(*socket));
  if (!stream) co_return DialResult{Reached::no_host, nullptr};
  co_return DialResult{Reached::connected, std::move(*stream)};
}

}  // namespace worker
