#pragma once

#include "http/client.hpp"
#include "proxy/visits.hpp"

namespace proxy {

namespace asio = boost::asio;

/// The API's word on where a sandbox is and who may reach it, asked anew for every request.
class Routes {
 public:
  Routes(asio::any_io_executor executor, std::string internal_socket);

  /// Errors: not_found; unavailable when the API gives no usable answer.
  async::Task<wire::Route> of_sandbox(std::string sandbox);
  async::Task<wire::Route> of_token(std::string token_sha256);

  /// Follows the API's stream of changes and cuts the visits that a change ends; connects again for
  /// ever, and after each connect re-checks every sandbox that has visits. Ends only by
  /// cancellation.
  asio::awaitable<void> follow(Visits& visits);

 private:
  async::Task<wire::Route> ask(std::string target);
  async::Task<void> follow_once(Visits& visits, bool* connected);
  asio::awaitable<void> recheck(Visits& visits);

  http::Client client_;
};

}  // namespace proxy
