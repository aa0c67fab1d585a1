#pragma once

#include "base/result.hpp"

#include <compare>
#include <string>
#include <string_view>

namespace domain {

/// The one canonical form of a host name: lower case, no trailing dot, labels of [a-z0-9_-] with 1
/// to 63 bytes, at most 253 in all, and a last label that no resolver would read as a number.
/// Policy, DNS, SNI, Host header and upstream certificate are compared as values of this type and
/// nothing else, so "the same name" means the same bytes everywhere.
///
/// Not accepted, on purpose: IP literals in any spelling (127.1, 0x7f.1, 2130706433), non-ASCII (an
/// operator's tool converts IDNA when policy is written), empty labels, spaces, control bytes.
class HostName {
 public:
  /// `text` may have upper case and one trailing dot; nothing else is forgiven.
  static base::Result<HostName> parse(std::string_view text);

  std::string const& str() const noexcept { return value_; }

  /// True when this name lies below `suffix` by one or more labels: a.b.example is below b.example.
  bool is_below(std::string_view suffix) const noexcept;

  friend auto operator<=>(HostName const&, HostName const&) = default;

 private:
  explicit HostName(std::string value) : value_(std::move(value)) {}

  std::string value_;
};

/// host[:port] of a Host header or an :authority. The port is the scheme's default when absent.
struct Authority {
  HostName host;
  std::uint16_t port;
};

base::Result<Authority> parse_authority(std::string_view text, std::uint16_t default_port);

}  // namespace domain
