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

/// A glob's pieces (a character, a run of stars) and before which of them a path may be by now, all
/// at once: no glob and no path makes this take longer than a look at each pair of them, 64 pieces
/// at a time. Globs and paths are strangers', and those who match them serve many.
/// `Words`: room for 64 * Words - 1 bytes of glob; the tables are cleared for each match.
template <std::size_t Words> class Automaton {
 public:
  explicit Automaton(std::string_view glob) noexcept {
    for (std::size_t i = 0; i < glob.size(); ++count_) {
      auto const word = count_ / 64;
      auto const bit = std::uint64_t{1} << count_ % 64;
      if (glob[i] != '*') {
        literals_[static_cast<unsigned char>(glob[i++])][word] |= bit;
        continue;
      }
      auto const run = std::min(glob.find_first_not_of('*', i), glob.size()) - i;
      stars_[word] |= bit;
      if (run > 1) wides_[word] |= bit;
      i += run;
    }
    words_ = count_ / 64 + 1;
  }

  bool matches(std::string_view path) const noexcept {
    States now{};
    now[0] = 1;
    close(now);
    for (char const c : path) {
      auto const& literal = literals_[static_cast<unsigned char>(c)];
      auto const& star = c == '/' ? wides_ : stars_;
      std::uint64_t carry = 0;
      std::uint64_t any = 0;
      for (std::size_t w = 0; w < words_; ++w) {
        auto const moved = now[w] & literal[w];
        now[w] = moved << 1 | carry | (now[w] & star[w]);
        carry = moved >> 63;
        any |= now[w];
      }
      if (any == 0) return false;
      close(now);
    }
    return (now[count_ / 64] >> count_ % 64 & 1) != 0;
  }

 private:
  using States = std::array<std::uint64_t, Words>;

  /// A run of stars may stand for nothing.
  void close(States& now) const noexcept {
    std::uint64_t carry = 0;
    for (std::size_t w = 0; w < words_; ++w) {
      auto const past = now[w] & stars_[w];
      now[w] |= past << 1 | carry;
      carry = past >> 63;
    }
  }

  std::array<States, 256> literals_{};
  States stars_{};
  States wides_{};  // of more than one: these stand for slashes, too
  std::size_t count_ = 0;
  std::size_t words_ = 0;
};

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
  auto const literal = std::min(glob.find('*'), glob.size());
  if (path.substr(0, literal) != glob.substr(0, literal)) return false;
  glob.remove_prefix(literal);
  path.remove_prefix(literal);
  if (glob.empty()) return path.empty();
  if (glob == "*") return !path.contains('/');
  if (glob == "**") return true;
  // Nearly all are short: then the tables are 2 KiB, and not 34.
  if (glob.size() < 64) return Automaton<1>(glob).matches(path);
  if (glob.size() > path_glob_bytes_max) return false;
  return Automaton<path_glob_bytes_max / 64 + 1>(glob).matches(path);
}

}  // namespace domain
