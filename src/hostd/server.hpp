#pragma once

#include "hostd/host.hpp"

#include <chrono>
#include <vector>

namespace hostd {

/// Answers requests on the socket until `stop` becomes readable. One thread, one request at a time;
/// only end_vmm is answered later, when the machine is gone. A connection whose peer is neither the
/// worker's user nor root is closed unanswered, as is one that sends anything but whole requests.
class Server {
 public:
  /// `signals`: a signalfd of SIGCHLD, SIGTERM, SIGINT.
  Server(Host& host, os::Fd listener, os::Fd signals, uid_t worker);

  base::Result<void> run();

 private:
  struct Connection {
    os::Fd socket;
    std::optional<std::uint32_t> ending;  // the slot whose end its end_vmm waits for
    std::chrono::steady_clock::time_point give_up;
  };

  void accept_all();
  /// False when the connection is over.
  bool serve(Connection& connection);
  bool answer(Connection& connection, Answer const& answer);
  bool go_on_ending(Connection& connection);
  bool take_signals();

  Host& host_;
  os::Fd listener_;
  os::Fd signals_;
  uid_t worker_;
  std::vector<Connection> connections_;
};

}  // namespace hostd
