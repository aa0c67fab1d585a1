#pragma once

#include "controlplane/audit.hpp"
#include "controlplane/cors.hpp"
#include "controlplane/rate_limit.hpp"
#include "controlplane/router.hpp"
#include "store/store.hpp"

/// What every public request goes through before and after its handler: request id, CORS, route,
/// key, rate limit, permission, body limit, Idempotency-Key, error rendering, audit. Any failure
/// has a body in the dialect of its path.
namespace controlplane {

class Front final : public http::Handler {
 public:
  struct Options {
    std::vector<std::string> cors_origins{"*"};
    RateLimit::Rate rate;  // per key
    std::chrono::milliseconds statement_time{
        10'000};                                  // a handler's deadline for everything but waiting
    std::chrono::milliseconds body_time{60'000};  // a whole body that is read here
  };

  Front(Router const& router, store::Store& store, Audit& audit, Options options);

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

 private:
  struct Exchange;
  async::Task<Reply> answer(Exchange& exchange);
  async::Task<void> admit(Exchange& exchange);
  async::Task<void> read_body(Exchange& exchange);
  async::Task<Reply> run_once(Exchange& exchange);
  async::Task<Reply> run_handler(Exchange& exchange);
  asio::awaitable<void> keep_answer(Exchange& exchange, base::Result<Reply> const& reply);
  asio::awaitable<void> send(Exchange& exchange, base::Result<Reply> reply);
  void record(Exchange const& exchange, int status);

  Router const& router_;
  store::Store& store_;
  Audit& audit_;
  Options options_;
  Cors cors_;
  RateLimit rate_limit_;
};

/// The key of a request: `Authorization: Bearer KEY`, else `X-API-Key: KEY`; nothing when there is
/// none.
std::optional<std::string> key_of(http::Headers const& headers);

/// One error in the given dialect.
http::Response render_error(Dialect dialect,
                            base::Error const& error,
                            std::string const& request_id);

}  // namespace controlplane
