#pragma once

#include "base/clock.hpp"

#include <map>
#include <optional>
#include <string>

/// Requests per key, in this process. Pure: time is given.
namespace controlplane {

/// A token bucket per name. Buckets that are full again are dropped, so memory is bounded by the
/// keys that were active within burst / rate seconds.
class RateLimit {
 public:
  struct Rate {
    double per_second = 200;
    double burst = 400;
  };

  explicit RateLimit(Rate rate) : rate_(rate) {}

  /// Nothing when the request may go on; else how long to wait until one may.
  std::optional<std::chrono::milliseconds> take(std::string const& name, base::SteadyTime now);

  std::size_t size() const noexcept { return buckets_.size(); }

 private:
  struct Bucket {
    double left = 0;
    base::SteadyTime at;
  };

  void sweep(base::SteadyTime now);

  Rate rate_;
  std::map<std::string, Bucket> buckets_;
  base::SteadyTime swept_{};
};

}  // namespace controlplane
