#pragma once

#include <string>
#include <vector>

namespace cli {

/// Reads the command line and runs what it asks for. Returns the exit code: 0 done, 1 refused, 2
/// usage, 3 not found, 4 conflict, 5 unavailable, 124 deadline; `exec` and `shell` return the
/// command's own.
int run(std::vector<std::string> const& arguments);

}  // namespace cli
