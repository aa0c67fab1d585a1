#include "domain/labels.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace domain {
namespace {

constexpr std::size_t metadata_pairs_max = 64;
constexpr std::size_t metadata_key_bytes_max = 256;
constexpr std::size_t metadata_value_bytes_max = 4096;
constexpr std::size_t environment_pairs_max = 256;
constexpr std::size_t environment_bytes_max = std::size_t{64} * 1024;

std::unexpected<base::Error> invalid(std::string why) {
  return base::fail(base::Code::invalid_argument, std::move(why));
}

/// A caller's text for an error message: bounded, printable.
std::string shown(std::string_view text) {
  std::string out;
  for (char const c : text.substr(0, 40))
    out += (c >= ' ' && c < 0x7f) ? c : '?';
  return out + (text.size() > 40 ? "…" : "");
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// As Go's url.QueryUnescape, which is what clients escape for: '+' is a space. Nothing when
/// broken.
std::optional<std::string> query_unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (i + 2 >= text.size()) return std::nullopt;
      int const high = hex_digit(text[i + 1]);
      int const low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

/// Length of the UTF-8 sequence at the front of `text`, 0 when it is none.
std::size_t sequence_at(std::string_view text) noexcept {
  auto const byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  auto const first = byte(0);
  if (first < 0x80) return 1;
  std::size_t const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  if (first == 0xe0 && byte(1) < 0xa0) return 0;
  if (first == 0xed && byte(1) > 0x9f) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    auto const length = sequence_at(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

base::Result<void> check_metadata(Labels const& metadata) {
  if (metadata.size() > metadata_pairs_max) {
    return invalid(fmt::format("metadata: at most {} pairs", metadata_pairs_max));
  }
  for (auto const& [key, value] : metadata) {
    if (key.empty()) return invalid("metadata: a key is empty");
    if (key.size() > metadata_key_bytes_max) {
      return invalid(fmt::format(
          "metadata: the key \"{}\" is longer than {} bytes", shown(key), metadata_key_bytes_max));
    }
    if (value.size() > metadata_value_bytes_max) {
      return invalid(fmt::format("metadata: the value of \"{}\" is longer than {} bytes",
                                 shown(key),
                                 metadata_value_bytes_max));
    }
    if (key.contains('\0') || value.contains('\0')) {
      return invalid(fmt::format("metadata: \"{}\" holds a NUL character", shown(key)));
    }
    if (!is_utf8(key) || !is_utf8(value)) {
      return invalid(fmt::format("metadata: \"{}\" is not valid UTF-8", shown(key)));
    }
  }
  return {};
}

base::Result<void> check_environment(Labels const& environment, std::string_view field) {
  if (environment.size() > environment_pairs_max) {
    return invalid(fmt::format("{}: at most {} variables", field, environment_pairs_max));
  }
  std::size_t bytes = 0;
  for (auto const& [name, value] : environment) {
    if (name.empty()) return invalid(fmt::format("{}: a variable has no name", field));
    if (name.contains('=') || name.contains('\0')) {
      return invalid(
          fmt::format("{}: the name \"{}\" may hold neither '=' nor NUL", field, shown(name)));
    }
    if (value.contains('\0')) {
      return invalid(
          fmt::format("{}: the value of \"{}\" holds a NUL character", field, shown(name)));
    }
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > environment_bytes_max) {
    return invalid(fmt::format(
        "{}: {} bytes together; at most {} are allowed", field, bytes, environment_bytes_max));
  }
  return {};
}

base::Result<Labels> parse_metadata_filter(std::string_view text) {
  Labels filter;
  if (text.empty()) return filter;
  auto const whole = query_unescape(text);
  if (!whole) return invalid("metadata: the filter holds a broken percent escape");
  std::string_view rest = *whole;
  while (true) {
    auto const end = rest.find('&');
    auto const pair = rest.substr(0, end);
    auto const equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return invalid(fmt::format("metadata: \"{}\" is not of the form key=value", shown(pair)));
    }
    auto key = query_unescape(pair.substr(0, equals));
    auto value = query_unescape(pair.substr(equals + 1));
    if (!key || !value) return invalid("metadata: the filter holds a broken percent escape");
    if (key->empty()) return invalid("metadata: a key of the filter is empty");
    filter.insert_or_assign(std::move(*key), std::move(*value));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (auto checked = check_metadata(filter); !checked) return base::passing(checked);
  return filter;
}

bool matches(Labels const& filter, Labels const& metadata) noexcept {
  return std::ranges::all_of(filter, [&](auto const& pair) {
    auto const found = metadata.find(pair.first);
    return found != metadata.end() && found->second == pair.second;
  });
}

}  // namespace domain
