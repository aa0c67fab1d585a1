#include "base/log.hpp"
#include "gateway/control.hpp"

#include <fcntl.h>

// Started by space-hostd with its sockets as descriptors 3 to 7 and no arguments: see src/gateway/control.hpp.
int main() {
  base::log::configure("space-gateway", base::log::Level::info);
  gateway::Sockets sockets;
  sockets.control = os::Fd(3);
  sockets.tcp = os::Fd(4);
  sockets.dns_datagram = os::Fd(5);
  sockets.dns_stream = os::Fd(6);
  if (::fcntl(7, F_GETFD) >= 0) sockets.broker = os::Fd(7);
  auto shared = std::make_shared<gateway::Sockets>(std::move(sockets));
  return async::run_main([shared] { return gateway::run_gateway(std::move(*shared)); });
}
