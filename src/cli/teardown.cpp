#include "async/task.hpp"
#include "base/log.hpp"
#include "cli/up.hpp"
#include "hostd/client.hpp"
#include "http/client.hpp"
#include "wire/worker.hpp"

#include <boost/asio/this_coro.hpp>

/// The two steps between a running installation and a stopped one. Both may be repeated and both do
/// as much as they can: what one cannot end, the next or the next start finds again.
namespace cli {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

struct Listing {
  std::vector<wire::WorkerSandbox> sandboxes;
};
BOOST_DESCRIBE_STRUCT(Listing, (), (sandboxes))

asio::awaitable<void> end_one(http::Client& worker,
                              std::string sandbox,
                              std::uint64_t epoch,
                              base::Deadline deadline) {
  http::RequestHead head{
      "DELETE", fmt::format("/sandboxes/{}?epoch={}", sandbox, epoch), {{"Host", "worker"}}};
  auto done = co_await worker.request(std::move(head), {}, deadline);
  bool const ended = done && done->status / 100 == 2;
  if (ended)
    base::log::info("sandbox_ended", {{"sandbox", sandbox}});
  else
    base::log::warn("sandbox_not_ended",
                    {{"sandbox", sandbox}, {"reason", done ? done->body : done.error().message()}});
}

asio::awaitable<int> end_all(wire::Config config) {
  auto executor = co_await asio::this_coro::executor;
  auto const deadline = base::system_clock().in(50s);
  http::Client worker(executor,
                      [path = config.worker_socket()] { return net::connect_unix(path); });
  auto response =
      co_await worker.request({"GET", "/sandboxes", {{"Host", "worker"}}}, {}, deadline);
  if (!response) {
    base::log::warn("worker_not_reached", {{"reason", response.error().message()}});
    co_return 1;
  }
  auto listing = wire::decode_text<Listing>(response->body, wire::UnknownKeys::ignore, 16U << 20);
  if (!listing) {
    base::log::warn("worker_not_understood", {{"reason", listing.error().message()}});
    co_return 1;
  }
  async::TaskGroup group(executor);
  for (auto const& one : listing->sandboxes)
    group.spawn("end sandbox", end_one(worker, one.sandbox, one.epoch, deadline));
  co_await group.join();
  co_return 0;
}

}  // namespace

int end_sandboxes(std::string const& config_path) {
  base::log::configure("space-end-sandboxes", base::log::Level::info);
  auto config = wire::load_config(config_path);
  if (!config) {
    base::log::error("config_refused", {{"reason", config.error().message()}});
    return 2;
  }
  return async::run_main([config = std::move(*config)] { return end_all(config); });
}

int clear_slots(std::string const& config_path) {
  base::log::configure("space-clear-slots", base::log::Level::info);
  auto config = wire::load_config(config_path);
  if (!config) {
    base::log::error("config_refused", {{"reason", config.error().message()}});
    return 2;
  }
  hostd::Client const host(config->hostd_socket());
  int lost = 0;
  for (std::uint32_t slot = 0; slot < config->slots_max; ++slot) {
    auto found = host.inspect_slot(slot);
    if (!found) {
      base::log::warn("hostd_not_reached", {{"reason", found.error().message()}});
      return 1;
    }
    if (found->state == hostd::SlotState::absent) continue;
    (void)host.end_vmm(slot);  // not_found when no machine lived there
    auto removed = host.remove_slot(slot);
    if (removed) continue;
    ++lost;
    base::log::warn("slot_not_removed",
                    {{"slot", slot},
                     {"reason", removed.error().message()},
                     {"detail", removed.error().detail()}});
  }
  return lost == 0 ? 0 : 1;
}

}  // namespace cli
