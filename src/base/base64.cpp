#include "base/base64.hpp"

#include <array>
#include <cstdint>

namespace base {
namespace {

constexpr std::string_view alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<std::int8_t, 256> make_values() {
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < alphabet.size(); ++i) {
    values[static_cast<unsigned char>(alphabet[i])] = static_cast<std::int8_t>(i);
  }
  values[static_cast<unsigned char>('-')] = 62;
  values[static_cast<unsigned char>('_')] = 63;
  return values;
}

constexpr auto values = make_values();

std::uint32_t byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}

}  // namespace

void append_base64(std::string& out, std::string_view bytes) {
  auto const begin = out.size();
  out.resize(begin + (bytes.size() + 2) / 3 * 4);
  char* to = out.data() + begin;
  std::size_t i = 0;
  for (; i + 3 <= bytes.size(); i += 3) {
    auto const three = byte_at(bytes, i) << 16 | byte_at(bytes, i + 1) << 8 | byte_at(bytes, i + 2);
    *to++ = alphabet[three >> 18];
    *to++ = alphabet[three >> 12 & 63];
    *to++ = alphabet[three >> 6 & 63];
    *to++ = alphabet[three & 63];
  }
  auto const rest = bytes.size() - i;
  if (rest == 0) return;
  auto const last = byte_at(bytes, i) << 16 | (rest == 2 ? byte_at(bytes, i + 1) << 8 : 0);
  *to++ = alphabet[last >> 18];
  *to++ = alphabet[last >> 12 & 63];
  *to++ = rest == 2 ? alphabet[last >> 6 & 63] : '=';
  *to++ = '=';
}

std::string base64_of(std::string_view bytes) {
  std::string out;
  append_base64(out, bytes);
  return out;
}

std::optional<std::string> base64_decoded(std::string_view text) {
  auto const length = text.size();
  for (int i = 0; i < 2 && text.ends_with('='); ++i)
    text.remove_suffix(1);
  // With padding the whole text has full groups; a single left-over character carries no byte.
  if (text.size() != length && length % 4 != 0) return std::nullopt;
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int count = 0;
  for (char const c : text) {
    auto const value = values[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return out;
}

}  // namespace base
