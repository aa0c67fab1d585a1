#pragma once

#include "base/result.hpp"
#include "domain/host_name.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// HTTP/1 as the gateway reads it: strict on purpose. Ready-made parsers accept what two servers
/// can read differently (two Hosts, folded lines, `Content-Length: 1, 1`, `gzip, chunked`, bare
/// LF); here all of that is an error, and what was understood is written out anew, so no byte of a
/// guest's head reaches an upstream as it came. Sans I/O: feed bytes, ask what to do.
namespace gateway {

struct Field {
  std::string name;  // as written; compare with same_name()
  std::string value;
};

bool same_name(std::string_view a, std::string_view b) noexcept;

/// How long a body is.
struct Framing {
  enum class Kind : std::uint8_t { none, length, chunked, until_close } kind = Kind::none;
  std::uint64_t length = 0;
};

struct RequestHead {
  std::string method;
  std::string path;                      // begins with '/', without the query
  std::optional<std::string> query;      // without '?'; nothing when there was none
  std::optional<domain::HostName> host;  // from Host (or an absolute target, which must agree)
  std::uint16_t port = 0;                // of the Host, or the default given to the parser
  int minor_version = 1;
  std::vector<Field> fields;  // without Host, framing and hop-by-hop fields
  Framing body;
  bool keep_alive = true;
  bool expect_continue = false;
  std::string upgrade;  // "websocket", or ""

  std::string const* find(std::string_view name) const noexcept;
  void remove(std::string_view name);
};

struct ResponseHead {
  int status = 0;
  std::string reason;
  int minor_version = 1;
  std::vector<Field> fields;  // without framing and hop-by-hop fields
  Framing body;
  bool keep_alive = true;
  std::string upgrade;

  std::string const* find(std::string_view name) const noexcept;
  void remove(std::string_view name);
};

struct HeadLimits {
  std::size_t head_bytes_max = 64 * 1024;
  std::size_t line_bytes_max = 16 * 1024;
  std::size_t fields_max = 128;
};

/// Bytes of a head up to and including the empty line, or 0 while it is not complete. An error when
/// it gets too long, or has a bare CR, bare LF or NUL anywhere.
base::Result<std::size_t> head_length(std::string_view bytes, HeadLimits const& limits = {});

/// `head` is exactly what head_length() measured.
base::Result<RequestHead> parse_request_head(std::string_view head,
                                             std::uint16_t default_port,
                                             HeadLimits const& limits = {});

/// `request_method` decides whether a body can follow (HEAD has none).
base::Result<ResponseHead> parse_response_head(std::string_view head,
                                               std::string_view request_method,
                                               HeadLimits const& limits = {});

/// The head as it goes upstream: our request line, our Host, our framing, then the fields.
std::string serialise(RequestHead const& head);
/// The head as it goes to the guest.
std::string serialise(ResponseHead const& head);

/// Takes the framing off a body.
class BodyDecoder {
 public:
  explicit BodyDecoder(Framing framing) noexcept;

  /// Consumes from `bytes` (at most all of it), appends content to `out`; the number of bytes
  /// consumed. Stops at the end of the body. Trailers are read and thrown away; chunk extensions
  /// too.
  base::Result<std::size_t> decode(std::string_view bytes, std::string& out);

  bool done() const noexcept { return state_ == State::done; }

  /// The peer closed: fine only where the end of the connection is the end of the body.
  base::Result<void> end_of_stream() noexcept;

 private:
  enum class State : std::uint8_t {
    length,
    until_close,
    chunk_size,
    chunk_data,
    chunk_end,
    trailer,
    done
  };
  base::Result<std::size_t> take_line(std::string_view bytes, std::string_view& line);
  base::Result<void> on_chunk_size(std::string_view line);

  State state_;
  std::uint64_t remaining_ = 0;
  std::size_t trailer_bytes_ = 0;
  std::string line_;  // an incomplete line, bounded
};

/// One chunk of a chunked body; "" makes the last one.
std::string encode_chunk(std::string_view content);

}  // namespace gateway
