#pragma once

#include <chrono>
#include <string>

namespace base {

using SteadyTime = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::system_clock::time_point;

/// "When", not "how long": converted once at the edge, then passed on. May be shortened, never
/// extended.
using Deadline = SteadyTime;

/// The only place that reads time. Rules take a Clock&; tests give a ManualClock.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyTime steady_now() const = 0;
  virtual WallTime wall_now() const = 0;

  Deadline in(std::chrono::milliseconds duration) const { return steady_now() + duration; }
};

/// The kernel's clocks; one for the process.
Clock const& system_clock();

class ManualClock final : public Clock {
 public:
  SteadyTime steady_now() const override { return steady_; }

  WallTime wall_now() const override { return wall_; }

  void advance(std::chrono::milliseconds by) {
    steady_ += by;
    wall_ += by;
  }

 private:
  SteadyTime steady_{};
  WallTime wall_{std::chrono::sys_days{std::chrono::year{2030} / 1 / 1}};
};

/// RFC 3339 in UTC with microseconds: "2030-01-01T00:00:00.000000Z".
std::string to_rfc3339(WallTime time);

}  // namespace base
