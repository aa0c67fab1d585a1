#include "controlplane/tokens.hpp"

#include "base/id.hpp"
#include "os/fd.hpp"
#include "wire/codec.hpp"

#include <sys/stat.h>

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <unistd.h>

namespace controlplane {
namespace {

constexpr std::size_t secret_length = 64;  // hex digits
constexpr std::size_t nonce_length = 12;
constexpr std::size_t tag_length = 16;

// SAFETY (all casts below): characters are read and written as bytes.
unsigned char const* bytes_of(std::string_view text) {
  return reinterpret_cast<unsigned char const*>(text.data());
}

unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

bool is_hex(std::string_view text) noexcept {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string from_hex(std::string_view hex) {
  std::string out;
  auto const digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return out;
}

base::Result<base::Secret> read_secret(std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return base::fail_errno("open the token key", path);
  std::string text(secret_length + 2, '\0');
  auto const got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return base::fail_errno("read the token key", path);
  text.resize(static_cast<std::size_t>(got));
  while (text.ends_with('\n'))
    text.pop_back();
  if (text.size() != secret_length || !is_hex(text)) {
    return base::fail(
        base::Code::internal, "the token key is damaged: expected 64 hex digits", path);
  }
  return base::Secret(std::move(text));
}

/// Written beside its place and linked there: whoever is first wins, and nobody reads half a key.
base::Result<void> make_secret(std::string const& path) {
  auto const temporary = fmt::format("{}.{}", path, base::random_hex(8));
  os::Fd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno("make the token key", temporary);
  auto const text = base::random_hex(secret_length / 2) + "\n";
  bool const written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  auto closed = file.sync_and_close();
  bool const placed =
      written && closed && (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  int const why = errno;
  ::unlink(temporary.c_str());
  if (!placed) return base::fail_errno(why, "store the token key", path);
  return {};
}

struct CipherFree {
  void operator()(EVP_CIPHER_CTX* context) const noexcept { EVP_CIPHER_CTX_free(context); }
};

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, CipherFree>;

}  // namespace

base::Result<Tokens> Tokens::load(std::string const& path) {
  if (::access(path.c_str(), F_OK) != 0) {
    // The directory is made by the installer; in a development tree by us.
    auto const slash = path.rfind('/');
    if (slash != std::string::npos) ::mkdir(path.substr(0, slash).c_str(), 0700);
    auto made = make_secret(path);
    if (!made) return base::passing(made);
  }
  auto secret = read_secret(path);
  if (!secret) return base::passing(secret);
  return Tokens(std::move(*secret));
}

std::string Tokens::derive(std::string_view purpose, std::string_view text) const {
  // The purpose has no NUL, so no two pairs give the same message.
  std::string message(purpose);
  message += '\0';
  message += text;
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  unsigned length = 0;
  HMAC(EVP_sha256(),
       secret_.reveal().data(),
       static_cast<int>(secret_.reveal().size()),
       bytes_of(std::string_view(message)),
       message.size(),
       bytes_of(digest),
       &length);
  return digest;
}

std::string Tokens::access_token(std::string_view sandbox, std::uint32_t generation) const {
  return to_hex(derive("access", fmt::format("{}|{}", sandbox, generation)));
}

std::string Tokens::traffic_token(std::string_view sandbox, std::uint32_t generation) const {
  return to_hex(derive("traffic", fmt::format("{}|{}", sandbox, generation)));
}

std::string Tokens::seal(std::string_view sandbox,
                         std::map<std::string, std::string> const& env) const {
  if (env.empty()) return {};
  auto const key = derive("env", sandbox);
  auto const plain = wire::encode_text(env);
  std::string sealed(nonce_length + plain.size() + tag_length, '\0');
  RAND_bytes(bytes_of(sealed), nonce_length);
  Cipher const cipher(EVP_CIPHER_CTX_new());
  int length = 0;
  auto* const body = bytes_of(sealed) + nonce_length;
  EVP_EncryptInit_ex(cipher.get(),
                     EVP_aes_256_gcm(),
                     nullptr,
                     bytes_of(std::string_view(key)),
                     bytes_of(std::string_view(sealed)));
  EVP_EncryptUpdate(cipher.get(),
                    body,
                    &length,
                    bytes_of(std::string_view(plain)),
                    static_cast<int>(plain.size()));
  EVP_EncryptFinal_ex(cipher.get(), body + length, &length);
  EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, tag_length, body + plain.size());
  return to_hex(sealed);
}

base::Result<std::map<std::string, std::string>> Tokens::open(std::string_view sandbox,
                                                              std::string const& sealed) const {
  std::map<std::string, std::string> env;
  if (sealed.empty()) return env;
  auto const damaged = [] {
    return base::fail(base::Code::internal, "the sealed environment cannot be opened");
  };
  if (!is_hex(sealed) || sealed.size() % 2 != 0 || sealed.size() / 2 < nonce_length + tag_length)
    return damaged();
  auto bytes = from_hex(sealed);
  auto const key = derive("env", sandbox);
  auto const size = bytes.size() - nonce_length - tag_length;
  std::string plain(size, '\0');
  Cipher const cipher(EVP_CIPHER_CTX_new());
  int length = 0;
  auto* const body = bytes_of(bytes) + nonce_length;
  EVP_DecryptInit_ex(cipher.get(),
                     EVP_aes_256_gcm(),
                     nullptr,
                     bytes_of(std::string_view(key)),
                     bytes_of(std::string_view(bytes)));
  EVP_DecryptUpdate(cipher.get(), bytes_of(plain), &length, body, static_cast<int>(size));
  EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, tag_length, body + size);
  int last = 0;
  if (EVP_DecryptFinal_ex(cipher.get(), bytes_of(plain) + length, &last) != 1) return damaged();
  return wire::decode_text<std::map<std::string, std::string>>(plain);
}

std::string to_hex(std::string_view bytes) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (char const c : bytes) {
    auto const byte = static_cast<unsigned char>(c);
    hex += digits[byte >> 4];
    hex += digits[byte & 15];
  }
  return hex;
}

std::string sha256_hex(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(bytes_of(bytes), bytes.size(), bytes_of(digest));
  return to_hex(digest);
}

std::string make_key() {
  return "e2b_" + base::random_hex(20);
}

bool is_key(std::string_view text) noexcept {
  return text.size() == 44 && text.starts_with("e2b_") && is_hex(text.substr(4));
}

}  // namespace controlplane
