#include "domain/egress_policy.hpp"

namespace domain {
namespace {

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// The byte that the escape at `at` stands for; -1 when it is none.
int escaped_byte(std::string_view path, std::size_t at) noexcept {
  if (at + 2 >= path.size() || path[at] != '%') return -1;
  int const high = hex_digit(path[at + 1]);
  int const low = hex_digit(path[at + 2]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/// Number of escapes of the UTF-8 sequence that begins at `at`; 0 when it is no valid one. An
/// overlong form (%c0%ae) is a dot to a careless server.
std::size_t utf8_escapes(std::string_view path, std::size_t at) noexcept {
  int const lead = escaped_byte(path, at);
  std::size_t const count = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  for (std::size_t i = 1; i < count; ++i) {
    int const next = escaped_byte(path, at + 3 * i);
    int const least = i == 1 && lead == 0xe0 ? 0xa0 : i == 1 && lead == 0xf0 ? 0x90 : 0x80;
    int const most = i == 1 && lead == 0xed ? 0x9f : i == 1 && lead == 0xf4 ? 0x8f : 0xbf;
    if (next < least || next > most) return 0;
  }
  return count;
}

/// What needs no escape has none in an honest path: %73ecret is "secret" to a server and another
/// word to a rule. A separator, a dot, a percent sign or a control byte is read in two ways.
bool is_ambiguous_byte(int byte) noexcept {
  if (byte <= 0x20) return byte != 0x20;
  if ((byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z'))
    return true;
  return byte == 0x7f ||
         std::string_view("-._~/\\%;").find(static_cast<char>(byte)) != std::string_view::npos;
}

/// Characters of the escapes at `at` that mean one thing to everybody; 0 = ambiguous.
std::size_t clear_escape(std::string_view path, std::size_t at) noexcept {
  int const byte = escaped_byte(path, at);
  if (byte >= 0x80) return 3 * utf8_escapes(path, at);
  return byte < 0 || is_ambiguous_byte(byte) ? 0 : 3;
}

}  // namespace

bool is_ambiguous_path(std::string_view path) noexcept {
  if (!path.starts_with('/')) return true;
  for (std::size_t i = 0; i < path.size(); ++i) {
    auto const c = static_cast<unsigned char>(path[i]);
    if (c <= 0x20 || c >= 0x7f || c == '\\' || c == ';') return true;
    if (c == '%') {
      auto const length = clear_escape(path, i);
      if (length == 0) return true;
      i += length - 1;
      continue;
    }
    if (c != '/') continue;
    auto const rest = path.substr(i + 1);
    if (rest.starts_with('/')) return true;
    auto const segment = rest.substr(0, rest.find('/'));
    if (segment == "." || segment == "..") return true;
  }
  return false;
}

std::string plain_path(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    int const byte = escaped_byte(path, i);
    if (byte > 0x20 && byte < 0x7f) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
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
