#pragma once

#include "base/result.hpp"
#include "base/secret.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace broker {

/// Keeps the key that wraps the keys of credentials. The file provider below is the one that ships;
/// PKCS#11, a transit service or a cloud's KMS fit the same three calls.
class KeyProvider {
 public:
  virtual ~KeyProvider() = default;
  /// Names the wrapping key that wrap() uses now; stored beside what it wrapped.
  virtual std::string key_id() const = 0;
  /// `context` is bound to the result: unwrap() with another one fails.
  virtual base::Result<std::string> wrap(base::Secret const& data_key,
                                         std::string_view context) const = 0;
  virtual base::Result<base::Secret> unwrap(std::string_view wrapped,
                                            std::string_view key_id,
                                            std::string_view context) const = 0;
};

/// A random 256-bit key in `<directory>/root.key` (0600, made when missing unless `existing_only`).
/// A file of another length, owner or mode is refused, and so is a missing one when credentials
/// were sealed before (`root.id` is there).
base::Result<std::unique_ptr<KeyProvider>> open_file_keys(std::string const& directory);

}  // namespace broker
