#include "controlplane/rate_limit.hpp"

#include <cmath>

namespace controlplane {
namespace {

constexpr std::chrono::seconds sweep_every{10};

double seconds(base::SteadyTime::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::optional<std::chrono::milliseconds> RateLimit::take(std::string const& name,
                                                         base::SteadyTime now) {
  if (now - swept_ > sweep_every) sweep(now);
  auto [place, fresh] = buckets_.try_emplace(name, Bucket{rate_.burst, now});
  auto& bucket = place->second;
  bucket.left = std::min(rate_.burst, bucket.left + seconds(now - bucket.at) * rate_.per_second);
  bucket.at = now;
  if (bucket.left >= 1) {
    bucket.left -= 1;
    return std::nullopt;
  }
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::ceil((1 - bucket.left) / rate_.per_second * 1000)));
}

void RateLimit::sweep(base::SteadyTime now) {
  swept_ = now;
  std::erase_if(buckets_, [&](auto const& one) {
    return one.second.left + seconds(now - one.second.at) * rate_.per_second >= rate_.burst;
  });
}

}  // namespace controlplane
