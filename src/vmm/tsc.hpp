#pragma once

#include "base/result.hpp"

#include <cstdint>

namespace vmm {

/// The rate of this host's time-stamp counter in kHz, measured against the monotonic clock (about
/// 60 ms, blocking). The guest is told it (`tsc_early_khz`), because its own calibration hangs when
/// the host is busy; "cpu MHz" in /proc/cpuinfo follows frequency scaling and is no substitute.
/// Fails where the counter is not usable.
base::Result<std::uint64_t> measure_tsc_khz();

}  // namespace vmm
