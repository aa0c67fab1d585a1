#pragma once

#include "os/fd.hpp"

#include <optional>

namespace os {

struct DeviceNumber {
  unsigned major = 0;
  unsigned minor = 0;
};

/// The whole block device on which a file lies, also when its file system (btrfs) hides it behind a
/// number of its own. nullopt when there is none (tmpfs, network).
std::optional<DeviceNumber> device_behind(FdRef file);

}  // namespace os
