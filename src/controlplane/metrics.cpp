#include "controlplane/metrics.hpp"

#include "base/log.hpp"
#include "base/metric_names.hpp"

namespace controlplane {

namespace metric = base::metric;

namespace {

// Shorter than the ten seconds that a Prometheus waits.
constexpr std::chrono::milliseconds patience{3000};
constexpr double mib = 1024.0 * 1024.0;

void describe(base::Metrics& into, Nodes::Seen const& seen) {
  auto const& report = seen.report;
  auto const both = [&into](base::Metric const& what, double total, double used) {
    into.set(what, total, {"total"});
    into.set(what, used, {"reserved"});
  };
  into.set(metric::node_draining, report.draining ? 1 : 0);
  both(metric::node_memory, mib * report.memory_mib_total, mib * report.memory_mib_used);
  both(metric::node_disk,
       mib * static_cast<double>(report.disk_mib_total),
       mib * static_cast<double>(report.disk_mib_used));
  both(metric::node_vcpus, report.vcpus_total, report.vcpus_used);
  both(metric::node_slots, report.slots_total, report.slots_used);
  double ready = 0;
  double target = 0;
  for (auto const& warm : report.warm) {
    ready += warm.ready;
    target += warm.target;
  }
  into.set(metric::warm_machines, ready, {"ready"});
  into.set(metric::warm_machines, target, {"target"});
}

/// What the API itself counts, without what else this process may have (in tests).
std::vector<base::MetricSample> own_samples() {
  auto all = base::metrics().all();
  std::erase_if(all, [](base::MetricSample const& sample) {
    auto const* const known = base::metric_named(sample.name);
    return known == nullptr || known->teller != base::MetricTeller::api;
  });
  return all;
}

}  // namespace

void MetricsRoutes::add_routes(Router& router) {
  std::chrono::duration<double> const now = base::system_clock().wall_now().time_since_epoch();
  base::metrics().set(metric::api_started, now.count());
  Route route;
  route.method = "GET";
  route.pattern = "/metrics";
  route.operation_id = "getMetrics";
  route.permission = Permission::installation;
  route.handler = [this](Call& call) { return get(call); };
  router.add(std::move(route));
}

asio::awaitable<void> MetricsRoutes::ask(std::string address, base::NodeSamples* into) {
  auto const told =
      co_await workers_.samples(std::move(address), base::system_clock().in(patience));
  base::Metrics node;
  if (auto const seen = nodes_.all().find(into->node); seen != nodes_.all().end() && told)
    describe(node, seen->second);
  node.set(metric::node_up, told ? 1 : 0);
  if (!told)
    base::log::warn("node_not_measured", {{"node", into->node}, {"why", told.error().message()}});
  std::size_t refused = 0;
  if (told)
    for (auto const& sample : *told)
      refused += node.merge(sample, base::MetricTeller::worker) ? 0 : 1;
  if (refused > 0) base::metrics().count(metric::samples_refused, {}, static_cast<double>(refused));
  into->samples = node.all();
}

async::Task<Reply> MetricsRoutes::get(Call& call) {
  if (auto ok = call.allow_query({}); !ok) co_return base::passing(ok);
  std::vector<base::NodeSamples> all;
  std::vector<std::string> addresses;
  for (auto const& [name, seen] : nodes_.all()) {
    all.push_back({name, {}});
    addresses.push_back(seen.row.address);
  }
  async::TaskGroup group(co_await asio::this_coro::executor);
  for (std::size_t i = 0; i < all.size(); ++i)
    group.spawn("measure a node", ask(addresses[i], &all[i]));
  co_await group.join();
  all.push_back({"", own_samples()});
  Reply reply;
  reply.headers.add("Content-Type", "text/plain; version=0.0.4; charset=utf-8");
  reply.body = base::prometheus_text(all);
  co_return reply;
}

}  // namespace controlplane
