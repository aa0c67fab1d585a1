#pragma once

#include <string_view>

namespace controlplane {

/// api/openapi.yaml as JSON, compiled in.
std::string_view openapi_json();

}  // namespace controlplane
