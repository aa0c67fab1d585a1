#include "base/log.hpp"
#include "gateway/control.hpp"

#include <sys/prctl.h>

#include <csignal>

#include <fcntl.h>

// Started by space-hostd with its sockets as descriptors 5 to 10 and no arguments: see
// src/gateway/control.hpp.
int main() {
  base::log::configure("space-gateway", base::log::Level::info);
  // There is one of us per sandbox: a heap of one megabyte must not become a page of two.
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  std::signal(SIGPIPE, SIG_IGN);  // the log's reader may go and come back
  gateway::Sockets sockets;
  sockets.control = os::Fd(5);
  sockets.tcp = os::Fd(6);
  sockets.dns_datagram = os::Fd(7);
  sockets.dns_stream = os::Fd(8);
  sockets.renewals = os::Fd(9);
  if (::fcntl(10, F_GETFD) >= 0) sockets.broker = os::Fd(10);
  auto shared = std::make_shared<gateway::Sockets>(std::move(sockets));
  return async::run_main([shared] { return gateway::run_gateway(std::move(*shared)); });
}
