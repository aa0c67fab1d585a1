#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "controller/controller.hpp"

#include <cstdio>
#include <span>
#include <string_view>

#include <boost/asio/this_coro.hpp>
#include <unistd.h>

namespace {

boost::asio::awaitable<int> serve(wire::Config config) {
  auto executor = co_await boost::asio::this_coro::executor;
  auto options = store::database_options(config, "space_controller");
  options.program = "space-controller";
  options.connections_max = 6;
  store::Store store(executor, std::move(options));
  auto const owner =
      fmt::format("controller-{}-{}-{}", config.node_name, ::getpid(), base::random_hex(4));
  controller::Controller controller(executor, store, std::move(config), owner);
  base::log::info("started", {{"owner", owner}});
  co_await controller.run();
  co_await store.database.close();
  base::log::info("stopped");
  co_return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::span<char*> const args(argv, static_cast<std::size_t>(argc));
  if (args.size() != 3 || std::string_view(args[1]) != "--config") {
    std::fputs("usage: space-controller --config FILE\n", stderr);
    return 2;
  }
  base::log::configure("space-controller", base::log::Level::info);
  auto config = wire::load_config(args[2]);
  if (!config) {
    base::log::error("config_refused",
                     {{"why", config.error().message()}, {"file", config.error().detail()}});
    return 2;
  }
  return async::run_main([config = std::move(*config)] { return serve(config); });
}
