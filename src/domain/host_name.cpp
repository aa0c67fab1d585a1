#include "domain/host_name.hpp"

#include <charconv>

namespace domain {
namespace {

constexpr std::size_t name_length_max = 253;
constexpr std::size_t label_length_max = 63;

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

bool is_hex(char c) noexcept {
  return is_digit(c) || (c >= 'a' && c <= 'f');
}

/// inet_aton reads "0x7f", "0177" and "1" as numbers: a name that ends so could be taken for an
/// address.
bool looks_numeric(std::string_view label) noexcept {
  if (label.starts_with("0x")) {
    label.remove_prefix(2);
    return std::ranges::all_of(label, is_hex);
  }
  return std::ranges::all_of(label, is_digit);
}

base::Result<void> check_label(std::string_view label) {
  using base::Code;
  if (label.empty()) return base::fail(Code::invalid_argument, "a host name has an empty label");
  if (label.size() > label_length_max)
    return base::fail(Code::invalid_argument, "a label of a host name is over 63 bytes");
  for (char const c : label) {
    bool const fine = (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_';
    if (!fine)
      return base::fail(Code::invalid_argument,
                        "a host name has a byte other than a-z, 0-9, '-', '_' and '.'");
  }
  return {};
}

}  // namespace

base::Result<HostName> HostName::parse(std::string_view text) {
  if (text.ends_with('.')) text.remove_suffix(1);
  if (text.empty()) return base::fail(base::Code::invalid_argument, "a host name is empty");
  if (text.size() > name_length_max)
    return base::fail(base::Code::invalid_argument, "a host name is over 253 bytes");
  std::string name(text);
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  std::string_view rest = name;
  while (true) {
    auto const dot = rest.find('.');
    auto const label = rest.substr(0, dot);
    if (auto checked = check_label(label); !checked) return base::passing(checked);
    if (dot == std::string_view::npos) {
      if (looks_numeric(label))
        return base::fail(base::Code::invalid_argument, "a host name ends like a number");
      break;
    }
    rest.remove_prefix(dot + 1);
  }
  return HostName(std::move(name));
}

bool HostName::is_below(std::string_view suffix) const noexcept {
  return value_.size() > suffix.size() + 1 && value_.ends_with(suffix) &&
         value_[value_.size() - suffix.size() - 1] == '.';
}

base::Result<Authority> parse_authority(std::string_view text, std::uint16_t default_port) {
  std::uint16_t port = default_port;
  if (auto const colon = text.find(':'); colon != std::string_view::npos) {
    auto const digits = text.substr(colon + 1);
    auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    bool const plain = !digits.empty() && std::ranges::all_of(digits, is_digit) && digits[0] != '0';
    if (!plain || error != std::errc() || end != digits.data() + digits.size()) {
      return base::fail(base::Code::invalid_argument,
                        "the port of an authority is not a number from 1 to 65535");
    }
    text = text.substr(0, colon);
  }
  auto host = HostName::parse(text);
  if (!host) return base::passing(host);
  return Authority{std::move(*host), port};
}

}  // namespace domain
