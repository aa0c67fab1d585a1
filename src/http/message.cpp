#include "http/message.hpp"

namespace http {
namespace {

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

int hex_value(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (lower(c) >= 'a' && lower(c) <= 'f') return lower(c) - 'a' + 10;
  return -1;
}

base::Result<std::string> decode_escapes(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    int const high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    int const low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0)
      return base::fail(base::Code::invalid_argument, "a broken %-escape in the address");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

struct Reason {
  int status;
  std::string_view phrase;
};

constexpr Reason reasons[] = {
    {100, "Continue"},
    {101, "Switching Protocols"},
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {206, "Partial Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {303, "See Other"},
    {304, "Not Modified"},
    {307, "Temporary Redirect"},
    {308, "Permanent Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {410, "Gone"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {426, "Upgrade Required"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
    {507, "Insufficient Storage"},
};

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() &&
         std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::string_view> Headers::find(std::string_view name) const noexcept {
  for (auto const& [key, value] : fields_) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return std::nullopt;
}

std::size_t Headers::count(std::string_view name) const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(
      fields_, [&](auto const& field) { return equal_ignoring_case(field.first, name); }));
}

void Headers::set(std::string_view name, std::string value) {
  auto const first = std::ranges::find_if(
      fields_, [&](auto const& field) { return equal_ignoring_case(field.first, name); });
  if (first == fields_.end()) {
    fields_.emplace_back(std::string(name), std::move(value));
    return;
  }
  first->second = std::move(value);
  auto const rest = std::remove_if(first + 1, fields_.end(), [&](auto const& field) {
    return equal_ignoring_case(field.first, name);
  });
  fields_.erase(rest, fields_.end());
}

void Headers::remove(std::string_view name) {
  std::erase_if(fields_, [&](auto const& field) { return equal_ignoring_case(field.first, name); });
}

std::string_view RequestHead::path() const noexcept {
  return std::string_view(target).substr(0, target.find('?'));
}

std::string_view RequestHead::query() const noexcept {
  auto const mark = target.find('?');
  return mark == std::string::npos ? std::string_view() : std::string_view(target).substr(mark + 1);
}

base::Result<std::string> percent_decode(std::string_view text) {
  auto decoded = decode_escapes(text, false);
  if (decoded && decoded->contains('\0'))
    return base::fail(base::Code::invalid_argument, "a NUL in the address");
  return decoded;
}

std::string percent_encode(std::string_view text) {
  static constexpr std::string_view plain = "-._~";
  static constexpr std::string_view digits = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (char const c : text) {
    bool const alphanumeric = (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z');
    if (alphanumeric || plain.contains(c)) {
      out += c;
      continue;
    }
    auto const byte = static_cast<unsigned char>(c);
    out += '%';
    out += digits[byte >> 4];
    out += digits[byte & 15];
  }
  return out;
}

base::Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!query.empty()) {
    auto const part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.empty()) continue;
    auto const mark = part.find('=');
    auto key = decode_escapes(part.substr(0, mark), true);
    if (!key) return base::passing(key);
    auto value = decode_escapes(
        mark == std::string_view::npos ? std::string_view() : part.substr(mark + 1), true);
    if (!value) return base::passing(value);
    out.emplace_back(std::move(*key), std::move(*value));
  }
  return out;
}

std::string_view reason_of(int status) noexcept {
  auto const found = std::ranges::find(reasons, status, &Reason::status);
  if (found != std::ranges::end(reasons)) return found->phrase;
  return status < 400 ? "OK" : "Error";
}

}  // namespace http
