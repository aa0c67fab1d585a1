#pragma once

#include <string>
#include <string_view>

namespace proxy {

/// Lower-case hex of SHA-256; tokens are compared and looked up by it, never kept.
std::string sha256_hex(std::string_view text);

}  // namespace proxy
