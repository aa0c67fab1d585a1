#pragma once

#include "base/clock.hpp"
#include "base/metric_names.hpp"
#include "wire/gateway.hpp"

/// What a worker counts for an operator (base/metric_names.hpp), beside what it writes down.
namespace worker {

class Worker;

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(base::system_clock().steady_now() - began_).count();
  }

 private:
  base::SteadyTime began_ = base::system_clock().steady_now();
};

/// A record on its way into the audit log. A gateway that was taken over may lie about its own
/// sandbox here as there; it cannot make series without bound.
void count_decision(base::Metrics& into, wire::GatewayDecision const& decision);

/// What a gateway counted (wire::GatewayEvent::metrics). False when it cannot be read, or some of
/// it is nothing that a gateway may tell.
bool merge_gateway(base::Metrics& into, std::string const& text);

/// Everything that this process counted, and how it is now.
std::vector<base::MetricSample> samples_of(Worker& worker);

}  // namespace worker
