#include "base/log.hpp"
#include "worker/api.hpp"
#include "worker/dial_server.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>

/// space-worker --config FILE: the brain of one host, as its own unprivileged user.
namespace {

namespace asio = boost::asio;

/// Sandboxes cost a few descriptors each; the default of 1024 would be the first thing to run out.
void raise_limits() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0) base::log::warn("descriptor_limit_stays", {});
  }
  // Tokens and init keys are in memory.
  rlimit const none{};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) base::log::warn("core_limit_stays", {});
}

/// Everything that a worker is; the last ones serve, and end first.
struct Parts {
  Parts(asio::any_io_executor executor, wire::Config const& config)
      : worker(executor, config),
        api(worker, worker::allowed_users(config)),
        dials(executor, worker, worker::allowed_users(config)),
        server(executor, api) {}

  worker::Worker worker;
  worker::Api api;
  worker::DialServer dials;
  http::Server server;
};

/// Nobody is answered before everything of a former life is found again.
async::Task<void> serve(Parts* parts, wire::Config config) {
  auto opened = co_await parts->worker.open();
  if (!opened) co_return opened;
  auto executor = co_await asio::this_coro::executor;
  auto http_listener = net::listen_unix(executor, config.worker_socket());
  if (!http_listener) co_return base::passing(http_listener, "listen on worker.sock");
  auto dial_listener = net::listen_unix(executor, config.dial_socket());
  if (!dial_listener) co_return base::passing(dial_listener, "listen on dial.sock");
  parts->server.listen(std::move(*http_listener));
  parts->dials.listen(std::move(*dial_listener));
  base::log::info("worker_ready", {{"socket", config.worker_socket()}});
  for (;;)
    co_await async::sleep_for(std::chrono::hours(24));
}

/// Serves until SIGTERM. The machines outlive it.
async::Task<void> serve_until_told(wire::Config config) {
  Parts parts(co_await asio::this_coro::executor, config);
  std::optional<base::Result<void>> ended;
  auto serving = async::detail::store(&ended, serve(&parts, config));
  co_await async::run_until(base::Deadline::max(), std::move(serving));
  // Told to end: from here on every step is to be finished.
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await parts.server.close(std::chrono::milliseconds(500));
  co_await parts.dials.close();
  co_await parts.worker.close();
  if (ended) co_return std::move(*ended);
  co_return base::Result<void>();
}

asio::awaitable<int> run(std::string path) {
  auto config = wire::load_config(path);
  base::Result<void> served;
  if (config) {
    served = co_await serve_until_told(std::move(*config));
  } else {
    served = base::passing(config);
  }
  if (served) co_return 0;
  base::log::error("worker_failed",
                   {{"what", served.error().message()}, {"detail", served.error().detail()}});
  co_return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--config") {
    std::fputs("usage: space-worker --config FILE\n", stderr);
    return 2;
  }
  base::log::configure("space-worker", base::log::Level::info);
  ::umask(0007);
  std::signal(SIGPIPE, SIG_IGN);
  raise_limits();
  return async::run_main([path = std::string(argv[2])] { return run(path); });
}
