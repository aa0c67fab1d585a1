#pragma once

#include <boost/json/object.hpp>

namespace agent {

/// GET /metrics: what this machine uses now. `cpu_used_pct` covers the time since the last call
/// (the first one: since boot), in percent of all processors together.
boost::json::object machine_metrics();

}  // namespace agent
