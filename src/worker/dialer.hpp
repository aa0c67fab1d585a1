#pragma once

#include "async/task.hpp"
#include "hostd/client.hpp"
#include "net/byte_stream.hpp"

namespace worker {

/// What one try to reach a port of a guest came to.
enum class Reached : std::uint8_t {
  connected,
  refused,  // somebody is there and said no: a reset
  slow,     // no answer in time, which says nothing: the guest may be busy, or still booting
  no_host,  // space-hostd could not be asked, or the slot is not there
};

struct DialResult {
  Reached reached = Reached::slow;
  net::Stream stream;  // when connected
};

/// Connections into slots. The sockets are made by space-hostd in the slot's namespace.
class Dialer {
 public:
  explicit Dialer(hostd::Client hostd) : hostd_(std::move(hostd)) {}

  /// The socket with its connect() under way; for those who wait for themselves.
  async::Task<os::Fd> begin(std::uint32_t slot, std::uint16_t port) const;
  boost::asio::awaitable<DialResult> dial(std::uint32_t slot,
                                          std::uint16_t port,
                                          std::chrono::milliseconds patience) const;

 private:
  hostd::Client hostd_;
};

}  // namespace worker
