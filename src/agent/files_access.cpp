// The digest alone: SHA256() and EVP go through the provider machinery, which brings all of
// libcrypto (3 MiB) into the static agent and thus into every guest's memory.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "agent/files_access.hpp"

#include "base/base64.hpp"

#include <array>
#include <chrono>

#include <openssl/sha.h>

namespace agent {

std::string file_signature(SignedRequest const& request, std::string_view token) {
  std::string covered = request.path;
  covered += request.operation == FileOperation::read ? ":read:" : ":write:";
  covered += request.username;
  covered += ':';
  covered += token;
  if (request.expiration) covered += ":" + std::to_string(*request.expiration);

  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  // SAFETY: the digest has the size the function writes.
  SHA256_CTX sha{};
  ::SHA256_Init(&sha);
  ::SHA256_Update(&sha, covered.data(), covered.size());
  ::SHA256_Final(digest.data(), &sha);
  auto text = base::base64_of(
      std::string_view(reinterpret_cast<char const*>(digest.data()), digest.size()));
  while (text.ends_with('='))
    text.pop_back();
  return "v1_" + text;
}

std::optional<std::string> file_access_refused(base::Secret const& token,
                                               std::optional<std::string_view> token_header,
                                               std::optional<std::string_view> signature,
                                               SignedRequest const& request,
                                               base::WallTime now) {
  if (token.empty()) return std::nullopt;
  if (token_header && !token_header->empty()) {
    if (token.equals(*token_header)) return std::nullopt;
    return "access token present in header but does not match";
  }
  if (!signature || signature->empty()) return "missing signature query parameter";
  if (!base::equal_in_constant_time(*signature, file_signature(request, token.reveal())))
    return "invalid signature";
  auto const seconds =
      std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  if (request.expiration && *request.expiration < seconds) return "signature is already expired";
  return std::nullopt;
}

}  // namespace agent
