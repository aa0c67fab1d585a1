#pragma once

#include "base/clock.hpp"

#include <algorithm>

namespace gateway {

/// A token bucket without a timer: `rate` a second, at most one second's worth saved up.
class Bucket {
 public:
  Bucket(double rate, base::SteadyTime now) : rate_(rate), tokens_(rate), last_(now) {}

  bool take(base::SteadyTime now, double count = 1) noexcept {
    auto const passed = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    tokens_ = std::min(rate_, tokens_ + std::max(0.0, passed) * rate_);
    if (tokens_ < count) return false;
    tokens_ -= count;
    return true;
  }

  /// A first rate comes with its full second; a later one does not refill.
  void set_rate(double rate) noexcept {
    if (rate_ == 0) tokens_ = rate;
    rate_ = rate;
  }

 private:
  double rate_;
  double tokens_;
  base::SteadyTime last_;
};

}  // namespace gateway
