#pragma once

#include "http/server.hpp"
#include "tls/tls.hpp"

namespace proxy {

namespace asio = boost::asio;

/// Lets only connections of these users through; the others are closed without a word. For Unix
/// sockets.
std::unique_ptr<net::Listener> only_users(std::unique_ptr<net::Listener> listener,
                                          std::vector<unsigned> users);

/// Takes raw connections, shakes hands in the background (bounded in time and number) and hands the
/// encrypted streams to a server. The owner awaits close() before destruction.
class TlsDoor {
 public:
  TlsDoor(asio::any_io_executor executor,
          std::shared_ptr<tls::ServerContext> context,
          http::Server& server);

  void listen(std::unique_ptr<net::Listener> listener);
  asio::awaitable<void> close();

 private:
  asio::awaitable<void> accept_from(net::Listener* listener);
  asio::awaitable<void> shake_hands(net::Stream raw);

  std::shared_ptr<tls::ServerContext> context_;
  http::Server& server_;
  std::vector<std::unique_ptr<net::Listener>> listeners_;
  async::TaskGroup acceptors_;
  async::TaskGroup handshakes_;
};

}  // namespace proxy
