#include "domain/timeouts.hpp"

#include <string_view>

namespace domain {
namespace {

std::string counted(std::int64_t count, std::string_view unit) {
  return fmt::format("{} {}{}", count, unit, count == 1 ? "" : "s");
}

base::Result<std::chrono::seconds> check_range(std::int64_t seconds, TimeoutLimits limits) {
  if (seconds < 0) {
    return base::fail(base::Code::invalid_argument,
                      fmt::format("timeout must not be negative; it was {}", seconds));
  }
  if (seconds > limits.longest.count()) {
    return base::fail(base::Code::invalid_argument,
                      fmt::format("Timeout cannot be greater than {}; it was {} seconds",
                                  spell(limits.longest),
                                  seconds));
  }
  return std::chrono::seconds(seconds);
}

}  // namespace

base::Result<std::chrono::seconds> check_timeout(std::int64_t seconds, TimeoutLimits limits) {
  if (seconds == 0) {
    return base::fail(base::Code::invalid_argument, "timeout must be greater than 0 seconds");
  }
  return check_range(seconds, limits);
}

base::Result<std::chrono::seconds> check_new_timeout(std::int64_t seconds, TimeoutLimits limits) {
  return check_range(seconds, limits);
}

std::optional<std::chrono::seconds> deadline_grace(std::string_view actor) noexcept {
  if (actor == "idle") return std::chrono::seconds(0);
  if (actor == "host") return std::chrono::hours(24 * 7);
  return std::nullopt;
}

std::string spell(std::chrono::seconds duration) {
  auto const count = duration.count();
  if (count != 0 && count % 3600 == 0) return counted(count / 3600, "hour");
  if (count != 0 && count % 60 == 0) return counted(count / 60, "minute");
  return counted(count, "second");
}

}  // namespace domain
