#include "proxy/digest.hpp"

#include <array>

#include <openssl/sha.h>

namespace proxy {

std::string sha256_hex(std::string_view text) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  // SAFETY: OpenSSL takes text as unsigned bytes.
  SHA256(reinterpret_cast<unsigned char const*>(text.data()), text.size(), digest.data());
  std::string out;
  for (auto const byte : digest) {
    out += digits[byte >> 4];
    out += digits[byte & 15];
  }
  return out;
}

}  // namespace proxy
