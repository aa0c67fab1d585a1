#pragma once

#include "base/result.hpp"

#include <string>

namespace hostd {

/// Gives `rules` to the kernel in one transaction, in the thread's network namespace: all or
/// nothing. The text is ours (constants and numbers), never anybody's input.
base::Result<void> load_rules(std::string const& rules);

}  // namespace hostd
