#pragma once

#include "async/task.hpp"
#include "net/byte_stream.hpp"
#include "wire/credential.hpp"

namespace gateway {

/// Asks the broker for one request's header. One question at a time over one connection that
/// space-hostd made for this gateway; the broker knows us by our user id.
class BrokerClient {
 public:
  BrokerClient(boost::asio::any_io_executor executor, net::Stream stream)
      : turn_(std::move(executor)), stream_(std::move(stream)) {}

  /// `unavailable` when the broker is gone or silent, `denied` / `not_found` when it refuses. Fails
  /// closed: no header, no request.
  async::Task<wire::Used> use(wire::Use request, base::Deadline deadline);

 private:
  async::Task<std::string> ask(std::string line);

  async::Turnstile turn_;
  net::Stream stream_;
  std::string received_;
};

}  // namespace gateway
