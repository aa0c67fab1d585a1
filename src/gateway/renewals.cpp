#include "gateway/gateway.hpp"
#include "os/packet_socket.hpp"

#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

namespace gateway {
namespace {

constexpr std::chrono::milliseconds packet_timeout(1'000);

asio::awaitable<void> wait_readable(asio::posix::stream_descriptor* descriptor) {
  auto const [error] = co_await descriptor->async_wait(asio::posix::stream_descriptor::wait_read,
                                                       asio::as_tuple(asio::use_awaitable));
  static_cast<void>(error);  // the read that follows says it too
}

/// One packet with one descriptor; nothing for anything else.
asio::awaitable<os::Fd> receive_one(asio::any_io_executor executor, os::Fd peer) {
  auto const user = os::peer_user(peer);
  if (!user || *user != 0) co_return os::Fd();
  asio::posix::stream_descriptor descriptor(executor, peer.release());
  auto const ended = co_await async::run_until(base::system_clock().in(packet_timeout),
                                               wait_readable(&descriptor));
  if (ended != async::Ended::finished) co_return os::Fd();
  std::byte word{};
  auto packet = os::receive_packet(os::FdRef(descriptor.native_handle()), std::span(&word, 1));
  if (!packet || packet->truncated || packet->fds.size() != 1) co_return os::Fd();
  co_return std::move(packet->fds[0]);
}

}  // namespace

asio::awaitable<void> take_renewals(Gateway& gateway, os::Fd listener) {
  asio::posix::stream_descriptor descriptor(gateway.executor(), listener.release());
  while (true) {
    auto const [error] = co_await descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                                        asio::as_tuple(asio::use_awaitable));
    if (error) co_return;
    os::Fd peer(
        ::accept4(descriptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) continue;
    auto broker = co_await receive_one(gateway.executor(), std::move(peer));
    if (!broker) continue;
    auto stream = net::adopt_socket(gateway.executor(), std::move(broker));
    if (stream) gateway.broker()->renew(std::move(*stream));
  }
}

}  // namespace gateway
