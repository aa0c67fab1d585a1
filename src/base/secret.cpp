#include "base/secret.hpp"

#include <cstring>

namespace base {

Secret& Secret::operator=(Secret&& from) noexcept {
  if (this == &from) return *this;
  wipe();
  value_ = std::move(from.value_);
  from.wipe();
  return *this;
}

bool Secret::equals(std::string_view other) const noexcept {
  return equal_in_constant_time(value_, other);
}

void Secret::wipe() noexcept {
  // The whole capacity: a moved-from short string keeps its bytes in the small buffer.
  value_.resize(value_.capacity());
  explicit_bzero(value_.data(), value_.size());
  value_.clear();
}

bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < b.size(); ++i) {
    auto const left = a.empty() ? '\0' : a[i % a.size()];
    difference = static_cast<unsigned char>(difference | static_cast<unsigned char>(left ^ b[i]));
  }
  return difference == 0;
}

}  // namespace base
