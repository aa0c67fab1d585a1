#pragma once

#include "cli/doctor.hpp"

#include <optional>

namespace cli {

/// What the control plane says of this host's audit log. Nothing when it cannot be asked: other
/// findings say why.
std::optional<Finding> probe_audit(wire::Config const& config);

/// Pure: of the answer to GET /v1/nodes/{node}/audit/checkpoints. Nothing where no key is known.
std::optional<Finding> judge_audit(wire::json::value const& answer, std::string const& node);

}  // namespace cli
