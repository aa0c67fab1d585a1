#pragma once

#include "async/task.hpp"
#include "os/fd.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace net {

namespace asio = boost::asio;

/// A connected, full-duplex stream of bytes: TCP, Unix, TLS. One reader and one writer at a time.
/// Not a coroutine's value parameters rule: the spans must stay valid until the await ends.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// At least one byte, or 0 at the peer's end of stream.
  virtual async::Task<std::size_t> read_some(std::span<char> into) = 0;
  virtual async::Task<void> write_all(std::span<char const> bytes) = 0;
  /// Half-close: the peer reads end-of-stream, we may still read. TLS: close_notify.
  virtual async::Task<void> shutdown_write() = 0;
  /// At once, both directions; pending operations end with an error. Idempotent.
  virtual void close() noexcept = 0;
  /// For logs and rate limits: "127.0.0.1:5050", "unix:uid=0".
  virtual std::string peer_name() const = 0;
  /// The descriptor below (for pass-through of raw bytes or peer checks); -1 when there is none.
  virtual int native_handle() const noexcept = 0;

  async::Task<void> write_text(std::string_view text) {
    return write_all(std::span<char const>(text.data(), text.size()));
  }
};

using Stream = std::unique_ptr<ByteStream>;

/// Connected socket (TCP or Unix) handed over by somebody else. Takes it; makes it non-blocking.
base::Result<Stream> adopt_socket(asio::any_io_executor executor, os::Fd socket);

/// Like adopt_socket for a socket whose non-blocking connect() is still under way: waits until it
/// is connected; `unavailable` when refused or unreachable.
async::Task<Stream> finish_connect(os::Fd socket);

/// `path` at most 107 bytes.
async::Task<Stream> connect_unix(std::string path);
/// A literal IPv4/IPv6 address, no names (there is no resolver here on purpose).
async::Task<Stream> connect_tcp(std::string address, std::uint16_t port);
/// Resolves with getaddrinfo on the blocking pool. For the command line only.
async::Task<Stream> connect_host(std::string host, std::uint16_t port);

/// A pair of connected in-memory streams for tests.
std::pair<Stream, Stream> make_pipe(asio::any_io_executor executor);

/// Accepts connections; several addresses may be listened on by several Listeners.
class Listener {
 public:
  virtual ~Listener() = default;
  /// Fails with `cancelled` after close(). Transient errors (descriptors exhausted) are retried
  /// inside.
  virtual async::Task<Stream> accept() = 0;
  virtual void close() noexcept = 0;
  /// The bound TCP port, 0 for Unix.
  virtual std::uint16_t port() const noexcept = 0;
};

/// Port 0 takes a free one. SO_REUSEADDR; IPv6 sockets are v6-only.
base::Result<std::unique_ptr<Listener>> listen_tcp(asio::any_io_executor executor,
                                                   std::string const& address,
                                                   std::uint16_t port);
/// Replaces a stale socket file, mode 0660. `path` at most 107 bytes.
base::Result<std::unique_ptr<Listener>> listen_unix(asio::any_io_executor executor,
                                                    std::string const& path);
/// A listening socket passed by somebody else.
base::Result<std::unique_ptr<Listener>> adopt_listener(asio::any_io_executor executor,
                                                       os::Fd socket);

/// The user at the other end of a Unix socket (SO_PEERCRED).
struct PeerUser {
  unsigned uid = 0;
  unsigned gid = 0;
  int pid = 0;
};

base::Result<PeerUser> peer_user(ByteStream const& stream);

/// Copies both ways until both directions ended (half-close respected) or one failed; then closes
/// both. `moved`, if given, is called with the number of bytes after each chunk (either direction).
asio::awaitable<void> relay(ByteStream& a,
                            ByteStream& b,
                            std::function<void(std::size_t)> moved = {});

}  // namespace net
