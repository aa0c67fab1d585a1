#pragma once

#include "base/result.hpp"
#include "wire/config.hpp"

#include <string>

namespace cli {

/// Waits until sandboxes can be made from that build: the API answers, the node is ready with it,
/// and the template is registered. Runs a loop of its own. unavailable after half a minute, saying
/// what is missing.
base::Result<void> await_build(wire::Config const& config, std::string const& build);

}  // namespace cli
