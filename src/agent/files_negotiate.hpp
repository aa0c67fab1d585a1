#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// The small grammars of a download: encodings, ranges, types, names and dates of HTTP. No I/O.
namespace agent {

/// What an Accept-Encoding admits (RFC 9110 12.5.3); everything when there is no such header.
struct AcceptedEncodings {
  bool gzip = false;
  bool identity = true;
  /// gzip is the only coding named: the client wants it, not merely takes it.
  bool only_gzip = false;
};

AcceptedEncodings accepted_encodings(std::optional<std::string_view> header);

struct ByteRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
enum class RangeKind : std::uint8_t { whole, part, unsatisfiable };

struct RangeAnswer {
  RangeKind kind = RangeKind::whole;
  ByteRange range;
};

/// One range of bytes. Several ranges, other units and malformed headers mean the whole, as the
/// standard allows.
RangeAnswer range_of(std::optional<std::string_view> header, std::uint64_t size);

/// From the name's extension, else from the first bytes: text is "text/plain; charset=utf-8" (never
/// Latin-1).
std::string content_type_of(std::string_view path, std::string_view first_bytes);
/// Whether gzip can gain anything on such content.
bool is_compressible(std::string_view content_type);

/// `inline; filename="a b.txt"`; names beyond ASCII in the form of RFC 5987.
std::string inline_disposition(std::string_view filename);

/// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string http_date(std::int64_t unix_seconds);

}  // namespace agent
