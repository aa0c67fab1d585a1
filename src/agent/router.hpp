#pragma once

#include "agent/connect_rpc.hpp"
#include "agent/context.hpp"

#include <vector>

namespace agent {

/// Port 49983: health, metrics, environment, /init, /files and the RPC services. Checks the access
/// token of everything but /health, /init (which has its own key), /metrics (token or that key) and
/// /files (token or signature: checked there).
class Router final : public http::Handler {
 public:
  /// All given objects outlive the router. `files` answers GET and POST /files; `init` POST /init.
  Router(Context& context,
         std::vector<RpcService*> services,
         http::Handler& files,
         http::Handler& init);

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

 private:
  asio::awaitable<void> handle_rpc(http::Request& request, http::ResponseWriter& response);
  bool token_ok(http::RequestHead const& head) const;
  /// The worker, which after its restart knows the init key but no token. It asks /metrics, and is
  /// believed for nothing else: what the key opens is what a stolen one opens.
  bool is_host(http::RequestHead const& head) const;
  http::Response plain_get(std::string_view path) const;

  Context& context_;
  std::vector<RpcService*> services_;
  http::Handler& files_;
  http::Handler& init_;
};

}  // namespace agent
