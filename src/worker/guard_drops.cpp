#include "worker/guard_drops.hpp"

#include "base/metric_names.hpp"

namespace worker {

void GuardCounts::note(std::string const& sandbox, hostd::GuardDrops const& drops) {
  auto& seen = seen_[sandbox];
  for (std::size_t i = 0; i < drops.size() && seen.known; ++i) {
    // Rules that were loaded anew begin at nought.
    auto const more = drops.at(i) - (drops.at(i) >= seen.drops.at(i) ? seen.drops.at(i) : 0);
    if (more > 0)
      into_.count(base::metric::guard_drops,
                  {hostd::name_of(static_cast<hostd::GuardRule>(i))},
                  static_cast<double>(more));
  }
  seen = {.known = true, .drops = drops};
}

}  // namespace worker
