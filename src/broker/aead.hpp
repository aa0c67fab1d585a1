#pragma once

#include "base/result.hpp"
#include "base/secret.hpp"

#include <string>
#include <string_view>

namespace broker {

inline constexpr std::size_t key_bytes = 32;

/// AES-256-GCM: nonce (12) ‖ ciphertext ‖ tag (16). The nonce is random; a data key encrypts once,
/// so it cannot repeat.
base::Result<std::string> encrypt(base::Secret const& key,
                                  std::string_view plaintext,
                                  std::string_view context);
/// Fails (and gives nothing) when a bit of text, context or key differs.
base::Result<base::Secret> decrypt(base::Secret const& key,
                                   std::string_view sealed,
                                   std::string_view context);

base::Secret random_key();
/// Lower-case hex of SHA-256.
std::string sha256_hex(std::string_view bytes);
std::string to_hex(std::string_view bytes);
base::Result<std::string> from_hex(std::string_view text);

}  // namespace broker
