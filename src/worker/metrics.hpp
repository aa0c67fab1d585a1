#pragma once

#include "base/clock.hpp"
#include "base/metric_names.hpp"
#include "wire/credential.hpp"
#include "wire/gateway.hpp"

#include <map>

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

/// What the rules of a sandbox's policy and its credentials are called in metrics: words of ours,
/// never theirs.
class PolicyWords {
 public:
  PolicyWords() = default;
  PolicyWords(wire::EffectivePolicy const& policy, std::vector<wire::Lease> const& credentials);

  /// Of the narrowest level: blocked, allowlist or open.
  std::string_view posture() const noexcept { return posture_; }

  /// http, passthrough, tcp, address, open, or none when it was not allowed.
  std::string_view class_of(wire::GatewayDecision const& connection) const;
  /// credential, http, host or none.
  std::string_view kind_of(wire::GatewayDecision const& request) const;
  /// header, bearer, basic, plain, or none when nothing was put in.
  std::string_view form_of(wire::GatewayDecision const& request) const;

 private:
  struct Rule {
    std::string_view flow_class;
    std::string_view kind;
  };

  Rule const* rule_of(wire::GatewayDecision const& decision) const;

  std::string_view posture_ = "blocked";
  std::map<std::string, Rule, std::less<>> rules_;         // by level and id
  std::map<std::string, std::string, std::less<>> forms_;  // by id/version
};

/// A record on its way into the audit log. A gateway that was taken over may lie about its own
/// sandbox here as there; it cannot make series without bound.
void count_decision(base::Metrics& into,
                    wire::GatewayDecision const& decision,
                    PolicyWords const& words = {});

/// What a gateway counted (wire::GatewayEvent::metrics). False when it cannot be read, or some of
/// it is nothing that a gateway may tell.
bool merge_gateway(base::Metrics& into, std::string const& text);

/// Everything that this process counted, and how it is now.
std::vector<base::MetricSample> samples_of(Worker& worker);

}  // namespace worker
