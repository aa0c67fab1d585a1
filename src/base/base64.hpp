#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace base {

/// Appends the standard alphabet with padding, without line breaks.
void append_base64(std::string& out, std::string_view bytes);
std::string base64_of(std::string_view bytes);

/// Standard or URL-safe alphabet, padding optional (as JSON's mapping of protobuf allows). Nothing
/// when the text is no base64.
std::optional<std::string> base64_decoded(std::string_view text);

}  // namespace base
