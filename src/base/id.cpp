#include "base/id.hpp"

#include "base/assert.hpp"
#include "base/clock.hpp"

#include <sys/random.h>

#include <array>
#include <chrono>

namespace base {
namespace {

constexpr std::size_t short_id_length = 20;

template <std::size_t n> std::array<unsigned char, n> random_bytes() {
  std::array<unsigned char, n> bytes{};
  auto const got = ::getrandom(bytes.data(), bytes.size(), 0);
  SPACE_ASSERT(got == static_cast<ssize_t>(n), "getrandom of less than 257 bytes is never short");
  return bytes;
}

}  // namespace

std::string make_short_id(char kind) {
  static constexpr std::string_view alphabet = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string id(1, kind);
  while (id.size() < short_id_length + 1) {
    for (auto const byte : random_bytes<32>()) {
      // 252 = 7 × 36: the bytes above would favour the first letters.
      if (byte < 252 && id.size() < short_id_length + 1) id += alphabet[byte % alphabet.size()];
    }
  }
  return id;
}

bool is_short_id(char kind, std::string_view text) noexcept {
  if (text.size() != short_id_length + 1 || text[0] != kind) return false;
  for (char const c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) return false;
  return true;
}

std::string make_uuid7() {
  auto bytes = random_bytes<16>();
  auto const millis =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                     system_clock().wall_now().time_since_epoch())
                                     .count());
  for (std::size_t i = 0; i < 6; ++i)
    bytes.at(i) = static_cast<unsigned char>(millis >> (8 * (5 - i)));
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x70);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes.at(i));
  }
  return text;
}

std::string random_hex(std::size_t bytes) {
  std::string text;
  while (text.size() < 2 * bytes) {
    for (auto const byte : random_bytes<16>())
      if (text.size() < 2 * bytes) text += fmt::format("{:02x}", byte);
  }
  return text;
}

Result<SandboxId> SandboxId::parse(std::string_view text) {
  if (!is_short_id('i', text)) return fail(Code::not_found, "no sandbox has such an id");
  return SandboxId(std::string(text));
}

}  // namespace base
