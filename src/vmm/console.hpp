#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vmm {

/// The newest bytes of an endless output. Bounded; what falls out is counted. Grows with what is
/// written, so an idle machine's console costs what it printed.
class ConsoleRing {
 public:
  explicit ConsoleRing(std::size_t bytes_max = 1 << 20) : bytes_max_(bytes_max) {}

  void append(std::string_view bytes);
  /// The newest `bytes_max` bytes.
  std::string tail(std::size_t bytes_max) const;

  /// Everything ever appended; `written() - size()` were dropped.
  std::uint64_t written() const noexcept { return written_; }

  std::size_t size() const noexcept { return bytes_.size(); }

  std::uint64_t dropped() const noexcept { return written_ - bytes_.size(); }

 private:
  std::size_t bytes_max_;
  std::string bytes_;     // a ring once it is bytes_max_ long
  std::size_t next_ = 0;  // where the next byte goes, then
  std::uint64_t written_ = 0;
};

}  // namespace vmm
