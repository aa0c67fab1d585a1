#include "cli/teardown.hpp"

#include "async/task.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "cli/layout.hpp"
#include "cli/up.hpp"
#include "hostd/client.hpp"
#include "http/client.hpp"
#include "wire/worker.hpp"

#include <filesystem>

#include <boost/asio/this_coro.hpp>
#include <unistd.h>

/// The two steps between a running installation and a stopped one. Both may be repeated and both do
/// as much as they can: what one cannot end, the next or the next start finds again.
namespace cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

struct Listing {
  std::vector<wire::WorkerSandbox> sandboxes;
};
BOOST_DESCRIBE_STRUCT(Listing, (), (sandboxes))

/// As the platform says it.
struct NotSuspended {
  std::string sandbox, why;
};
BOOST_DESCRIBE_STRUCT(NotSuspended, (), (sandbox, why))

struct Report {
  std::uint64_t suspended = 0;
  std::vector<NotSuspended> failed;
};
BOOST_DESCRIBE_STRUCT(Report, (), (suspended, failed))

/// Of a journal's entry, what tells a machine that was made ahead from a sandbox.
struct Noted {
  std::string sandbox;
  bool internal = false;
};
BOOST_DESCRIBE_STRUCT(Noted, (), (sandbox, internal))

class Worker {
 public:
  Worker(asio::any_io_executor executor, std::string socket)
      : client_(std::move(executor),
                [path = std::move(socket)] { return net::connect_unix(path); }) {}

  async::Task<Listing> list();
  asio::awaitable<void> end(std::string sandbox, std::uint64_t epoch, base::Deadline deadline);
  asio::awaitable<void> suspend(wire::WorkerSandbox which, base::Deadline deadline, Report* report);

 private:
  http::Client client_;
};

async::Task<Listing> Worker::list() {
  http::RequestHead head{"GET", "/sandboxes", {{"Host", "worker"}}};
  auto response =
      co_await client_.request(std::move(head), {}, base::system_clock().in(end_limits.list));
  if (!response) co_return base::passing(response);
  co_return wire::decode_text<Listing>(response->body, wire::UnknownKeys::ignore, 16U << 20);
}

asio::awaitable<void> Worker::end(std::string sandbox,
                                  std::uint64_t epoch,
                                  base::Deadline deadline) {
  http::RequestHead head{"DELETE",
                         fmt::format("/sandboxes/{}?epoch={}&cause=host_stopped", sandbox, epoch),
                         {{"Host", "worker"}}};
  auto done = co_await client_.request(std::move(head), {}, deadline);
  if (done && done->status / 100 == 2) {
    base::log::info("sandbox_ended", {{"sandbox", sandbox}});
  } else {
    base::log::warn("sandbox_not_ended",
                    {{"sandbox", sandbox}, {"reason", done ? done->body : done.error().message()}});
  }
}

asio::awaitable<void> Worker::suspend(wire::WorkerSandbox which,
                                      base::Deadline deadline,
                                      Report* report) {
  http::RequestHead head{"POST",
                         fmt::format("/sandboxes/{}/suspend", which.sandbox),
                         {{"Host", "worker"}, {"Content-Type", "application/json"}}};
  auto body = wire::encode_text(wire::Epoch{which.epoch});
  auto done = co_await client_.request(std::move(head), std::move(body), deadline);
  if (done && done->status / 100 == 2) {
    ++report->suspended;
    base::log::info("sandbox_suspended", {{"sandbox", which.sandbox}});
    co_return;
  }
  auto const why = done ? done->body : done.error().message();
  report->failed.push_back({which.sandbox, why});
  base::log::warn("sandbox_not_suspended", {{"sandbox", which.sandbox}, {"reason", why}});
}

/// The platform does it as for anybody who asks, with rows and operations. Its answer as it is.
async::Task<std::string> suspend_by_platform(wire::Config config) {
  http::Client client(co_await asio::this_coro::executor,
                      [path = config.internal_socket()] { return net::connect_unix(path); });
  http::RequestHead head{
      "POST", "/suspend?node=" + http::percent_encode(config.node_name), {{"Host", "internal"}}};
  auto response =
      co_await client.request(std::move(head), {}, base::system_clock().in(end_limits.platform));
  if (!response) co_return base::passing(response);
  if (response->status != 200)
    co_return base::fail(base::Code::unavailable, "it answered: " + response->body);
  co_return std::move(response->body);
}

/// Without the platform: its worker alone. A controller finds them suspended at the next start.
asio::awaitable<std::string> suspend_by_worker(Worker* worker,
                                               std::vector<wire::WorkerSandbox> list) {
  Report report;
  async::TaskGroup group(co_await asio::this_coro::executor);
  auto const deadline = base::system_clock().in(end_limits.worker);
  for (auto const& one : list) {
    if (one.state == "running" || one.state == "paused")
      group.spawn("suspend", worker->suspend(one, deadline, &report));
  }
  co_await group.join();
  co_return wire::encode_text(report);
}

asio::awaitable<void> suspend_what_runs(wire::Config config, Worker* worker) {
  auto report = co_await suspend_by_platform(config);
  if (!report) {
    base::log::warn("platform_does_not_suspend",
                    {{"reason", report.error().message()}, {"detail", report.error().detail()}});
    auto listing = co_await worker->list();
    if (!listing) co_return;
    report = co_await suspend_by_worker(worker, std::move(listing->sandboxes));
  }
  base::log::info("sandboxes_suspended", {{"report", *report}});
  auto wrote = write_file(suspends_report_path(config), *report, 0644);
  if (!wrote) base::log::warn("report_not_written", {{"reason", wrote.error().message()}});
}

}  // namespace

asio::awaitable<int> end_all(wire::Config config) {
  auto executor = co_await asio::this_coro::executor;
  Worker worker(executor, config.worker_socket());
  bool const only_end = access(no_suspend_path(config).c_str(), F_OK) == 0;
  (void)unlink(no_suspend_path(config).c_str());
  if (!only_end) co_await suspend_what_runs(config, &worker);
  auto listing = co_await worker.list();
  if (!listing) {
    base::log::warn("worker_not_reached", {{"reason", listing.error().message()}});
    co_return 1;
  }
  auto const deadline = base::system_clock().in(end_limits.end);
  async::TaskGroup group(executor);
  for (auto const& one : listing->sandboxes) {
    if (one.state != "suspended") group.spawn("end", worker.end(one.sandbox, one.epoch, deadline));
  }
  co_await group.join();
  co_return 0;
}

std::size_t remove_unclaimed(wire::Config const& config) {
  std::size_t removed = 0;
  std::error_code failed;
  for (auto const& file : fs::directory_iterator(config.data_dir + "/worker/sandboxes", failed)) {
    auto const text = read_file(file.path().string());
    auto const noted = text ? wire::decode_text<Noted>(*text, wire::UnknownKeys::ignore, 16U << 20)
                            : base::Result<Noted>(base::fail(base::Code::not_found, "no file"));
    if (!noted || !noted->internal || !base::SandboxId::parse(noted->sandbox)) continue;
    // The disk first: without its journal nobody knows whose it is.
    fs::remove_all(config.pool() + "/sandboxes/" + noted->sandbox, failed);
    if (failed || !fs::remove(file.path(), failed)) {
      base::log::warn("machine_left", {{"machine", noted->sandbox}, {"reason", failed.message()}});
      continue;
    }
    ++removed;
  }
  return removed;
}

std::string no_suspend_path(wire::Config const& config) {
  return config.run_dir + "/no-suspend";
}

std::string suspends_report_path(wire::Config const& config) {
  return config.run_dir + "/suspended.json";
}

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
  if (lost > 0) return 1;
  if (auto const removed = remove_unclaimed(*config); removed > 0)
    base::log::info("waiting_machines_removed", {{"count", removed}});
  return 0;
}

}  // namespace cli
