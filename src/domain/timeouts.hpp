#pragma once

#include "base/result.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

/// How long a sandbox may live. Numbers come from callers as whole seconds and may be anything.
namespace domain {

struct TimeoutLimits {
  std::chrono::seconds longest{std::chrono::hours(24)};
};

/// For a create or a connect: 1 second to `limits.longest`. Errors (invalid_argument) are
/// sentences: "timeout must be greater than 0 seconds", "Timeout cannot be greater than 24 hours".
base::Result<std::chrono::seconds> check_timeout(std::int64_t seconds, TimeoutLimits limits = {});

/// For a change of a running sandbox: as above, but 0 is allowed and means "now".
base::Result<std::chrono::seconds> check_new_timeout(std::int64_t seconds,
                                                     TimeoutLimits limits = {});

/// What becomes of the deadline of a sandbox that is to be deleted then, once it is suspended:
/// nothing means that it no longer counts, else it comes as set, but not before this time is over.
/// `actor` is who suspended it: its owner's own suspend is for as long as he likes; the platform's
/// is not, and one of a host that stops leaves time to come back to it.
std::optional<std::chrono::seconds> deadline_grace(std::string_view actor) noexcept;

/// "24 hours", "90 minutes", "45 seconds": the largest unit that divides it.
std::string spell(std::chrono::seconds duration);

}  // namespace domain
