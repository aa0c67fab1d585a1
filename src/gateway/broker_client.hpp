#pragma once

#include "async/task.hpp"
#include "net/byte_stream.hpp"
#include "wire/credential.hpp"

namespace gateway {

/// Asks the broker for one request's header. One question at a time over one connection that
/// space-hostd made for this gateway; the broker knows us by our user id.
class BrokerClient {
 public:
  /// Perhaps without a connection at first: see renew().
  explicit BrokerClient(boost::asio::any_io_executor executor, net::Stream stream = nullptr)
      : turn_(executor), changed_(std::move(executor)), stream_(std::move(stream)) {}

  /// `unavailable` when the broker is gone or silent, `denied` / `not_found` when it refuses. Fails
  /// closed: no header, no request.
  async::Task<wire::Used> use(wire::Use request, base::Deadline deadline);

  /// Takes the place of the former connection; a question that is under way there fails.
  boost::asio::awaitable<void> renew(net::Stream stream);

  bool connected() const noexcept { return stream_ != nullptr; }

  /// Returns when there is no connection (any more), also when nobody asks anything.
  boost::asio::awaitable<void> wait_lost();
  boost::asio::awaitable<void> wait_connected();

 private:
  class Question;

  async::Task<std::string> ask(std::string line);

  void lose() noexcept;

  async::Turnstile turn_;
  async::Signal changed_;
  net::Stream stream_;
  bool asking_ = false;
  std::string received_;
};

}  // namespace gateway
