#include "net/byte_stream.hpp"

namespace net {
namespace {

constexpr std::size_t relay_bytes = 32 * 1024;

/// One direction. A failure closes both streams, which ends the other direction too.
asio::awaitable<void> pump(ByteStream* from,
                           ByteStream* to,
                           std::function<void(std::size_t)> const* moved) {
  std::vector<char> buffer(relay_bytes);
  bool failed = false;
  for (;;) {
    auto const count = co_await from->read_some(buffer);
    failed = !count;
    if (failed || *count == 0) break;
    auto const written = co_await to->write_all(std::span<char const>(buffer.data(), *count));
    failed = !written;
    if (failed) break;
    if (*moved) (*moved)(*count);
  }
  if (!failed) failed = !co_await to->shutdown_write();
  if (failed) {
    from->close();
    to->close();
  }
}

}  // namespace

asio::awaitable<void> relay(ByteStream& a, ByteStream& b, std::function<void(std::size_t)> moved) {
  async::TaskGroup group(co_await asio::this_coro::executor);
  group.spawn("relay", pump(&a, &b, &moved));
  std::exception_ptr thrown;
  try {
    co_await pump(&b, &a, &moved);
  } catch (...) {  // cancelled: the other direction must end before we leave
    thrown = std::current_exception();
  }
  if (thrown) {
    a.close();
    b.close();
    group.cancel();
  }
  auto const throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await group.join();
  co_await asio::this_coro::throw_if_cancelled(throws);
  a.close();
  b.close();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace net
