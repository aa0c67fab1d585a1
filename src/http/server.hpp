#pragma once

#include "async/task.hpp"
#include "http/message.hpp"
#include "net/byte_stream.hpp"

namespace http {

namespace asio = boost::asio;

/// The body of a message as it arrives (content-length or chunked already taken off).
class BodyReader {
 public:
  virtual ~BodyReader() = default;
  /// At least one byte, or 0 at the end of the body.
  virtual async::Task<std::size_t> read_some(std::span<char> into) = 0;
  /// The whole body; `too_large` when it is over `limit` bytes.
  async::Task<std::string> read_all(std::size_t limit);
};

struct Limits {
  std::size_t head_bytes_max = 64 * 1024;
  std::size_t target_bytes_max = 16 * 1024;
  std::chrono::milliseconds head_timeout{
      15'000};  // from the first byte of a request to its last header
  std::chrono::milliseconds idle_timeout{620'000};  // between requests of a kept connection
  std::size_t connections_max = 10'000;             // per Server; one more is closed at once
};

/// One request. Lives as long as its handler runs.
struct Request {
  RequestHead head;
  BodyReader& body;
  net::ByteStream&
      connection;  // for peer_name(); reading or writing it directly is only for upgrade()
  /// A place for whatever the handler keeps from one request of this connection to the next;
  /// destroyed with the connection. Null only for requests that were not made by a Server.
  std::shared_ptr<void>* connection_state = nullptr;
};

/// The answer to one request: either send() once, or begin(), write()…, finish(); or upgrade().
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  /// A whole answer with Content-Length (none for 204/304, no body for HEAD).
  virtual async::Task<void> send(Response response) = 0;
  /// Head of a streamed answer: chunked unless the head carries Content-Length. The head leaves at
  /// once.
  virtual async::Task<void> begin(ResponseHead head) = 0;
  /// One chunk, on the wire when this returns (back-pressure is the socket's).
  virtual async::Task<void> write(std::string_view bytes) = 0;
  virtual async::Task<void> finish() = 0;
  /// Ends when the client has closed its side or broken the connection. For streams that must
  /// notice a reader that left: race() it against the work. Bytes of a next request are kept.
  virtual asio::awaitable<void> wait_client_gone() = 0;
  /// Gives the connection away, with what was read beyond the request's head (the body is not
  /// read): for WebSocket and other upgrades, and for byte-transparent proxying. No answer is
  /// written.
  virtual std::pair<net::Stream, std::string> upgrade() = 0;
  /// True once a head was sent or the connection given away.
  virtual bool started() const noexcept = 0;
};

/// What a server does with a request. Called on the server's loop, many at a time.
class Handler {
 public:
  virtual ~Handler() = default;
  /// An exception, or returning without an answer, becomes a bare 500 (or cuts a begun stream).
  virtual asio::awaitable<void> handle(Request& request, ResponseWriter& response) = 0;
};

/// Serves connections of any number of listeners. Malformed requests get 400 with a JSON body
/// `{"code":400,"message":…}`, an oversized head 431.
class Server {
 public:
  Server(asio::any_io_executor executor, Handler& handler, Limits limits = {});
  ~Server();
  Server(Server const&) = delete;
  Server& operator=(Server const&) = delete;

  /// Starts accepting in the background.
  void listen(std::unique_ptr<net::Listener> listener);
  /// Serves one connection that exists already (e.g. after a TLS handshake); returns when it ended.
  asio::awaitable<void> serve(net::Stream connection);
  /// As serve(), in the background, counted and joined by close().
  void spawn(net::Stream connection);
  /// Stops accepting, gives running requests `grace`, then cuts them.
  asio::awaitable<void> close(std::chrono::milliseconds grace);
  std::size_t connections() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Server-sent events over a begun response.
///   co_await sse_begin(response);  co_await sse_event(response, "17", "sandbox.created", json);
async::Task<void> sse_begin(ResponseWriter& response);
async::Task<void> sse_event(ResponseWriter& response,
                            std::string id,
                            std::string type,
                            std::string data);
/// A comment line, for keeping the connection alive.
async::Task<void> sse_comment(ResponseWriter& response, std::string text);

}  // namespace http
