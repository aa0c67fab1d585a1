#pragma once

#include "net/byte_stream.hpp"
#include "worker/worker.hpp"

#include <set>

namespace worker {

/// dial.sock: hands out sockets into sandboxes, so that the proxy and the API speak to guests
/// themselves and no byte of a guest passes through the worker. Protocol in src/wire/worker.hpp.
class DialServer {
 public:
  DialServer(boost::asio::any_io_executor executor, Worker& worker, std::set<unsigned> allowed);
  void listen(std::unique_ptr<net::Listener> listener);
  boost::asio::awaitable<void> close();

 private:
  boost::asio::awaitable<void> accept(net::Listener* listener);
  boost::asio::awaitable<void> serve(net::Stream connection);
  async::Task<os::Fd> dial(std::string line);

  Worker& worker_;
  std::set<unsigned> allowed_;
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  async::TaskGroup tasks_;
};

}  // namespace worker
