#pragma once

#include "async/task.hpp"
#include "http/message.hpp"
#include "http/server.hpp"
#include "net/byte_stream.hpp"

#include <functional>

namespace http {

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
  explicit Connection(net::Stream stream);
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

  /// May this connection carry another request?
  bool reusable() const noexcept;
  net::ByteStream& stream() noexcept;
  void close() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
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
  async::Task<Response> request(RequestHead head, std::string body, base::Deadline deadline, std::size_t limit = 16 << 20);

  /// For streamed answers: a connection of its own; the Exchange owns it.
  async::Task<std::unique_ptr<Exchange>> stream(RequestHead head, std::string body, base::Deadline head_deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace http
