#include "worker/metrics.hpp"

#include "worker/worker.hpp"

namespace worker {

namespace metric = base::metric;

namespace {

constexpr std::size_t gateway_samples_max = 256;

std::string class_of(std::int32_t status) {
  if (status < 100 || status > 599) return "none";
  return fmt::format("{}xx", status / 100);
}

void count_request(base::Metrics& into, wire::GatewayDecision const& decision) {
  into.count(metric::egress_requests, {decision.decision, class_of(decision.status)});
  into.count(metric::egress_bytes, {"up"}, static_cast<double>(decision.up_bytes));
  into.count(metric::egress_bytes, {"down"}, static_cast<double>(decision.down_bytes));
  if (decision.scrub_hits > 0) into.count(metric::scrub_hits, {}, decision.scrub_hits);
  if (decision.reason == "credential_refused") {
    into.count(metric::credential_injections, {"refused"});
  } else if (decision.reason == "credential_unavailable") {
    into.count(metric::credential_injections, {"unavailable"});
  } else if (!decision.credential.empty()) {
    into.count(metric::credential_injections, {"ok"});
  }
}

}  // namespace

void count_decision(base::Metrics& into, wire::GatewayDecision const& decision) {
  auto const& kind = decision.kind;
  if (kind == "request") count_request(into, decision);
  // Errors are sentences, of which there is no end.
  bool const error = decision.decision == "error";
  if (kind == "connection")
    into.count(metric::egress_flows,
               {decision.decision, error ? "error" : decision.reason},
               decision.count);
  if (kind == "dns") into.count(metric::dns_queries, {decision.decision}, decision.count);
  if (kind == "gap") into.count(metric::audit_gaps, {}, decision.count);
  if (kind == "network") into.count(metric::networks_off);
  if (kind == "credential" && decision.decision == "quarantined")
    into.count(metric::credential_quarantines);
  if (decision.decision != "allowed" && decision.reason.ends_with("_budget"))
    into.count(metric::budget_hits, {decision.reason}, decision.count);
}

bool merge_gateway(base::Metrics& into, std::string const& text) {
  auto const samples = wire::decode_text<std::vector<base::MetricSample>>(text);
  if (!samples || samples->size() > gateway_samples_max) return false;
  bool good = true;
  for (auto const& sample : *samples)
    good = into.merge(sample, base::MetricTeller::gateway) && good;
  return good;
}

std::vector<base::MetricSample> samples_of(Worker& worker) {
  auto& all = base::metrics();
  all.set(metric::audit_waiting, static_cast<double>(worker.host().audit.waiting()));
  std::map<std::string, double> states;
  for (auto const* state :
       {"starting", "running", "paused", "suspending", "suspended", "restoring", "ending"})
    states[state] = 0;
  for (auto const& sandbox : worker.list())
    ++states[sandbox.state];
  for (auto const& [state, count] : states)
    all.set(metric::sandboxes, count, {state});
  return all.all();
}

}  // namespace worker
