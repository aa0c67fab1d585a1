#pragma once

#include <algorithm>
#include <chrono>

namespace controller {

/// Pauses between attempts: doubling from `first` to `most`. No randomness: a handful of
/// controllers.
class Backoff {
 public:
  explicit Backoff(std::chrono::milliseconds first = std::chrono::milliseconds(100),
                   std::chrono::milliseconds most = std::chrono::milliseconds(2000))
      : first_(first), most_(most), next_(first) {}

  std::chrono::milliseconds next() noexcept {
    auto const now = next_;
    next_ = std::min(next_ * 2, most_);
    return now;
  }

  void reset() noexcept { next_ = first_; }

  bool idle() const noexcept { return next_ == first_; }

 private:
  std::chrono::milliseconds first_;
  std::chrono::milliseconds most_;
  std::chrono::milliseconds next_;
};

}  // namespace controller
