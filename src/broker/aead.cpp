#include "broker/aead.hpp"

#include "base/assert.hpp"

#include <memory>

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

namespace broker {
namespace {

constexpr std::size_t nonce_bytes = 12;
constexpr std::size_t tag_bytes = 16;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const noexcept { EVP_CIPHER_CTX_free(context); }
};

using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

// SAFETY: OpenSSL takes bytes as unsigned char; char may alias anything.
unsigned char const* bytes_of(std::string_view text) noexcept {
  return reinterpret_cast<unsigned char const*>(text.data());
}

unsigned char* bytes_of(std::string& text) noexcept {
  return reinterpret_cast<unsigned char*>(text.data());
}

std::unexpected<base::Error> broken() {
  return base::fail(base::Code::denied, "the sealed value does not open with this key and context");
}

}  // namespace

base::Result<std::string> encrypt(base::Secret const& key,
                                  std::string_view plaintext,
                                  std::string_view context) {
  SPACE_ASSERT(key.reveal().size() == key_bytes, "keys come from random_key() or unwrap()");
  std::string out(nonce_bytes + plaintext.size() + tag_bytes, '\0');
  Context cipher(EVP_CIPHER_CTX_new());
  int written = 0;
  bool const done =
      RAND_bytes(bytes_of(out), nonce_bytes) == 1 &&
      EVP_EncryptInit_ex(
          cipher.get(), EVP_aes_256_gcm(), nullptr, bytes_of(key.reveal()), bytes_of(out)) == 1 &&
      EVP_EncryptUpdate(
          cipher.get(), nullptr, &written, bytes_of(context), static_cast<int>(context.size())) ==
          1 &&
      EVP_EncryptUpdate(cipher.get(),
                        bytes_of(out) + nonce_bytes,
                        &written,
                        bytes_of(plaintext),
                        static_cast<int>(plaintext.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), bytes_of(out) + nonce_bytes + written, &written) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(),
                          EVP_CTRL_GCM_GET_TAG,
                          tag_bytes,
                          bytes_of(out) + nonce_bytes + plaintext.size()) == 1;
  if (!done) return base::fail(base::Code::internal, "encryption failed");
  return out;
}

base::Result<base::Secret> decrypt(base::Secret const& key,
                                   std::string_view sealed,
                                   std::string_view context) {
  if (key.reveal().size() != key_bytes || sealed.size() < nonce_bytes + tag_bytes) return broken();
  auto const body = sealed.substr(nonce_bytes, sealed.size() - nonce_bytes - tag_bytes);
  std::string tag(sealed.substr(sealed.size() - tag_bytes));
  std::string out(body.size(), '\0');
  Context cipher(EVP_CIPHER_CTX_new());
  int written = 0;
  bool const done =
      EVP_DecryptInit_ex(
          cipher.get(), EVP_aes_256_gcm(), nullptr, bytes_of(key.reveal()), bytes_of(sealed)) ==
          1 &&
      EVP_DecryptUpdate(
          cipher.get(), nullptr, &written, bytes_of(context), static_cast<int>(context.size())) ==
          1 &&
      EVP_DecryptUpdate(
          cipher.get(), bytes_of(out), &written, bytes_of(body), static_cast<int>(body.size())) ==
          1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, tag_bytes, tag.data()) == 1 &&
      EVP_DecryptFinal_ex(cipher.get(), bytes_of(out) + written, &written) == 1;
  base::Secret value(std::move(out));
  if (!done) return broken();
  return value;
}

base::Secret random_key() {
  std::string key(key_bytes, '\0');
  SPACE_ASSERT(RAND_bytes(bytes_of(key), key_bytes) == 1,
               "without randomness nothing may be sealed");
  return base::Secret(std::move(key));
}

std::string to_hex(std::string_view bytes) {
  std::string out;
  for (char const c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

base::Result<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return base::fail(base::Code::invalid_argument, "hex of an odd length");
  auto const digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    int const high = digit(text[i]);
    int const low = digit(text[i + 1]);
    if (high < 0 || low < 0) return base::fail(base::Code::invalid_argument, "not lower-case hex");
    out += static_cast<char>(high << 4 | low);
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(bytes_of(bytes), bytes.size(), bytes_of(digest));
  return to_hex(digest);
}

}  // namespace broker
