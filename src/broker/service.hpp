#pragma once

#include "async/task.hpp"
#include "broker/vault.hpp"
#include "http/server.hpp"
#include "wire/config.hpp"

namespace broker {

/// The sockets around a Vault: `broker.sock` (HTTP, for the API and the worker;
/// wire/credential.hpp) and `use.sock` (JSON lines, for gateways, which are told apart by the user
/// id that the kernel vouches for).
class Service final : public http::Handler {
 public:
  Service(boost::asio::any_io_executor executor,
          Vault& vault,
          unsigned api_uid,
          unsigned worker_uid);
  ~Service() override;

  base::Result<void> listen(std::string const& broker_socket, std::string const& use_socket);
  boost::asio::awaitable<void> handle(http::Request& request,
                                      http::ResponseWriter& response) override;
  boost::asio::awaitable<void> close();

 private:
  boost::asio::awaitable<void> accept_gateways();
  boost::asio::awaitable<void> serve_gateway(std::shared_ptr<net::ByteStream> gateway);
  struct Held;
  bool answer_line(unsigned uid, std::string_view line, std::string& answers, Held& held);
  base::Result<http::Response> answer(unsigned uid,
                                      http::RequestHead const& head,
                                      std::string const& body);

  boost::asio::any_io_executor executor_;
  Vault& vault_;
  unsigned api_uid_;
  unsigned worker_uid_;
  http::Server server_;
  std::unique_ptr<net::Listener> gateways_;
  std::map<unsigned, std::weak_ptr<net::ByteStream>> connected_;  // by a gateway's user id
  async::TaskGroup tasks_;
};

/// Locks memory against swap, forbids core dumps and being traced. Before the first secret is read.
base::Result<void> harden();

boost::asio::awaitable<int> run_broker(wire::Config config);

}  // namespace broker
