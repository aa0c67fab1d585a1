#include "controlplane/api.hpp"

#include "base/id.hpp"
#include "base/log.hpp"

#include <unistd.h>

namespace controlplane {
namespace {

SandboxService::Options service_options() {
  SandboxService::Options options;
  options.instance = fmt::format("api-{}-{}", ::getpid(), base::random_hex(6));
  return options;
}

NetworkService::Options network_options(wire::Config const& config) {
  NetworkService::Options options;
  options.has_uplink = config.uplink != "none";
  return options;
}

Native::Options native_options(wire::Config const& config) {
  Native::Options options;
  options.domain = config.domain;
  return options;
}

e2b::E2b::Options e2b_options(wire::Config const& config) {
  e2b::E2b::Options options;
  options.domain = config.domain;
  return options;
}

Front::Options front_options(wire::Config const& config) {
  Front::Options options;
  options.cors_origins = config.cors_origins;
  options.rate.per_second = config.requests_per_second_max;
  options.rate.burst = 2.0 * config.requests_per_second_max;
  return options;
}

}  // namespace

struct Api::Door final : http::Handler {
  Door(Peers const& peers, Front& front) : peers_(peers), front_(front) {}

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override {
    if (peers_.admits(request.connection)) {
      co_await front_.handle(request, response);
      co_return;
    }
    base::Error const error{base::Code::denied, "this socket is for the proxy"};
    (void)(co_await response.send(render_error(Dialect::native, error, {}))).has_value();
  }

  Peers const& peers_;
  Front& front_;
};

void add_all_routes(Router& router,
                    Native& native,
                    MetricsRoutes& metrics,
                    PolicyRoutes& policies,
                    CredentialRoutes& credentials,
                    e2b::E2b& e2b) {
  native.add_routes(router);
  metrics.add_routes(router);
  policies.add_routes(router);
  credentials.add_routes(router);
  e2b.add_routes(router);
}

Api::Api(asio::any_io_executor executor,
         wire::Config const& config,
         store::DatabaseOptions database,
         Tokens tokens)
    : executor_(executor),
      config_(config),
      tokens_(std::move(tokens)),
      store_(executor, std::move(database)),
      workers_(executor),
      guests_(executor, config.proxy_socket()),
      nodes_(store_, workers_),
      hub_(executor, store_.events),
      audit_(store_.keys),
      network_(executor, store_, workers_, network_options(config)),
      service_(executor, store_, nodes_, workers_, hub_, tokens_, network_, service_options()),
      native_(service_, store_, nodes_, workers_, hub_, guests_, native_options(config)),
      metrics_(nodes_, workers_),
      policies_(service_, network_, store_, workers_),
      credentials_(network_, store_, executor, config.broker_socket()),
      quarantine_(nodes_, workers_, store_, network_),
      e2b_(service_, store_, executor, config.broker_socket(), e2b_options(config)),
      front_(router_, store_, audit_, front_options(config)),
      public_peers_({config.proxy_user}),
      door_(std::make_unique<Door>(public_peers_, front_)),
      internal_(service_, store_, hub_, Peers({config.proxy_user, config.controller_user})),
      public_server_(executor, *door_),
      internal_server_(executor, internal_),
      loops_(executor) {
  add_all_routes(router_, native_, metrics_, policies_, credentials_, e2b_);
}

Api::~Api() = default;

base::Result<void> Api::listen() {
  auto internal = net::listen_unix(executor_, config_.internal_socket());
  if (!internal) return base::passing(internal, "listen for the proxy's questions");
  internal_server_.listen(std::move(*internal));
  auto open = net::listen_unix(executor_, config_.api_socket());
  if (!open) return base::passing(open, "listen");
  public_server_.listen(std::move(*open));
  return {};
}

async::Task<void> Api::run() {
  loops_.spawn("read events", hub_.run());
  loops_.spawn("watch nodes", nodes_.run());
  loops_.spawn("renew leases", service_.renew_leases());
  loops_.spawn("finish policies", network_.finish_recent());
  loops_.spawn("quarantine", quarantine_.run());
  loops_.spawn("write key uses", audit_.run());
  auto listening = listen();
  if (listening) {
    base::log::info("serving",
                    {{"socket", config_.api_socket()}, {"routes", router_.routes().size()}});
    async::Signal never(executor_);
    co_await asio::this_coro::throw_if_cancelled(false);
    try {
      co_await never.wait();
    } catch (boost::system::system_error const&) {
      base::log::info("ending");
    }
  }
  // What follows has to run although we were cancelled.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  auto closing = close();
  co_await std::move(closing);
  co_return listening;
}

asio::awaitable<void> Api::close() {
  co_await public_server_.close(std::chrono::seconds(2));
  co_await internal_server_.close(std::chrono::milliseconds(100));
  co_await service_.close();
  co_await network_.close();
  loops_.cancel();
  co_await loops_.join();
  co_await async::run_until(base::system_clock().in(std::chrono::seconds(2)), audit_.flush());
  co_await store_.database.close();
}

}  // namespace controlplane
