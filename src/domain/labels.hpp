#pragma once

#include "base/result.hpp"

#include <map>
#include <string>
#include <string_view>

/// The two string maps that a caller hangs on a sandbox, and the filter over the first.
namespace domain {

using Labels = std::map<std::string, std::string>;

/// At most 64 pairs, keys of 1 to 256 bytes, values up to 4096, valid UTF-8 without NUL (the
/// database keeps it as JSON). invalid_argument with the key's name.
base::Result<void> check_metadata(Labels const& metadata);

/// At most 256 variables, 64 KiB together; names are not empty and hold neither '=' nor NUL; values
/// hold no NUL. Other bytes are the guest's business.
base::Result<void> check_environment(Labels const& environment, std::string_view field = "envVars");

/// The `metadata` parameter of E2B's lists, after the ordinary decoding of the query. Clients
/// escape each key and value twice before the query is escaped a third time: here the whole is
/// unescaped once, split at '&' and the first '=', and every key and value is unescaped again. All
/// pairs must match. Malformed filters are invalid_argument, never "everything".
base::Result<Labels> parse_metadata_filter(std::string_view text);

/// True when every pair of `filter` is in `metadata`, exactly.
bool matches(Labels const& filter, Labels const& metadata) noexcept;

bool is_utf8(std::string_view text) noexcept;

}  // namespace domain
