#pragma once

#include "base/result.hpp"
#include "base/secret.hpp"
#include "os/fd.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

/// Proof that a file is what this host wrote: states of machines are read by the VMM's own code, so
/// only ours may ever get there. All of it blocks.
namespace worker {

/// The host's key for this, in a file of its own (0600), made at its first use. Copyable.
class SealKey {
 public:
  static base::Result<SealKey> open(std::string const& path);

  /// HMAC-SHA256 in hex.
  std::string mac_of(std::string_view text) const;
  bool fits(std::string_view text, std::string_view mac) const;

 private:
  explicit SealKey(std::string key) : key_(std::make_shared<base::Secret>(std::move(key))) {}

  std::shared_ptr<base::Secret const> key_;
};

/// The hash of bytes that come in parts.
class Sha256 {
 public:
  Sha256();
  void add(void const* bytes, std::size_t size);
  /// Once, at the end.
  std::string hex();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// In hex.
std::string sha256_of(std::string_view bytes);
base::Result<std::string> sha256_of_file(std::string const& path);
/// Of a large file with holes: its size and what is not zero in it, however it is laid out.
base::Result<std::string> sha256_of_sparse(os::FdRef file);

}  // namespace worker
