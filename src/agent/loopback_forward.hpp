#pragma once

#include "async/task.hpp"
#include "net/byte_stream.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

/// Servers that listen on the guest's loopback alone (`localhost:3000`, as development servers do)
/// are reached by the sandbox's host names, too: for each such port the agent listens on the
/// guest's outer address and carries the connections in.
namespace agent {

namespace asio = boost::asio;

/// Ports with a listener on loopback and none on any other address, and the loopback address to
/// dial. The texts are those of /proc/net/tcp and tcp6; what is no line of theirs is read over. A
/// port in `ours` is judged by its loopback listener alone, for the other one is our own.
std::map<std::uint16_t, std::string> loopback_only_ports(
    std::string_view tcp, std::string_view tcp6, std::function<bool(std::uint16_t)> const& ours);

/// Whether any program runs in the machine that this process is the first of: whatever has lost its
/// parent is its child, so without children there is nobody.
bool has_children();

/// Looks every second, as the hosted service's daemon does; a server that moves from loopback to
/// all addresses finds its port taken for as long. Owned by the agent; awaited close() before
/// destruction.
class LoopbackForwarder {
 public:
  struct Options {
    std::string address = "192.0.2.2";
    std::string tcp_file = "/proc/net/tcp";
    std::string tcp6_file = "/proc/net/tcp6";
    std::chrono::milliseconds every{1000};
    /// While it says no, nobody listens and the tables, which cost the most of a look, are not
    /// read.
    std::function<bool()> anybody = {};
  };

  static constexpr std::size_t ports_max = 64;
  static constexpr std::size_t connections_max = 256;

  LoopbackForwarder(asio::any_io_executor executor, Options options);
  ~LoopbackForwarder();
  LoopbackForwarder(LoopbackForwarder const&) = delete;
  LoopbackForwarder& operator=(LoopbackForwarder const&) = delete;

  void start();
  /// Stops listening, cuts the connections and joins all tasks.
  asio::awaitable<void> close();

 private:
  struct Forward;

  asio::awaitable<void> look_again_and_again();
  void refresh();
  asio::awaitable<void> accept_all(std::shared_ptr<Forward> forward);
  asio::awaitable<void> carry(net::Stream outside, std::string address, std::uint16_t port);

  asio::any_io_executor executor_;
  Options options_;
  std::map<std::uint16_t, std::shared_ptr<Forward>> forwards_;
  std::size_t connections_ = 0;
  async::TaskGroup tasks_;
};

}  // namespace agent
