#include "domain/egress_policy.hpp"

namespace domain {
namespace {

bool is_escape_of(std::string_view text, std::size_t at, std::string_view hex) noexcept {
  if (at + 2 >= text.size()) return false;
  auto const lower = [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return lower(text[at + 1]) == hex[0] && lower(text[at + 2]) == hex[1];
}

bool is_ambiguous_escape(std::string_view path, std::size_t at) noexcept {
  // %2f and %5c become separators for some servers, %2e dot segments, %25 a second decoding, %00
  // the end.
  for (std::string_view hex : {"2f", "5c", "2e", "25", "00", "3b", "0d", "0a", "09"})
    if (is_escape_of(path, at, hex)) return true;
  auto const is_hex = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  };
  return at + 2 >= path.size() || !is_hex(path[at + 1]) || !is_hex(path[at + 2]);
}

}  // namespace

bool is_ambiguous_path(std::string_view path) noexcept {
  if (!path.starts_with('/')) return true;
  for (std::size_t i = 0; i < path.size(); ++i) {
    auto const c = static_cast<unsigned char>(path[i]);
    if (c <= 0x20 || c >= 0x7f || c == '\\' || c == ';') return true;
    if (c == '%' && is_ambiguous_escape(path, i)) return true;
    if (c != '/') continue;
    auto const rest = path.substr(i + 1);
    if (rest.starts_with('/')) return true;
    auto const segment = rest.substr(0, rest.find('/'));
    if (segment == "." || segment == "..") return true;
  }
  return false;
}

bool path_matches(std::string_view glob, std::string_view path) noexcept {
  // Two resume points, one per kind of star: a failed `*` falls back to the last `**`. Each restart
  // moves the restart position on, so the work is bounded by glob × path (both have length limits).
  constexpr auto none = std::string_view::npos;
  std::size_t g = 0;
  std::size_t p = 0;
  std::size_t star_g = none;
  std::size_t star_p = 0;
  std::size_t wide_g = none;
  std::size_t wide_p = 0;
  while (p < path.size() || g < glob.size()) {
    if (glob.substr(g).starts_with("**")) {
      wide_g = g += 2;
      wide_p = p;
      star_g = none;
      continue;
    }
    if (g < glob.size() && glob[g] == '*') {
      star_g = ++g;
      star_p = p;
      continue;
    }
    if (g < glob.size() && p < path.size() && glob[g] == path[p]) {
      ++g;
      ++p;
      continue;
    }
    if (star_g != none && star_p < path.size() && path[star_p] != '/') {
      p = ++star_p;
      g = star_g;
      continue;
    }
    if (wide_g != none && wide_p < path.size()) {
      p = ++wide_p;
      g = wide_g;
      star_g = none;
      continue;
    }
    return false;
  }
  return true;
}

}  // namespace domain
