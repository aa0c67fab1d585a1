#pragma once

#include "base/result.hpp"
#include "os/fd.hpp"

#include <sys/types.h>

namespace agent {

/// Both ends of a new pseudo-terminal.
struct Terminal {
  os::Fd master;
  os::Fd slave;
};

struct TerminalSize {
  std::uint32_t columns = 80;
  std::uint32_t rows = 24;
};

/// The slave belongs to `owner`, so that programs of his may open it again by name.
base::Result<Terminal> open_terminal(TerminalSize size, uid_t owner);

}  // namespace agent
