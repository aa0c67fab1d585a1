#pragma once

#include "base/result.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// HTTP/1.1 over net::ByteStream. Heads are parsed by Beast behind stricter rules of ours
/// (parser.hpp); nothing here knows a route of ours.
namespace http {

/// In order of arrival, names as written; look-ups ignore case.
class Headers {
 public:
  Headers() = default;

  Headers(std::initializer_list<std::pair<std::string, std::string>> fields) : fields_(fields) {}

  /// The first value; nothing when absent.
  std::optional<std::string_view> find(std::string_view name) const noexcept;

  std::string_view get(std::string_view name) const noexcept {
    return find(name).value_or(std::string_view());
  }

  std::size_t count(std::string_view name) const noexcept;

  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }

  /// Replaces all of that name.
  void set(std::string_view name, std::string value);
  void remove(std::string_view name);

  auto begin() const noexcept { return fields_.begin(); }

  auto end() const noexcept { return fields_.end(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept;

struct RequestHead {
  std::string method{};
  std::string target{};  // as on the wire: "/v1/sandboxes?limit=3"
  Headers headers{};

  /// Before '?', as on the wire (still percent-encoded).
  std::string_view path() const noexcept;
  /// After '?', "" when there is none.
  std::string_view query() const noexcept;
};

struct ResponseHead {
  int status = 200;
  Headers headers{};
};

struct Response {
  int status = 200;
  Headers headers{};
  std::string body{};
};

/// Percent-decoding of a path (plus stays plus). Fails on a broken escape and on an encoded NUL.
base::Result<std::string> percent_decode(std::string_view text);
std::string percent_encode(std::string_view text);
/// Decoded query parameters in order ('+' is a space). Fails on a broken escape.
base::Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query);
/// The standard phrase: 404 → "Not Found".
std::string_view reason_of(int status) noexcept;

}  // namespace http
