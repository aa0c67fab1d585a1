#pragma once

#include "base/clock.hpp"

#include <algorithm>
#include <cstdint>

namespace domain {

/// A budget of so many a second with one second's worth saved up. One instant is all its state, and
/// no timer runs: whole nanoseconds, so nothing drifts. The rate is said with each question, hence
/// a new policy's rate holds at once and refills nothing.
class Pace {
 public:
  /// How long until one more fits; zero: now. With a rate of zero none ever does.
  std::chrono::nanoseconds wait(base::SteadyTime now, std::uint32_t per_s) const noexcept {
    if (per_s == 0) return std::chrono::nanoseconds::max();
    return std::max(std::chrono::nanoseconds(0), spent_until_ - now - (second - each(per_s)));
  }

  /// Takes one, perhaps ahead of its time: whoever came too early and waits has its place.
  void charge(base::SteadyTime now, std::uint32_t per_s) noexcept {
    if (per_s > 0) spent_until_ = std::max(spent_until_, now) + each(per_s);
  }

  /// Nothing of it is spent: forgetting it changes nothing.
  bool idle(base::SteadyTime now) const noexcept { return spent_until_ <= now; }

 private:
  static constexpr std::chrono::nanoseconds second = std::chrono::seconds(1);

  static std::chrono::nanoseconds each(std::uint32_t per_s) noexcept { return second / per_s; }

  base::SteadyTime spent_until_{};
};

}  // namespace domain
