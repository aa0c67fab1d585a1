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

std::string key_of(std::string_view level, std::string_view rule) {
  return fmt::format("{}|{}", level, rule);
}

std::string_view class_of_rule(wire::PolicyRule const& rule) {
  if (rule.protocol == wire::RuleProtocol::tcp) return "tcp";
  return rule.tls == wire::RuleTls::passthrough ? "passthrough" : "http";
}

std::string_view kind_of_rule(wire::PolicyRule const& rule) {
  if (!rule.inject.empty()) return "credential";
  return rule.http ? "http" : "host";
}

void count_request(base::Metrics& into,
                   wire::GatewayDecision const& decision,
                   PolicyWords const& words) {
  into.count(metric::egress_requests,
             {decision.decision, class_of(decision.status), words.kind_of(decision)});
  into.count(metric::egress_bytes, {"up"}, static_cast<double>(decision.up_bytes));
  into.count(metric::egress_bytes, {"down"}, static_cast<double>(decision.down_bytes));
  if (decision.scrub_hits > 0) into.count(metric::scrub_hits, {}, decision.scrub_hits);
  if (decision.reason == "credential_refused") {
    into.count(metric::credential_injections, {"refused", "none"});
  } else if (decision.reason == "credential_unavailable") {
    into.count(metric::credential_injections, {"unavailable", "none"});
  } else if (!decision.credential.empty()) {
    into.count(metric::credential_injections, {"ok", words.form_of(decision)});
  }
}

}  // namespace

PolicyWords::PolicyWords(wire::EffectivePolicy const& policy,
                         std::vector<wire::Lease> const& credentials) {
  auto narrowest = policy.levels.empty() ? wire::Posture::blocked : wire::Posture::open;
  for (auto const& [level, text] : policy.levels) {
    narrowest = std::min(narrowest, text.posture);
    for (auto const& rule : text.rules)
      rules_.emplace(key_of(level, rule.id), Rule{class_of_rule(rule), kind_of_rule(rule)});
  }
  if (narrowest != wire::Posture::blocked)
    posture_ = narrowest == wire::Posture::open ? "open" : "allowlist";
  for (auto const& lease : credentials)
    forms_.emplace(fmt::format("{}/{}", lease.sealed.credential, lease.sealed.version),
                   lease.sealed.binding.form);
}

PolicyWords::Rule const* PolicyWords::rule_of(wire::GatewayDecision const& decision) const {
  if (decision.rule.empty()) return nullptr;
  auto const found = rules_.find(key_of(decision.level, decision.rule));
  return found == rules_.end() ? nullptr : &found->second;
}

std::string_view PolicyWords::class_of(wire::GatewayDecision const& connection) const {
  if (connection.decision != "allowed") return "none";
  if (connection.host.empty()) return "address";
  auto const* rule = rule_of(connection);
  return rule ? rule->flow_class : "open";
}

std::string_view PolicyWords::kind_of(wire::GatewayDecision const& request) const {
  auto const* rule = rule_of(request);
  return rule ? rule->kind : "none";
}

std::string_view PolicyWords::form_of(wire::GatewayDecision const& request) const {
  auto const found = forms_.find(request.credential);
  if (found != forms_.end()) return found->second;
  return request.credential.empty() ? "none" : "other";
}

void count_decision(base::Metrics& into,
                    wire::GatewayDecision const& decision,
                    PolicyWords const& words) {
  auto const& kind = decision.kind;
  if (kind == "request") count_request(into, decision, words);
  // Errors are sentences, of which there is no end.
  bool const error = decision.decision == "error";
  if (kind == "connection")
    into.count(metric::egress_flows,
               {decision.decision,
                error ? "error" : decision.reason,
                words.posture(),
                words.class_of(decision)},
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
