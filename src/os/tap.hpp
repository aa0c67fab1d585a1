#pragma once

#include "os/fd.hpp"

namespace os {

/// Makes (or opens again) the tap device `name` in the thread's network namespace. The device stays
/// when the descriptor closes and dies with its namespace: the slow part of closing (20 ms, the
/// kernel waits for a grace period) is then nobody's business. Frames carry a virtio-net header.
base::Result<Fd> open_persistent_tap(char const* name);

}  // namespace os
