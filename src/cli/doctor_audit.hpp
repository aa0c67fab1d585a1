#pragma once

#include "cli/doctor.hpp"

#include <optional>

namespace cli {

/// What the control plane says of this host's audit log. Nothing when it cannot be asked: other
/// findings say why.
std::optional<Finding> probe_audit(wire::Config const& config);

}  // namespace cli
