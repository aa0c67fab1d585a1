#pragma once

#include "base/result.hpp"
#include "base/secret.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

/// Tokens of sandboxes and the sealing of their environments, all derived from one secret of the
/// installation. A token is a function of the sandbox and its generation: nothing that opens a
/// sandbox is stored, and a new generation makes the old token worthless.
namespace controlplane {

class Tokens {
 public:
  /// Reads `path`, or makes it (0600, 32 random bytes). Several processes may start at once: all
  /// end up with the same secret.
  static base::Result<Tokens> load(std::string const& path);

  explicit Tokens(base::Secret secret) : secret_(std::move(secret)) {}

  /// 64 hex digits: for port 49983 of the sandbox (X-Access-Token).
  std::string access_token(std::string_view sandbox, std::uint32_t generation) const;
  /// 64 hex digits: for its other ports, when its traffic is not public.
  std::string traffic_token(std::string_view sandbox, std::uint32_t generation) const;

  /// AES-256-GCM, bound to the sandbox. "" for an empty map.
  std::string seal(std::string_view sandbox, std::map<std::string, std::string> const& env) const;
  /// `internal` when it was sealed for another sandbox, by another installation, or changed.
  base::Result<std::map<std::string, std::string>> open(std::string_view sandbox,
                                                        std::string const& sealed) const;

 private:
  std::string derive(std::string_view purpose, std::string_view text) const;  // 32 bytes
  base::Secret secret_;
};

/// Lower-case hex of SHA-256.
std::string sha256_hex(std::string_view bytes);
std::string to_hex(std::string_view bytes);

/// A fresh API key: "e2b_" + 40 hex digits.
std::string make_key();
/// Has it that shape? What has not is refused without asking the database.
bool is_key(std::string_view text) noexcept;

}  // namespace controlplane
