#pragma once

#include "base/clock.hpp"

namespace cli {

/// When to start a program again that ended by itself: soon at first (100 ms), then twice as long
/// each time up to 5 s, and soon again once it has lived for 10 s. Never gives up: a host at night
/// must come back by itself when its disk has space again. Pure.
class RestartPolicy {
 public:
  void started(base::SteadyTime now) noexcept { started_ = now; }

  /// The pause before the next start.
  std::chrono::milliseconds ended(base::SteadyTime now) noexcept {
    if (now - started_ >= steady_life) pause_ = first_pause;
    auto const pause = pause_;
    pause_ = std::min(pause_ * 2, longest_pause);
    ++restarts_;
    return pause;
  }

  int restarts() const noexcept { return restarts_; }

  static constexpr std::chrono::milliseconds first_pause{100};
  static constexpr std::chrono::milliseconds longest_pause{5'000};
  static constexpr std::chrono::seconds steady_life{10};

 private:
  base::SteadyTime started_{};
  std::chrono::milliseconds pause_ = first_pause;
  int restarts_ = 0;
};

}  // namespace cli
