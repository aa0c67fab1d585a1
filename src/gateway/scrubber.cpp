#include "gateway/scrubber.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace gateway {
namespace {

constexpr std::size_t value_bytes_min = 8;

std::string base64(std::string_view bytes, std::string_view last_two) {
  std::string const alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + std::string(last_two);
  std::string out;
  unsigned group = 0;
  unsigned bits = 0;
  for (char const c : bytes) {
    group = group << 8 | static_cast<unsigned char>(c);
    bits += 8;
    for (; bits >= 6; bits -= 6)
      out += alphabet[group >> (bits - 6) & 63];
  }
  return out;  // only whole sextets: what follows in the text would change the last one
}

/// The base64 of the value as it looks after `before` (0 to 2) unknown bytes: the first characters
/// that depend on those are left out.
std::string base64_after(std::string_view value, std::size_t before, std::string_view last_two) {
  auto const text = base64(std::string(before, '\0') + std::string(value), last_two);
  return text.substr(before == 0 ? 0 : before + 1);
}

std::string hex(std::string_view value, bool upper) {
  std::string out;
  for (char const c : value) {
    auto const byte = static_cast<unsigned char>(c);
    out += upper ? fmt::format("{:02X}", byte) : fmt::format("{:02x}", byte);
  }
  return out;
}

std::string percent(std::string_view value, bool upper) {
  std::string out;
  for (char const c : value) {
    bool const plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-_.~").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : "%" + hex(std::string_view(&c, 1), upper);
  }
  return out;
}

/// Every byte, also those that need it not.
std::string percent_all(std::string_view value, bool upper) {
  std::string out;
  for (char const c : value)
    out += "%" + hex(std::string_view(&c, 1), upper);
  return out;
}

std::string json_escaped(std::string_view value) {
  std::string out;
  for (char const c : value) {
    if (c == '"' || c == '\\' || c == '/') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Scrubber::Scrubber(std::string_view value) {
  if (value.size() < value_bytes_min) return;
  patterns_ = {std::string(value),
               percent(value, false),
               percent(value, true),
               percent_all(value, false),
               percent_all(value, true),
               json_escaped(value),
               hex(value, false),
               hex(value, true)};
  for (std::string_view last_two : {"+/", "-_"})
    for (std::size_t before = 0; before < 3; ++before)
      patterns_.push_back(base64_after(value, before, last_two));
  std::ranges::sort(patterns_);
  patterns_.erase(std::ranges::unique(patterns_).begin(), patterns_.end());
  for (auto const& pattern : patterns_)
    longest_ = std::max(longest_, pattern.size());
}

void Scrubber::overwrite(std::string& text) {
  for (auto const& pattern : patterns_) {
    for (auto at = text.find(pattern); at != std::string::npos;
         at = text.find(pattern, at + pattern.size())) {
      text.replace(at, pattern.size(), pattern.size(), '*');
      ++hits_;
    }
  }
}

std::string Scrubber::pass(std::string_view bytes) {
  held_ += bytes;
  if (longest_ == 0) return std::exchange(held_, {});
  overwrite(held_);
  if (held_.size() < longest_) return {};
  auto const safe = held_.size() - (longest_ - 1);
  auto out = held_.substr(0, safe);
  held_.erase(0, safe);
  return out;
}

std::string Scrubber::finish() {
  return std::exchange(held_, {});
}

std::string Scrubber::scrub(std::string_view text) {
  std::string out(text);
  overwrite(out);
  return out;
}

}  // namespace gateway
