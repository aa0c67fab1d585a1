#pragma once

#include <string>
#include <string_view>

namespace base {

/// A value that must not reach a log, an error, a core dump or another tenant. No formatter, no
/// implicit copy, wiped at the end; compare with equals(), read with reveal() where it is used.
class Secret {
 public:
  Secret() = default;

  explicit Secret(std::string value) : value_(std::move(value)) {}

  Secret(Secret&& from) noexcept : value_(std::move(from.value_)) { from.wipe(); }

  Secret& operator=(Secret&& from) noexcept;
  Secret(Secret const&) = delete;
  Secret& operator=(Secret const&) = delete;

  ~Secret() { wipe(); }

  bool empty() const noexcept { return value_.empty(); }

  /// Constant time in the length of the given text.
  bool equals(std::string_view other) const noexcept;

  std::string const& reveal() const noexcept { return value_; }

  Secret duplicate() const { return Secret(value_); }

 private:
  void wipe() noexcept;
  std::string value_;
};

/// Comparison whose time depends on the lengths only.
bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept;

}  // namespace base
