#include "vmm/tsc.hpp"

#include <algorithm>
#include <array>

#include <time.h>
#include <x86intrin.h>

namespace vmm {
namespace {

struct Sample {
  std::uint64_t ticks = 0;
  std::uint64_t ns = 0;
};

std::uint64_t monotonic_ns() {
  timespec now{};
  if (::clock_gettime(CLOCK_MONOTONIC_RAW, &now) != 0) return 0;
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

/// The pair with the least time between its two halves out of several: one that was not
/// interrupted.
Sample sample() {
  Sample best;
  std::uint64_t least = UINT64_MAX;
  for (int i = 0; i < 16; ++i) {
    auto const before = __rdtsc();
    auto const ns = monotonic_ns();
    auto const after = __rdtsc();
    if (after - before >= least) continue;
    least = after - before;
    best = {before + (after - before) / 2, ns};
  }
  return best;
}

}  // namespace

base::Result<std::uint64_t> measure_tsc_khz() {
  std::array<std::uint64_t, 3> rates{};
  for (auto& rate : rates) {
    auto const first = sample();
    timespec const pause{.tv_sec = 0, .tv_nsec = 20'000'000};
    ::nanosleep(&pause, nullptr);
    auto const second = sample();
    if (second.ticks <= first.ticks || second.ns <= first.ns) {
      return base::fail(base::Code::unavailable, "this host's time-stamp counter does not advance");
    }
    rate = (second.ticks - first.ticks) * 1'000'000U / (second.ns - first.ns);
  }
  std::ranges::sort(rates);
  auto const spread = rates[2] - rates[0];
  if (rates[1] < 100'000 || spread > rates[1] / 50) {
    return base::fail(base::Code::unavailable, "this host's time-stamp counter has no steady rate");
  }
  return rates[1];
}

}  // namespace vmm
