#pragma once

#include "agent/users.hpp"

/// How the in-guest protocol reads a path: whose home `~` and relative paths mean, and what is
/// refused.
namespace agent {

/// "" → `default_workdir` (the user's home when that is empty); "~" and "~/x" → the home; "/x" →
/// unchanged, not even cleaned; "x" → below the home, cleaned. `invalid_argument` for "~name", a
/// NUL, or over 4095 bytes.
base::Result<std::string> resolve_path(std::string_view path,
                                       User const& user,
                                       std::string_view default_workdir);

/// Takes out ".", "..", doubled and trailing slashes by text alone. Of an absolute path; never
/// empty.
std::string clean_path(std::string_view path);

/// The last component ("/" for the root), trailing slashes not counted.
std::string base_name(std::string_view path);
/// All before the last component, as it stands; "/" at the top.
std::string parent_of(std::string_view path);

/// The same text with every byte that is no UTF-8 replaced by U+FFFD: file names are bytes, JSON is
/// not.
std::string as_utf8(std::string_view bytes);

}  // namespace agent
