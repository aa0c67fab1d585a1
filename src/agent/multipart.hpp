#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// multipart/form-data (RFC 7578) as a parser without I/O: bytes in, events out, in memory that
/// does not depend on the size of the parts. Browsers, Python's httpx and Go's clients all write it
/// a little differently; see multipart_test.cpp.
namespace agent {

/// The boundary of a Content-Type; nothing when it is no multipart or has no usable boundary.
std::optional<std::string> multipart_boundary(std::string_view content_type);

class MultipartParser {
 public:
  enum class Kind : std::uint8_t { need_more, part_begins, content, part_ends, finished };

  struct Event {
    Kind kind = Kind::need_more;
    std::string name{};      // part_begins: the field's name
    std::string filename{};  // part_begins: as sent, slashes included; "" when there is none
    std::string content{};   // content: never empty
  };

  static constexpr std::size_t part_head_bytes_max = 16 * 1024;
  static constexpr std::size_t parts_max = 10'000;

  explicit MultipartParser(std::string_view boundary);

  void feed(std::string_view bytes) { buffer_.append(bytes); }

  /// The next event of what was fed; `invalid_argument` for a broken body, `too_large` beyond the
  /// bounds above.
  base::Result<Event> next();

 private:
  enum class State : std::uint8_t { preamble, after_delimiter, head, content, finished };

  base::Result<Event> at_preamble();
  base::Result<Event> at_delimiter();
  base::Result<Event> at_head();
  base::Result<Event> at_content();

  std::string_view rest() const { return std::string_view(buffer_).substr(taken_); }

  void drop(std::size_t count);

  State state_ = State::preamble;
  bool in_part_ = false;
  std::size_t parts_ = 0;
  std::string delimiter_;  // CR LF "--" boundary
  std::string buffer_;
  std::size_t taken_ = 0;
};

}  // namespace agent
