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
};

class RuleWatch {
 public:
  /// With a network budget or without: of a budget, all that is asked is that it is one.
  base::Result<bool> slot_is_ours(os::FdRef netns, RuleState& state, Passage const& passage);

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
  base::Result<bool> uplink_rules_match(wire::Config const& config) const;

  // The latest reference, since most slots have the same.
  std::optional<Passage> wanted_passage_;
  std::string wanted_rules_;
  std::optional<Generations> uplink_generations_;
  std::vector<std::string> resolvers_;  // that the uplink's rules name
  bool guarded_ = false;                // forwarding was off before us
};

/// A listing of a slot's rules with its budget taken out; nothing when there is something else in
/// the budget's place. Pure.
std::optional<std::string> without_budget(std::string listing);

}  // namespace hostd
