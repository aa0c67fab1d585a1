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

/// The operator's word that a host will not come back. Its sandboxes are then ended by the
/// controllers.
boost::asio::awaitable<int> declare_lost(wire::Config config, std::string node) {
  auto executor = co_await boost::asio::this_coro::executor;
  store::Store store(executor, store::database_options(config, "space_controller"));
  auto const until = base::system_clock().in(std::chrono::seconds(10));
  auto const declared = co_await store.nodes.declare_lost(node, until);
  co_await store.database.close();
  if (!declared) {
    fmt::print(stderr, "space-controller: {}\n", declared.error().message());
    co_return base::exit_code_of(declared.error().code());
  }
  fmt::print(
      "{} is declared lost. Unless it reports again, its sandboxes end as host_lost once it has "
      "been silent for a minute.\n",
      node);
  co_return 0;
}

constexpr auto usage =
    "usage: space-controller --config FILE                            run\n"
    "       space-controller --config FILE --declare-node-lost NAME   its host will not come back: "
    "give up its sandboxes\n";

}  // namespace

int main(int argc, char** argv) {
  std::span<char*> const args(argv, static_cast<std::size_t>(argc));
  bool const declares = args.size() == 5 && std::string_view(args[3]) == "--declare-node-lost";
  if ((args.size() != 3 && !declares) || std::string_view(args[1]) != "--config") {
    std::fputs(usage, stderr);
    return 2;
  }
  base::log::configure("space-controller", base::log::Level::info);
  auto config = wire::load_config(args[2]);
  if (!config) {
    base::log::error("config_refused",
                     {{"why", config.error().message()}, {"file", config.error().detail()}});
    return 2;
  }
  if (declares) {
    return async::run_main([config = std::move(*config), node = std::string(args[4])] {
      return declare_lost(config, node);
    });
  }
  return async::run_main([config = std::move(*config)] { return serve(config); });
}
