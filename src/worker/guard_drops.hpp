#pragma once

#include "base/metrics.hpp"
#include "hostd/guard_drops.hpp"

#include <map>
#include <string>

namespace worker {

/// Counts for operators what the guards of slots dropped: of each sandbox, what was added since it
/// was looked at last. Used on the loop alone.
class GuardCounts {
 public:
  explicit GuardCounts(base::Metrics& into) : into_(into) {}

  /// It was there before this process: what its guard dropped until it is looked at first is not
  /// counted here.
  void found(std::string const& sandbox) { seen_[sandbox].known = false; }

  void note(std::string const& sandbox, hostd::GuardDrops const& drops);

  void forget(std::string const& sandbox) { seen_.erase(sandbox); }

  /// The sandbox to look at after `sandbox`, of those in `all`; "" when there are none.
  template <class Map> static std::string next_after(std::string const& sandbox, Map const& all) {
    auto found = all.upper_bound(sandbox);
    if (found == all.end()) found = all.begin();
    return found == all.end() ? std::string() : found->first;
  }

 private:
  struct Seen {
    bool known = true;
    hostd::GuardDrops drops{};
  };

  base::Metrics& into_;
  std::map<std::string, Seen> seen_;
};

}  // namespace worker
