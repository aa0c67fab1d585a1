#pragma once

#include "base/result.hpp"

#include <string>
#include <string_view>

namespace base {

/// Outside ids: a one-letter kind and 20 characters of [a-z0-9], e.g. "i4k0…" for a sandbox. They
/// become DNS labels and file names, so nothing else is ever accepted. Made from 128 random bits.
std::string make_short_id(char kind);

/// True for `kind` + 20 × [a-z0-9].
bool is_short_id(char kind, std::string_view text) noexcept;

/// UUID version 7 (time-ordered), lower-case with dashes: the inside id of rows.
std::string make_uuid7();

/// `n` random bytes of the kernel as lower-case hex (2n characters).
std::string random_hex(std::size_t bytes);

/// A sandbox's public id. A value of this type is valid.
class SandboxId {
 public:
  static Result<SandboxId> parse(std::string_view text);

  static SandboxId make() { return SandboxId(make_short_id('i')); }

  std::string const& str() const noexcept { return value_; }

  friend auto operator<=>(SandboxId const&, SandboxId const&) = default;

 private:
  explicit SandboxId(std::string value) : value_(std::move(value)) {}

  std::string value_;
};

}  // namespace base
