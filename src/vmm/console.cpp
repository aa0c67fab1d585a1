#include "vmm/console.hpp"

#include <algorithm>

namespace vmm {

void ConsoleRing::append(std::string_view bytes) {
  written_ += bytes.size();
  if (bytes.size() > bytes_max_) bytes.remove_prefix(bytes.size() - bytes_max_);
  auto const room = std::min(bytes_max_ - bytes_.size(), bytes.size());
  bytes_.append(bytes.substr(0, room));
  bytes.remove_prefix(room);
  while (!bytes.empty()) {
    auto const part = std::min(bytes.size(), bytes_max_ - next_);
    bytes_.replace(next_, part, bytes.substr(0, part));
    next_ = (next_ + part) % bytes_max_;
    bytes.remove_prefix(part);
  }
}

std::string ConsoleRing::tail(std::size_t bytes_max) const {
  std::string all;
  auto const wanted = std::min(bytes_max, bytes_.size());
  all.reserve(wanted);
  // Oldest first: [next_, end) then [0, next_); skip what is not wanted.
  auto skip = bytes_.size() - wanted;
  auto const old_part = std::string_view(bytes_).substr(next_);
  auto const new_part = std::string_view(bytes_).substr(0, next_);
  if (skip < old_part.size()) all.append(old_part.substr(skip));
  skip = skip > old_part.size() ? skip - old_part.size() : 0;
  all.append(new_part.substr(skip));
  return all;
}

}  // namespace vmm
