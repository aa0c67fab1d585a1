#pragma once

#include "async/task.hpp"
#include "http/message.hpp"
#include "http/server.hpp"
#include "net/byte_stream.hpp"

#include <functional>

namespace http {

struct ClientLimits {
  std::size_t head_bytes_max = 64 * 1024;
  int interim_answers_max = 16;
};

/// One response whose body is still on its way.
class Exchange {
 public:
  virtual ~Exchange() = default;
  ResponseHead head;
  virtual BodyReader& body() = 0;
};

/// Requests over one connection, one after the other. Used directly for streams and uploads.
class Connection {
 public:
  explicit Connection(net::Stream stream, ClientLimits limits = {});
  ~Connection();
  Connection(Connection&&) noexcept;
  Connection& operator=(Connection&&) noexcept;

  /// Sends a whole request and returns once the response's head is here. Adds Host (if absent) and
  /// Content-Length. The Exchange must be read to its end (or destroyed) before the next request.
  async::Task<std::unique_ptr<Exchange>> start(RequestHead head, std::string body);

  /// Streams a request body: begin → write… → finish_request → the response.
  /// Chunked unless the head carries Content-Length.
  async::Task<void> begin(RequestHead head);
  async::Task<void> write(std::string_view bytes);
  async::Task<std::unique_ptr<Exchange>> finish_request();
  /// For those who read the answer while they still write: end_request() ends the body, response()
  /// waits for the head of the answer (interim 1xx answers are read over). One task may write while
  /// another one reads.
  async::Task<void> end_request();
  async::Task<std::unique_ptr<Exchange>> response();
  /// After a 101 answer: what came behind its head. From then on stream() is the caller's.
  std::string take_unread();

  /// May this connection carry another request? False when the peer has closed it or sent bytes
  /// nobody asked for.
  bool reusable() const noexcept;
  /// Has any byte of an answer to the latest request arrived?
  bool heard_anything() const noexcept;
  net::ByteStream& stream() noexcept;
  void close() noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the Exchange under way
};

/// Whole requests to one server over kept-alive connections, at most `connections_max` at a time.
/// A request on a kept connection that the server closed before any byte of an answer is sent again
/// once on a new connection if its method is GET, HEAD, PUT or DELETE; POST never.
class Client {
 public:
  using Connect = std::function<async::Task<net::Stream>()>;
  Client(asio::any_io_executor executor, Connect connect, std::size_t connections_max = 32);
  ~Client();

  /// `deadline` bounds the whole exchange, connecting included. Body at most `limit` bytes.
  async::Task<Response> request(RequestHead head,
                                std::string body,
                                base::Deadline deadline,
                                std::size_t limit = 16 << 20);

  /// For streamed answers: a connection of its own; the Exchange owns it.
  async::Task<std::unique_ptr<Exchange>> stream(RequestHead head,
                                                std::string body,
                                                base::Deadline head_deadline);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // a request that is under way keeps it
};

}  // namespace http
