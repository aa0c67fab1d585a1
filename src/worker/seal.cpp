#include "worker/seal.hpp"

#include "base/id.hpp"
#include "os/text_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

namespace worker {
namespace {

constexpr std::size_t key_digits = 64;
constexpr off_t chunk_bytes = 64 * 1024;

std::string hex_of(unsigned char const* bytes, std::size_t size) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(size * 2);
  for (std::size_t i = 0; i < size; ++i) {
    out.push_back(digits[bytes[i] >> 4U]);
    out.push_back(digits[bytes[i] & 15U]);
  }
  return out;
}

/// Reads up to a whole chunk at `at`; less only at the file's end.
base::Result<std::size_t> read_chunk(os::FdRef file, std::vector<char>& buffer, off_t at) {
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    auto const got = ::pread(file.get(),
                             buffer.data() + filled,
                             buffer.size() - filled,
                             at + static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno("read a snapshot's file");
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

/// Made once: whoever comes second finds the first one's.
base::Result<void> make_key(std::string const& path) {
  os::Fd const file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno("make the host's key", path);
  auto const text = base::random_hex(key_digits / 2);
  bool const written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.get()) == 0;
  return written ? base::Result<void>() : base::fail_errno("write the host's key", path);
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
}

void Sha256::add(void const* bytes, std::size_t size) {
  EVP_DigestUpdate(context_.get(), bytes, size);
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> sum{};
  EVP_DigestFinal_ex(context_.get(), sum.data(), nullptr);
  return hex_of(sum.data(), sum.size());
}

base::Result<SealKey> SealKey::open(std::string const& path) {
  struct stat about{};
  if (::lstat(path.c_str(), &about) != 0) {
    if (errno != ENOENT) return base::fail_errno("look for the host's key", path);
    if (auto made = make_key(path); !made) return std::unexpected(made.error());
  } else if ((about.st_mode & 077U) != 0 || !S_ISREG(about.st_mode)) {
    return base::fail(
        base::Code::denied, "the host's key must be a file of the worker alone", path);
  }
  auto text = os::read_text(path, 1024);
  if (!text) return base::passing(text, "read the host's key");
  if (text->size() != key_digits)
    return base::fail(base::Code::internal,
                      "the host's key is damaged; remove the file, and snapshots are made anew",
                      path);
  return SealKey(std::move(*text));
}

std::string SealKey::mac_of(std::string_view text) const {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned size = 0;
  auto const& key = key_->reveal();
  // SAFETY: OpenSSL takes bytes as unsigned char.
  HMAC(EVP_sha256(),
       key.data(),
       static_cast<int>(key.size()),
       reinterpret_cast<unsigned char const*>(text.data()),
       text.size(),
       out.data(),
       &size);
  return hex_of(out.data(), size);
}

bool SealKey::fits(std::string_view text, std::string_view mac) const {
  return base::equal_in_constant_time(mac_of(text), mac);
}

std::string sha256_of(std::string_view bytes) {
  Sha256 digest;
  digest.add(bytes.data(), bytes.size());
  return digest.hex();
}

base::Result<std::string> sha256_of_file(std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open a file to look at it", path);
  Sha256 digest;
  std::vector<char> buffer(std::size_t{256} * 1024);
  for (off_t at = 0;;) {
    auto const got = read_chunk(file, buffer, at);
    if (!got) return std::unexpected(got.error());
    if (*got == 0) return digest.hex();
    digest.add(buffer.data(), *got);
    at += static_cast<off_t>(*got);
  }
}

base::Result<std::string> sha256_of_sparse(os::FdRef file) {
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return base::fail_errno("look at a snapshot's file");
  Sha256 digest;
  digest.add(&about.st_size, sizeof about.st_size);
  std::vector<char> buffer(chunk_bytes);
  for (off_t at = 0; at < about.st_size; at += chunk_bytes) {
    auto const data = ::lseek(file.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data < 0) return base::fail_errno("read a snapshot's file");
    at = std::max(at, data / chunk_bytes * chunk_bytes);
    auto const got = read_chunk(file, buffer, at);
    if (!got) return std::unexpected(got.error());
    std::string_view const chunk(buffer.data(), *got);
    if (chunk.find_first_not_of('\0') == std::string_view::npos) continue;
    digest.add(&at, sizeof at);
    digest.add(chunk.data(), chunk.size());
  }
  return digest.hex();
}

}  // namespace worker
