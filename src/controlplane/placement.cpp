#include "controlplane/placement.hpp"

#include "base/log.hpp"

#include <sys/random.h>

#include <algorithm>

namespace controlplane {
namespace {

constexpr std::chrono::milliseconds report_every{1000};
constexpr std::chrono::milliseconds report_timeout{800};
constexpr std::chrono::milliseconds list_every{5000};
/// Silent for longer: not chosen any more.
constexpr std::chrono::milliseconds stale_after{5000};

std::uint32_t random_below(std::uint32_t bound) {
  std::uint32_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number || bound == 0) return 0;
  return number % bound;
}

domain::WorkerView view_of(Nodes::Seen const& seen) {
  auto const& report = seen.report;
  domain::WorkerView view;
  view.name = seen.row.name;
  view.ready = seen.ready;
  view.draining = seen.row.draining;
  view.boundary = report.boundary;
  view.total = {
      report.slots_total, report.vcpus_total, report.memory_mib_total, report.disk_mib_total};
  view.used = {report.slots_used, report.vcpus_used, report.memory_mib_used, report.disk_mib_used};
  view.builds = report.builds;
  std::ranges::sort(view.builds);
  return view;
}

}  // namespace

Nodes::Nodes(store::Store& store, WorkerClient& workers)
    : store_(store), workers_(workers), placement_(random_below) {}

asio::awaitable<void> Nodes::run() {
  for (;;) {
    auto const next = base::system_clock().in(report_every);
    auto const now = base::system_clock().steady_now();
    if (nodes_.empty() || now - listed_at_ >= list_every) co_await read_list();
    co_await ask_all();
    co_await async::sleep_until(next);
  }
}

asio::awaitable<void> Nodes::refresh() {
  co_await read_list();
  co_await ask_all();
}

asio::awaitable<void> Nodes::ask_all() {
  std::vector<std::string> names;
  for (auto const& [name, seen] : nodes_)
    names.push_back(name);
  async::TaskGroup group(co_await asio::this_coro::executor);
  for (auto const& name : names)
    group.spawn("ask a worker", ask(name));
  co_await group.join();
}

asio::awaitable<void> Nodes::read_list() {
  auto rows = co_await store_.nodes.list(base::system_clock().in(std::chrono::seconds(2)));
  if (!rows) {
    base::log::warn("nodes_not_read",
                    {{"why", rows.error().message()}, {"detail", rows.error().detail()}});
    co_return;
  }
  listed_at_ = base::system_clock().steady_now();
  std::map<std::string, Seen> next;
  for (auto& row : *rows) {
    auto const known = nodes_.find(row.name);
    Seen seen;
    if (known != nodes_.end()) seen = std::move(known->second);
    auto name = row.name;
    seen.row = std::move(row);
    next.emplace(std::move(name), std::move(seen));
  }
  for (auto const& [name, seen] : nodes_) {
    if (!next.contains(name)) placement_.forget(name);
  }
  nodes_ = std::move(next);
}

asio::awaitable<void> Nodes::ask(std::string name) {
  auto const address = address_of(name);
  auto report = co_await workers_.report(address, base::system_clock().in(report_timeout));
  auto const found = nodes_.find(name);
  if (found == nodes_.end()) co_return;
  auto& seen = found->second;
  auto const now = base::system_clock().steady_now();
  if (report) {
    if (!seen.ready) base::log::info("node_ready", {{"node", name}});
    seen.report = std::move(*report);
    seen.reported_at = now;
    seen.ready = true;
  } else if (seen.ready && now - seen.reported_at > stale_after) {
    base::log::warn("node_silent", {{"node", name}, {"why", report.error().message()}});
    seen.ready = false;
  } else if (seen.ready) {
    co_return;  // its last report still counts
  }
  placement_.report(view_of(seen));
}

base::Result<domain::Placement::Reservation> Nodes::choose(domain::PlacementRequest const& request,
                                                           std::vector<std::string> const& except) {
  return placement_.choose(request, except);
}

async::Task<domain::Placement::Reservation> Nodes::choose_when_ready(
    domain::PlacementRequest request, base::Deadline until) {
  for (;;) {
    auto place = placement_.choose(request, {});
    auto const somebody =
        std::ranges::any_of(nodes_, [](auto const& one) { return one.second.ready; });
    auto const none_exists = nodes_.empty() && listed_at_ != base::SteadyTime();
    if (place || somebody || none_exists) co_return place;
    if (base::system_clock().steady_now() >= until) co_return place;
    co_await async::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string Nodes::address_of(std::string const& name) const {
  auto const found = nodes_.find(name);
  return found == nodes_.end() ? std::string() : found->second.row.address;
}

}  // namespace controlplane
