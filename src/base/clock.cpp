#include "base/clock.hpp"

#include <ctime>

#include <fmt/format.h>

namespace base {
namespace {

class SystemClock final : public Clock {
 public:
  SteadyTime steady_now() const override { return std::chrono::steady_clock::now(); }

  WallTime wall_now() const override { return std::chrono::system_clock::now(); }
};

}  // namespace

Clock const& system_clock() {
  static SystemClock const clock;
  return clock;
}

std::string to_rfc3339(WallTime time) {
  auto const micros = std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch());
  auto const seconds = std::chrono::floor<std::chrono::seconds>(micros);
  std::time_t const whole = seconds.count();
  tm parts{};
  gmtime_r(&whole, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
                     parts.tm_year + 1900,
                     parts.tm_mon + 1,
                     parts.tm_mday,
                     parts.tm_hour,
                     parts.tm_min,
                     parts.tm_sec,
                     (micros - seconds).count());
}

}  // namespace base
