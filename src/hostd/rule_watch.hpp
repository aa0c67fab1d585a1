#pragma once

#include "hostd/protocol.hpp"
#include "os/fd.hpp"
#include "wire/config.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Is what the kernel holds of packet rules exactly ours? Somebody with root on the host may flush
/// or change them, most often without meaning us. Cheap while nothing changes: the kernel counts
/// the changes of each namespace, and only a count that is not the one we know makes us read.
namespace hostd {

/// What is known of one slot's rules: the count at which they were exactly ours, and with which
/// passage. A new hostd knows nothing until it has read them.
class RuleState {
 public:
  RuleState() = default;

  explicit RuleState(std::uint32_t generation) : generation_(generation) {}

  /// A change of ours, of one transaction. What is known stays known, unless somebody else changed
  /// something meanwhile. `passage`: when that is what it changes.
  base::Result<void> change(os::FdRef netns,
                            std::function<base::Result<void>()> const& work,
                            Passage const* passage = nullptr);

 private:
  friend class RuleWatch;

  std::optional<std::uint32_t> generation_;
  Passage passage_;
  std::optional<std::string> budget_;  // as it was listed when it was looked at last
};

class RuleWatch {
 public:
  /// `bytes_per_s`: the network budget that was put into its rules, 0 for none. Where nobody knows
  /// (hostd was started anew) any budget passes once, or none, and from then on only that one.
  base::Result<bool> slot_is_ours(os::FdRef netns,
                                  RuleState& state,
                                  Passage const& passage,
                                  std::optional<std::uint64_t> bytes_per_s);

  /// Remembers how the uplink stands now: just made or refreshed.
  void uplink_made(wire::Config const& config);
  base::Result<bool> uplink_is_ours(wire::Config const& config);
  /// Makes the uplink's rules ours again. Live connections stay.
  base::Result<void> mend_uplink(wire::Config const& config);

 private:
  struct Generations {
    std::uint32_t host = 0;
    std::uint32_t inner = 0;
    friend bool operator==(Generations const&, Generations const&) = default;
  };

  base::Result<std::string> wanted_of_slot(Passage const& passage);
  base::Result<std::string> listed_budget(std::uint64_t bytes_per_s);
  base::Result<bool> uplink_rules_match(wire::Config const& config) const;

  // The latest reference, since most slots have the same.
  std::optional<Passage> wanted_passage_;
  std::string wanted_rules_;
  std::optional<std::uint64_t> budget_bytes_;
  std::string budget_rule_;  // of that many
  std::optional<Generations> uplink_generations_;
  std::vector<std::string> resolvers_;  // that the uplink's rules name
  bool guarded_ = false;                // forwarding was off before us
};

struct SlotListing {
  std::string rules;   // without the budget
  std::string budget;  // the one rule that both directions have, "" for none
};

/// Takes the budget out of a listing of a slot's rules; nothing when there is something else in its
/// place. Pure.
std::optional<SlotListing> without_budget(std::string listing);

}  // namespace hostd
