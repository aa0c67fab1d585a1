#pragma once

#include "net/byte_stream.hpp"
#include "wire/worker.hpp"

namespace proxy {

namespace asio = boost::asio;

/// Opens connections to ports of guests. The sockets are made by the host's privileged program
/// inside the sandbox's network and come over the worker's dial socket as descriptors; the guest
/// never sees an address of ours, and we never have one of its.
class Dialer {
 public:
  /// How long a dial waits for a worker that is being restarted: as long as a create does.
  static constexpr std::chrono::milliseconds worker_return_max{15'000};

  Dialer(asio::any_io_executor executor,
         std::string default_socket,
         std::chrono::milliseconds worker_return = worker_return_max);
  ~Dialer();
  Dialer(Dialer const&) = delete;
  Dialer& operator=(Dialer const&) = delete;

  /// One attempt. `worker` is the directory of that worker's sockets; "" is the only one of this
  /// host. Errors: not_found, conflict (another life of the sandbox), exhausted as the worker says
  /// them; denied when the guest refused the connection or did not answer in time (nothing listens
  /// there); unavailable when the worker cannot be asked.
  async::Task<net::Stream> dial(std::string worker, wire::DialRequest request);

  /// A refused connection is tried again over a second: hides that a server in the guest is just
  /// starting. A worker that cannot be asked is asked again for `worker_return`: hides its restart,
  /// as a dial changes nothing and no byte of the visitor's has been sent.
  async::Task<net::Stream> dial_patiently(std::string worker, wire::DialRequest request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace proxy
