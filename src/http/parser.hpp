#pragma once

#include "http/message.hpp"

#include <cstdint>
#include <span>

/// HTTP/1.1 without I/O: where a head ends, what it says, where its body ends. Stricter than the
/// RFC wherever two readers of the same bytes could disagree (request smuggling): one
/// Content-Length or exactly "chunked", never both; CRLF only; no folded lines; no control
/// characters; one Host.
namespace http {

/// Finds the end of a message's head in bytes that arrive piece by piece.
class HeadScanner {
 public:
  /// `bytes` is everything since the head's first byte; what was looked at before is not looked at
  /// again. The length of the head with its empty line, 0 while it is incomplete. Fails on a byte
  /// that may not be in a head. Once it failed or found the end it must be reset().
  base::Result<std::size_t> scan(std::string_view bytes);

  void reset() noexcept { *this = HeadScanner(); }

 private:
  std::size_t seen_ = 0;
  std::size_t line_length_ = 0;
  char previous_ = '\0';
};

/// How the end of a body is found.
struct Framing {
  enum class Kind : std::uint8_t { none, length, chunked, until_close };
  Kind kind = Kind::none;
  std::uint64_t length = 0;
};

struct ParsedRequest {
  RequestHead head;
  Framing framing;
  bool http_1_0 = false;
  bool keep_alive = false;
  bool expects_continue = false;
};

struct ParsedResponse {
  ResponseHead head;
  Framing framing;
  bool keep_alive = false;
};

constexpr std::size_t header_fields_max = 256;

/// `head` is complete (HeadScanner). Errors: invalid_argument with what is wrong; too_large for too
/// many fields.
base::Result<ParsedRequest> parse_request_head(std::string_view head);
/// `request_method` decides whether a body may follow.
base::Result<ParsedResponse> parse_response_head(std::string_view head,
                                                 std::string_view request_method);

/// Takes the chunked coding off. Chunk extensions and trailers are read over, within bounds.
class ChunkDecoder {
 public:
  struct Step {
    std::size_t consumed = 0;
    std::size_t produced = 0;
    bool finished =
        false;  // the body has ended; bytes behind `consumed` belong to the next message
  };

  /// Decodes as much as `in` has and `out` takes. Fails on anything but the grammar.
  base::Result<Step> decode(std::span<char const> in, std::span<char> out);

 private:
  enum class State : std::uint8_t {
    size,
    extension,
    size_lf,
    data,
    data_cr,
    data_lf,
    trailer_start,
    trailer,
    trailer_lf,
    end_lf,
    done
  };
  base::Result<void> take(char byte);
  base::Result<void> take_of_size_line(char byte);
  base::Result<void> take_of_trailer(char byte);

  State state_ = State::size;
  std::uint64_t left_ = 0;  // of this chunk's data
  unsigned digits_ = 0;
  std::size_t extra_bytes_ = 0;  // extensions and trailers so far
};

/// Can this be sent as a header field without becoming something else on the wire?
bool is_field_name(std::string_view name) noexcept;
bool is_field_value(std::string_view value) noexcept;

}  // namespace http
