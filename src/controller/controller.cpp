#include "controller/controller.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "domain/node_loss.hpp"

#include <boost/asio/this_coro.hpp>

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr auto database_time = 3s;
constexpr auto nodes_retry = 500ms;
constexpr std::chrono::milliseconds first_pause = 50ms;

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

}  // namespace

Controller::Controller(store::asio::any_io_executor executor,
                       store::Store& store,
                       wire::Config config,
                       std::string owner,
                       WatchTimes times,
                       Keep keep)
    : executor_(executor),
      store_(store),
      config_(std::move(config)),
      times_(times),
      links_(executor),
      finisher_(store, links_),
      deadlines_(executor, store, finisher_, std::move(owner)),
      samples_(store),
      retention_(store, links_, keep),
      registry_(store, config_.pool()),
      loops_(executor) {}

store::asio::awaitable<void> Controller::run() {
  loops_.spawn("deadlines", deadlines_.run_due());
  loops_.spawn("stale_operations", deadlines_.run_stale());
  loops_.spawn("samples", samples_.run());
  loops_.spawn("retention", retention_.run());
  loops_.spawn("snapshots", retention_.run_snapshots());
  loops_.spawn("nodes", run_nodes());
  loops_.spawn("beats", run_beats());
  // The loops never end by themselves: join() returns once we are cancelled, and what follows is
  // awaited too.
  co_await boost::asio::this_coro::throw_if_cancelled(false);
  co_await loops_.join();
  for (auto& [address, watch] : watches_)
    co_await watch->close();
  co_await deadlines_.close();
}

store::asio::awaitable<void> Controller::run_nodes() {
  while (true) {
    co_await refresh_nodes();
    co_await async::sleep_for(registered_ ? times_.nodes_every : nodes_retry);
  }
}

store::asio::awaitable<void> Controller::refresh_nodes() {
  if (!registered_) {
    auto const address = config_.run_dir + "/worker";
    auto const known = co_await store_.nodes.upsert(config_.node_name, address, in(database_time));
    if (!known) {
      base::log::warn("node_not_registered", {{"why", known.error().message()}});
      co_return;
    }
    registered_ = true;
  }
  auto nodes = co_await store_.nodes.list(in(database_time));
  if (!nodes) co_return;
  for (auto& node : *nodes) {
    watch(node.name, node.address);
    watches_.at(node.address)->set_draining(node.draining);
    bool const answers = watches_.at(node.address)->fresh_report().has_value();
    auto const now = base::system_clock().wall_now();
    if (answers || !domain::is_lost(now, node.heartbeat_at, node.lost_at)) continue;
    co_await give_up(std::move(node));
  }
}

/// The node's host is gone for good: its sandboxes end as host_lost. Should it return with their
/// machines all the same, these have no rows and are removed.
store::asio::awaitable<void> Controller::give_up(store::NodeRow node) {
  auto rows = co_await store_.sandboxes.on_node(node.name, in(database_time));
  if (!rows) co_return;
  for (auto const& row : *rows) {
    store::End end;
    end.id = row.id;
    end.epoch = row.epoch;
    end.actor = "controller";
    end.reason = domain::EndReason::host_lost;
    end.event = row.state == domain::SandboxState::deleting ? domain::SandboxEvent::released
                                                            : domain::SandboxEvent::machine_failed;
    end.detail = fmt::format("its host {} was declared lost", node.name);
    auto const ended = co_await store_.sandboxes.end(std::move(end), in(database_time));
    if (!ended) co_return;
    base::log::warn("sandbox_lost",
                    {{"node", node.name}, {"sandbox", row.public_id}, {"by_us", *ended}});
  }
}

void Controller::watch(std::string name, std::string address) {
  auto& one = watches_[address];
  if (one) return;
  collectors_.push_back(
      std::make_unique<AuditCollector>(name, store_, links_.at(address), times_.checkpoints_every));
  loops_.spawn("checkpoints", collectors_.back()->run());
  one = std::make_unique<NodeWatch>(
      executor_, std::move(name), address, store_, links_, finisher_, samples_, times_);
  loops_.spawn("reports", one->run_reports());
  loops_.spawn("ends", one->run_ends());
  loops_.spawn("looks", one->run_looks());
}

store::asio::awaitable<void> Controller::run_beats() {
  while (true) {
    // Until the first report is written nothing can be created: do not sleep that long at a start.
    co_await async::sleep_for(beaten_ ? times_.report_every : first_pause);
    co_await beat();
  }
}

store::asio::awaitable<void> Controller::beat() {
  std::vector<store::Heartbeat> beats;
  std::vector<std::string> builds;
  for (auto const& [address, watch] : watches_) {
    auto report = watch->fresh_report();
    if (!report) continue;
    // Manifests are read from this host's pool, so only this host's builds are registered here.
    if (watch->name() == config_.node_name) builds = report->builds;
    beats.push_back({watch->name(), std::move(*report)});
  }
  if (beats.empty() || SPACE_FAULT("controller.beat.before_write")) co_return;
  auto const written = co_await store_.nodes.beat(std::move(beats), in(database_time));
  if (!written && written.error().code() == base::Code::cancelled) co_return;
  if (written.has_value() != beating_) {
    beating_ = written.has_value();
    if (beating_) base::log::info("database_answers");
    if (!beating_) base::log::warn("database_silent", {{"why", written.error().message()}});
  }
  if (!written) co_return;
  beaten_ = true;
  co_await registry_.consider(std::move(builds));
}

}  // namespace controller
