#pragma once

#include "controlplane/placement.hpp"
#include "controlplane/router.hpp"

/// `GET /metrics`: what every worker counted, what is known of the nodes, and this process's own,
/// for a Prometheus with a key of the installation. Workers are asked at each scrape. What they say
/// is taken only where it is a metric of base/metric_names.hpp in shape and size.
namespace controlplane {

class MetricsRoutes {
 public:
  MetricsRoutes(Nodes& nodes, WorkerClient& workers) : nodes_(nodes), workers_(workers) {}

  /// The MetricsRoutes must outlive the router.
  void add_routes(Router& router);

 private:
  async::Task<Reply> get(Call& call);
  asio::awaitable<void> ask(std::string address, base::NodeSamples* into);

  Nodes& nodes_;
  WorkerClient& workers_;
};

}  // namespace controlplane
