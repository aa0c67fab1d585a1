#include "agent/files_negotiate.hpp"

#include "agent/path.hpp"
#include "http/message.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <utility>

#include <fmt/chrono.h>

namespace agent {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

/// Takes the part before the next `at` off the text.
std::string_view take_until(std::string_view& text, char at) {
  auto const cut = std::min(text.find(at), text.size());
  auto const part = text.substr(0, cut);
  text.remove_prefix(std::min(cut + 1, text.size()));
  return trimmed(part);
}

/// A quality of zero, in any spelling ("0", "0.", "0.000"): the coding is refused.
bool is_refused(std::string_view parameters) {
  while (!parameters.empty()) {
    auto parameter = take_until(parameters, ';');
    auto const key = take_until(parameter, '=');
    if (!http::equal_ignoring_case(key, "q")) continue;
    auto const value = trimmed(parameter);
    return !value.empty() && value.find_first_not_of("0.") == std::string_view::npos;
  }
  return false;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 34> types{{
    {"avif", "image/avif"},
    {"bz2", "application/x-bzip2"},
    {"css", "text/css; charset=utf-8"},
    {"csv", "text/csv; charset=utf-8"},
    {"gif", "image/gif"},
    {"gz", "application/gzip"},
    {"htm", "text/html; charset=utf-8"},
    {"html", "text/html; charset=utf-8"},
    {"ico", "image/x-icon"},
    {"jpeg", "image/jpeg"},
    {"jpg", "image/jpeg"},
    {"js", "text/javascript; charset=utf-8"},
    {"json", "application/json"},
    {"md", "text/markdown; charset=utf-8"},
    {"mjs", "text/javascript; charset=utf-8"},
    {"mp3", "audio/mpeg"},
    {"mp4", "video/mp4"},
    {"pdf", "application/pdf"},
    {"png", "image/png"},
    {"py", "text/x-python; charset=utf-8"},
    {"sh", "text/x-shellscript; charset=utf-8"},
    {"svg", "image/svg+xml"},
    {"tar", "application/x-tar"},
    {"txt", "text/plain; charset=utf-8"},
    {"wasm", "application/wasm"},
    {"wav", "audio/wav"},
    {"webm", "video/webm"},
    {"webp", "image/webp"},
    {"xhtml", "application/xhtml+xml"},
    {"xml", "text/xml; charset=utf-8"},
    {"xz", "application/x-xz"},
    {"yaml", "application/yaml"},
    {"yml", "application/yaml"},
    {"zip", "application/zip"},
}};

bool looks_like_text(std::string_view bytes) {
  for (char const one : bytes) {
    auto const value = static_cast<unsigned char>(one);
    if (value < 0x20 && one != '\n' && one != '\r' && one != '\t' && one != '\f' && one != '\x1b')
      return false;
  }
  // The last character may be cut: at most three bytes of it are there.
  for (std::size_t cut = 0; cut <= 3 && cut <= bytes.size(); ++cut)
    if (as_utf8(bytes.substr(0, bytes.size() - cut)).size() == bytes.size() - cut) return true;
  return false;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char one) {
    return (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z') || (one >= '0' && one <= '9') ||
           std::string_view("!#$&+-.^_`|~").find(one) != std::string_view::npos;
  });
}

}  // namespace

AcceptedEncodings accepted_encodings(std::optional<std::string_view> header) {
  AcceptedEncodings accepted;
  if (!header) return accepted;
  std::optional<bool> gzip;
  std::optional<bool> identity;
  std::optional<bool> any;
  std::size_t named = 0;
  auto text = *header;
  while (!text.empty()) {
    auto item = take_until(text, ',');
    auto const coding = take_until(item, ';');
    if (coding.empty()) continue;
    bool const taken = !is_refused(item);
    named += taken ? 1 : 0;
    if (http::equal_ignoring_case(coding, "gzip") || http::equal_ignoring_case(coding, "x-gzip"))
      gzip = taken;
    if (http::equal_ignoring_case(coding, "identity")) identity = taken;
    if (coding == "*") any = taken;
  }
  accepted.gzip = gzip.value_or(any.value_or(false));
  accepted.identity = identity.value_or(any.value_or(true));
  accepted.only_gzip = gzip.value_or(false) && named == 1;
  return accepted;
}

RangeAnswer range_of(std::optional<std::string_view> header, std::uint64_t size) {
  RangeAnswer const whole{};
  if (!header) return whole;
  auto text = *header;
  auto const unit = take_until(text, '=');
  text = trimmed(text);
  if (!http::equal_ignoring_case(unit, "bytes") || text.find(',') != std::string_view::npos)
    return whole;
  auto const dash = text.find('-');
  if (dash == std::string_view::npos) return whole;
  auto const before = trimmed(text.substr(0, dash));
  auto const after = trimmed(text.substr(dash + 1));
  auto const from = number_of(before);
  auto const to = number_of(after);
  if ((!from && !before.empty()) || (!to && !after.empty()) || (!from && !to)) return whole;
  if (!from) {
    auto const count = std::min(*to, size);
    if (count == 0) return {RangeKind::unsatisfiable, {}};
    return {RangeKind::part, {size - count, count}};
  }
  if (to && *to < *from) return whole;
  if (*from >= size) return {RangeKind::unsatisfiable, {}};
  auto const last = std::min(to.value_or(size - 1), size - 1);
  return {RangeKind::part, {*from, last - *from + 1}};
}

std::string content_type_of(std::string_view path, std::string_view first_bytes) {
  auto const name = base_name(path);
  if (auto const dot = name.rfind('.'); dot != std::string::npos && dot > 0) {
    auto const extension = std::string_view(name).substr(dot + 1);
    for (auto const& [known, type] : types)
      if (http::equal_ignoring_case(known, extension)) return std::string(type);
  }
  if (!first_bytes.empty() && looks_like_text(first_bytes.substr(0, 512)))
    return "text/plain; charset=utf-8";
  return "application/octet-stream";
}

bool is_compressible(std::string_view content_type) {
  if (content_type.starts_with("text/")) return true;
  for (auto const type : {"application/json",
                          "application/yaml",
                          "application/xhtml+xml",
                          "application/wasm",
                          "image/svg+xml"})
    if (content_type == type) return true;
  return false;
}

std::string inline_disposition(std::string_view filename) {
  if (is_token(filename)) return fmt::format("inline; filename={}", filename);
  bool const plain =
      std::ranges::all_of(filename, [](char one) { return one >= 0x20 && one < 0x7F; });
  if (!plain) {
    // Stricter than percent_encode: what RFC 5987 lets stand is less than what a URL does.
    std::string encoded;
    for (char const one : filename) {
      if (is_token(std::string_view(&one, 1))) {
        encoded += one;
      } else {
        encoded += fmt::format("%{:02X}", static_cast<unsigned char>(one));
      }
    }
    return "inline; filename*=utf-8''" + encoded;
  }
  std::string quoted;
  for (char const one : filename) {
    if (one == '"' || one == '\\') quoted += '\\';
    quoted += one;
  }
  return fmt::format("inline; filename=\"{}\"", quoted);
}

std::string http_date(std::int64_t unix_seconds) {
  constexpr std::int64_t last = 253402300799;  // the year 9999: the format has four digits
  auto const when = std::clamp<std::int64_t>(unix_seconds, 0, last);
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(static_cast<std::time_t>(when)));
}

}  // namespace agent
