#pragma once

#include "domain/egress_policy.hpp"
#include "domain/pace.hpp"
#include "gateway/budget.hpp"

#include <array>
#include <unordered_map>

namespace gateway {

/// What a rule's `limits` leave; lives on from policy to policy as long as its level has a rule of
/// that id, so that writing the policy again refills nothing.
struct RuleMeter {
  wire::RuleLimits limits;
  domain::Pace requests;
  std::uint64_t up_bytes = 0;
  std::uint64_t down_bytes = 0;
};

using RuleMeters = std::vector<std::shared_ptr<RuleMeter>>;

/// Requests to each host. As big as it is from its beginning, whatever names a guest thinks of: a
/// host whose budget is whole again gives its place away, and where all places are taken the last
/// one is shared, which only tightens.
class HostPaces {
 public:
  domain::Pace& of(std::string_view host, base::SteadyTime now);

  static constexpr std::size_t places = 1024;

 private:
  struct Place {
    std::size_t hash = 0;
    domain::Pace pace;
  };

  std::array<Place, places> places_{};
};

/// The budgets of one sandbox: of all of it, to each host, by each rule. No allocation and no call
/// of the system where a request is admitted.
class Limits {
 public:
  struct Admission {
    bool admitted = true;
    std::chrono::nanoseconds wait{0};  // when admitted: until it may be sent
    std::string_view reason;           // when not: which budget
  };

  /// Longer than this nobody is kept waiting.
  static constexpr std::chrono::nanoseconds patience = std::chrono::seconds(1);

  explicit Limits(base::SteadyTime now) : handshakes_(0, now) {}

  /// The policy from now on; it must live until the next one's.
  void apply(domain::EgressPolicy const& policy);

  /// The meters of the rules that admitted it, one for each level that limits.
  void find_meters(domain::Decision const& decision, RuleMeters& into) const;

  bool admit_handshake(base::SteadyTime now) { return handshakes_.take(now); }

  /// All budgets or none: what one of them refuses costs the others nothing.
  Admission admit_request(base::SteadyTime now, std::string_view host, RuleMeters const& meters);

  bool admit_bytes(std::uint64_t up, std::uint64_t down, RuleMeters const& meters);

 private:
  wire::PolicyBudgets budgets_;
  Bucket handshakes_;
  domain::Pace requests_;
  std::unique_ptr<HostPaces> hosts_;  // where a policy asks for it
  std::uint64_t up_bytes_ = 0;
  std::uint64_t down_bytes_ = 0;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<RuleMeter>> meters_;
  std::unordered_map<wire::PolicyRule const*, std::shared_ptr<RuleMeter>> by_rule_;
};

}  // namespace gateway
