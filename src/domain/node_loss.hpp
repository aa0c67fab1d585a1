#pragma once

#include "base/clock.hpp"

#include <optional>

/// When a silent host is given up.
namespace domain {

/// Silence alone proves nothing: machines outlive their worker, and a cut network looks the same. A
/// node counts as lost when somebody who can know said so (an operator; later the cluster), when it
/// has not been heard of since, and when its last report is a minute old. After that its sandboxes
/// may be ended, and a worker that returns with them all the same has them removed: they have no
/// rows any more.
inline bool is_lost(base::WallTime now,
                    std::optional<base::WallTime> heard_at,
                    std::optional<base::WallTime> declared_at) noexcept {
  if (!declared_at) return false;
  if (!heard_at) return true;
  return *heard_at <= *declared_at && now - *heard_at >= std::chrono::seconds(60);
}

}  // namespace domain
