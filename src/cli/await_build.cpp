#include "cli/await_build.hpp"

#include "cli/api.hpp"
#include "cli/installation.hpp"

#include <boost/asio/this_coro.hpp>

namespace cli {
namespace {

using namespace std::chrono_literals;

/// Is there a node that is ready and has that build?
bool has_build(json::value const& nodes, std::string const& build) {
  for (auto const& node : nodes.at("nodes").as_array()) {
    if (node.at("state") != "ready") continue;
    for (auto const& one : node.at("builds").as_array()) {
      if (one.as_string() == std::string_view(build)) return true;
    }
  }
  return false;
}

async::Task<void> wait_for(Target target, std::string build) {
  Api api(co_await asio::this_coro::executor, std::move(target));
  auto const until = base::system_clock().in(30s);
  std::string missing;
  while (base::system_clock().steady_now() < until) {
    auto const soon = base::system_clock().in(2s);
    auto const found = co_await api.call("GET", "/v1/templates/base", {}, soon);
    auto const nodes = co_await api.call("GET", "/v1/nodes", {}, soon);
    if (!found)
      missing = "the template base is not registered: " + found.error().message();
    else if (!nodes)
      missing = nodes.error().message();
    else if (!has_build(*nodes, build))
      missing = "the node is not ready with the template base";
    else
      co_return base::Result<void>();
    co_await async::sleep_for(50ms);
  }
  co_return base::fail(base::Code::unavailable, std::move(missing));
}

}  // namespace

base::Result<void> await_build(wire::Config const& config, std::string const& build) {
  auto target = find_target(http_address(config), admin_key_path(config));
  if (!target) return base::passing(target);
  base::Result<void> result;
  async::run_main([&]() -> asio::awaitable<int> {
    result = co_await wait_for(std::move(*target), build);
    co_return 0;
  });
  return result;
}

}  // namespace cli
