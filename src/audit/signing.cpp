#include "audit/checkpoint.hpp"
#include "os/fd.hpp"
#include "os/text_file.hpp"

#include <sys/stat.h>

#include <array>
#include <span>

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <unistd.h>

namespace audit {
namespace {

constexpr std::size_t key_bytes = 32;
constexpr std::size_t signature_bytes = 64;
constexpr std::size_t hash_digits = 64;
constexpr std::uint64_t sequence_max = std::uint64_t{1} << 62;  // signed in the database

unsigned char const* bytes_of(std::string_view text) {
  // SAFETY: char may alias unsigned char.
  return reinterpret_cast<unsigned char const*>(text.data());
}

std::string to_hex(std::span<unsigned char const> bytes) {
  std::string out;
  for (auto const byte : bytes)
    out += fmt::format("{:02x}", byte);
  return out;
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::vector<unsigned char> from_hex(std::string_view text) {
  auto const digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<unsigned char> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<unsigned char>(digit(text[i]) << 4 | digit(text[i + 1])));
  return out;
}

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using ContextPtr = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

base::Result<void> make_key(std::string const& path) {
  std::array<unsigned char, key_bytes> seed{};
  if (RAND_bytes(seed.data(), static_cast<int>(seed.size())) != 1)
    return base::fail(base::Code::internal, "make the audit key: no random bytes");
  // SAFETY: char may alias unsigned char.
  std::string text(reinterpret_cast<char const*>(seed.data()), seed.size());
  OPENSSL_cleanse(seed.data(), seed.size());
  auto kept = os::write_text_durably(path, text);
  OPENSSL_cleanse(text.data(), text.size());
  if (!kept) return base::passing(kept, "make the audit key");
  return {};
}

bool well_formed(wire::AuditCheckpoint const& one) {
  return is_hex(one.hash, hash_digits) && is_hex(one.signature, 2 * signature_bytes) &&
         one.first_sequence >= 1 && one.first_sequence <= one.last_sequence &&
         one.last_sequence <= sequence_max && one.made_at_us > 0;
}

}  // namespace

std::string signed_text(wire::AuditCheckpoint const& one) {
  return fmt::format("space audit checkpoint 1\n{}\n{}\n{}\n{}\n{}\n",
                     one.node,
                     one.first_sequence,
                     one.last_sequence,
                     one.hash,
                     one.made_at_us);
}

bool is_public_key(std::string const& text) {
  return is_hex(text, 2 * key_bytes);
}

std::string signed_text(std::string const& node, Retired const& retired) {
  return fmt::format("space audit retired 1\n{}\n{}\n{}\n", node, retired.through, retired.hash);
}

namespace {

bool is_signed_text(std::string const& text,
                    std::string const& hex_signature,
                    std::string const& public_key) {
  auto const raw = from_hex(public_key);
  KeyPtr const key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw.data(), raw.size()),
                   &EVP_PKEY_free);
  ContextPtr const context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (!key || !context) return false;
  if (EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1) return false;
  auto const signature = from_hex(hex_signature);
  return EVP_DigestVerify(
             context.get(), signature.data(), signature.size(), bytes_of(text), text.size()) == 1;
}

}  // namespace

bool is_signed(wire::AuditCheckpoint const& checkpoint, std::string const& public_key) {
  // A name with a line end would let one text mean two checkpoints.
  bool const named = checkpoint.node.find('\n') == std::string::npos;
  if (!named || !well_formed(checkpoint) || !is_public_key(public_key)) return false;
  return is_signed_text(signed_text(checkpoint), checkpoint.signature, public_key);
}

bool is_signed(std::string const& node, Retired const& retired, std::string const& public_key) {
  bool const formed = node.find('\n') == std::string::npos && is_hex(retired.hash, hash_digits) &&
                      is_hex(retired.signature, 2 * signature_bytes) && retired.through >= 1 &&
                      retired.through < sequence_max && is_public_key(public_key);
  return formed && is_signed_text(signed_text(node, retired), retired.signature, public_key);
}

struct SigningKey::Key {
  KeyPtr key{nullptr, &EVP_PKEY_free};
};

base::Result<SigningKey> SigningKey::open(std::string const& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return base::fail_errno("open the audit key", path);
    if (auto made = make_key(path); !made) return base::passing(made);
  }
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file || ::fstat(file.get(), &info) != 0) return base::fail_errno("open the audit key", path);
  bool const ours = info.st_uid == ::geteuid() && (info.st_mode & 077) == 0 &&
                    S_ISREG(info.st_mode) && info.st_size == static_cast<off_t>(key_bytes);
  if (!ours)
    return base::fail(base::Code::conflict,
                      "the audit key is not a file of 32 bytes that only its owner may read",
                      path);
  std::array<unsigned char, key_bytes> seed{};
  if (::read(file.get(), seed.data(), seed.size()) != static_cast<ssize_t>(seed.size()))
    return base::fail_errno("read the audit key", path);
  auto key = std::make_shared<Key>();
  key->key.reset(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
  OPENSSL_cleanse(seed.data(), seed.size());
  std::array<unsigned char, key_bytes> shown{};
  std::size_t length = shown.size();
  if (!key->key || EVP_PKEY_get_raw_public_key(key->key.get(), shown.data(), &length) != 1)
    return base::fail(base::Code::internal, "the audit key cannot be used", path);
  SigningKey out;
  out.key_ = std::move(key);
  out.public_key_ = to_hex(shown);
  return out;
}

base::Result<std::string> SigningKey::signature_of(std::string const& text) const {
  ContextPtr const context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  std::array<unsigned char, signature_bytes> signature{};
  std::size_t length = signature.size();
  bool const done =
      context &&
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_->key.get()) == 1 &&
      EVP_DigestSign(context.get(), signature.data(), &length, bytes_of(text), text.size()) == 1;
  if (!done) return base::fail(base::Code::internal, "the audit key does not sign");
  return to_hex(signature);
}

base::Result<void> SigningKey::sign(wire::AuditCheckpoint& checkpoint) const {
  auto made = signature_of(signed_text(checkpoint));
  if (!made) return base::passing(made, "sign a checkpoint");
  checkpoint.signature = std::move(*made);
  return {};
}

base::Result<void> SigningKey::sign(std::string const& node, Retired& retired) const {
  auto made = signature_of(signed_text(node, retired));
  if (!made) return base::passing(made, "sign what retention takes");
  retired.signature = std::move(*made);
  return {};
}

}  // namespace audit
