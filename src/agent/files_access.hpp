#pragma once

#include "base/clock.hpp"
#include "base/secret.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Who may use /files: the bearer of the sandbox's access token, or of a URL that was signed with
/// it.
namespace agent {

enum class FileOperation : std::uint8_t { read, write };

/// What a signature covers, as the query spells it (the path is not resolved).
struct SignedRequest {
  FileOperation operation = FileOperation::read;
  std::string path;
  std::string username;                    // "" when the query has none
  std::optional<std::int64_t> expiration;  // Unix seconds
};

/// "v1_" and 43 characters of base64.
std::string file_signature(SignedRequest const& request, std::string_view token);

/// The sentence of a 401, or nothing when access is granted. `token_header` is X-Access-Token,
/// `signature` the query's. No token set means no check. Comparisons take the same time for every
/// wrong value. An expiration in the past, 0 and negative ones included, is expired; none at all
/// never expires.
std::optional<std::string> file_access_refused(base::Secret const& token,
                                               std::optional<std::string_view> token_header,
                                               std::optional<std::string_view> signature,
                                               SignedRequest const& request,
                                               base::WallTime now);

}  // namespace agent
