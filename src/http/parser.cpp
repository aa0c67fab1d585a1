#include "http/parser.hpp"

#include <charconv>

#include <boost/beast/http/basic_parser.hpp>

namespace http {
namespace {

namespace beast = boost::beast;

using Beast = beast::string_view;

std::unexpected<base::Error> bad(std::string what) {
  return base::fail(base::Code::invalid_argument, std::move(what));
}

std::string text_of(Beast view) {
  return {view.data(), view.size()};
}

/// What both directions collect from Beast's callbacks. Bodies never reach Beast: see ChunkDecoder.
template <bool is_request> class HeadParser : public beast::http::basic_parser<is_request> {
 public:
  // Beast's own limits (8 KiB of head, 1 MiB of body) would refuse uploads: the caller has limits
  // of its own.
  HeadParser() {
    this->body_limit(boost::none);
    this->header_limit(std::numeric_limits<std::uint32_t>::max());
  }  // the caller has its own limit

  std::string method;
  std::string target;
  int version = 11;
  int status = 0;
  Headers headers;
  std::size_t fields = 0;

  base::Result<void> parse(std::string_view head) {
    beast::error_code error;
    this->eager(false);
    auto const used = this->put(boost::asio::const_buffer(head.data(), head.size()), error);
    if (fields > header_fields_max)
      return base::fail(base::Code::too_large, "the head has too many fields");
    if (error) return bad(fmt::format("malformed head: {}", error.message()));
    if (used != head.size() || !this->is_header_done())
      return bad("malformed head: it does not end where it should");
    return {};
  }

 private:
  using error_code = beast::error_code;

  void on_request_impl(beast::http::verb,
                       Beast method_text,
                       Beast target_text,
                       int version_number,
                       error_code& error) override {
    method = text_of(method_text);
    target = text_of(target_text);
    version = version_number;
    error = {};
  }

  void on_response_impl(int code, Beast, int version_number, error_code& error) override {
    status = code;
    version = version_number;
    error = {};
  }

  void on_field_impl(beast::http::field, Beast name, Beast value, error_code& error) override {
    error = {};
    if (++fields > header_fields_max)
      error = beast::http::error::header_limit;
    else
      headers.add(text_of(name), text_of(value));
  }

  void on_header_impl(error_code& error) override { error = {}; }

  void on_body_init_impl(boost::optional<std::uint64_t> const&, error_code& error) override {
    error = {};
  }

  std::size_t on_body_impl(Beast body, error_code& error) override {
    return error = {}, body.size();
  }

  void on_chunk_header_impl(std::uint64_t, Beast, error_code& error) override { error = {}; }

  std::size_t on_chunk_body_impl(std::uint64_t, Beast body, error_code& error) override {
    return error = {}, body.size();
  }

  void on_finish_impl(error_code& error) override { error = {}; }
};

/// Beast accepts lists and repetitions here; we accept one way to say how long a body is.
base::Result<Framing> framing_of(Headers const& headers, bool http_1_0) {
  auto const lengths = headers.count("Content-Length");
  auto const encodings = headers.count("Transfer-Encoding");
  if (lengths + encodings == 0) return Framing{};
  if (lengths + encodings > 1) return bad("more than one Content-Length or Transfer-Encoding");
  if (encodings == 1) {
    if (http_1_0) return bad("Transfer-Encoding in HTTP/1.0");
    if (!equal_ignoring_case(headers.get("Transfer-Encoding"), "chunked"))
      return bad("a Transfer-Encoding other than chunked");
    return Framing{.kind = Framing::Kind::chunked, .length = 0};
  }
  auto const text = headers.get("Content-Length");
  std::uint64_t length = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  // 2^63 and more would turn negative in somebody's arithmetic.
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      length > std::uint64_t{1} << 62) {
    return bad("Content-Length is not a length");
  }
  return Framing{.kind = length == 0 ? Framing::Kind::none : Framing::Kind::length,
                 .length = length};
}

bool is_token_char(char c) {
  static constexpr std::string_view others = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         others.contains(c);
}

bool is_text(char c) {
  return static_cast<unsigned char>(c) >= 0x20 ? c != 0x7f : c == '\t';
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr std::size_t chunk_extra_bytes_max = 16 * 1024;
constexpr unsigned chunk_digits_max = 15;  // 2^60 bytes: no sum of ours overflows

}  // namespace

base::Result<std::size_t> HeadScanner::scan(std::string_view bytes) {
  for (; seen_ < bytes.size(); ++seen_) {
    char const c = bytes[seen_];
    if (previous_ == '\r' && c != '\n')
      return bad("a carriage return without line feed in the head");
    if (c == '\n') {
      if (previous_ != '\r') return bad("a line feed without carriage return in the head");
      previous_ = c;
      if (line_length_ == 0) return seen_ + 1;
      line_length_ = 0;
      continue;
    }
    if (c != '\r') {
      if (!is_text(c)) return bad("a control character in the head");
      if (previous_ == '\n' && (c == ' ' || c == '\t')) return bad("a folded line in the head");
      ++line_length_;
    }
    previous_ = c;
  }
  return std::size_t{0};
}

base::Result<ParsedRequest> parse_request_head(std::string_view head) {
  HeadParser<true> parser;
  auto const parsed = parser.parse(head);
  if (!parsed) return std::unexpected(parsed.error());
  ParsedRequest out;
  out.http_1_0 = parser.version < 11;
  out.keep_alive = parser.keep_alive();
  auto const framing = framing_of(parser.headers, out.http_1_0);
  if (!framing) return std::unexpected(framing.error());
  out.framing = *framing;
  auto const hosts = parser.headers.count("Host");
  if (hosts > 1 || (hosts == 0 && !out.http_1_0)) return bad("a request has exactly one Host");
  if (!parser.target.starts_with('/') && parser.target != "*")
    return bad("the request target must start with a slash");
  auto const expect = parser.headers.find("Expect");
  if (expect && !equal_ignoring_case(*expect, "100-continue"))
    return bad("an Expect other than 100-continue");
  out.expects_continue = expect && !out.http_1_0 && out.framing.kind != Framing::Kind::none;
  out.head = {.method = std::move(parser.method),
              .target = std::move(parser.target),
              .headers = std::move(parser.headers)};
  return out;
}

base::Result<ParsedResponse> parse_response_head(std::string_view head,
                                                 std::string_view request_method) {
  HeadParser<false> parser;
  auto const parsed = parser.parse(head);
  if (!parsed) return std::unexpected(parsed.error());
  if (parser.status < 100 || parser.status > 599) return bad("a status outside 100 to 599");
  auto const framing = framing_of(parser.headers, parser.version < 11);
  if (!framing) return std::unexpected(framing.error());
  ParsedResponse out;
  out.framing = *framing;
  bool const says_how_long =
      parser.headers.find("Content-Length") || parser.headers.find("Transfer-Encoding");
  bool const has_body = request_method != "HEAD" && parser.status >= 200 && parser.status != 204 &&
                        parser.status != 304;
  if (!has_body) {
    out.framing = {};
  } else if (!says_how_long) {
    out.framing.kind = Framing::Kind::until_close;
  }
  // Beast's keep_alive() is false for "until close", which a bodiless answer without a length is
  // not.
  auto const connection = parser.headers.get("Connection");
  bool const asks_close = equal_ignoring_case(connection, "close");
  out.keep_alive = has_body ? parser.keep_alive() : !asks_close && parser.version >= 11;
  if (out.framing.kind == Framing::Kind::until_close) out.keep_alive = false;
  out.head = {.status = parser.status, .headers = std::move(parser.headers)};
  return out;
}

base::Result<ChunkDecoder::Step> ChunkDecoder::decode(std::span<char const> in,
                                                      std::span<char> out) {
  Step step;
  while (step.consumed < in.size() && state_ != State::done) {
    if (state_ != State::data) {
      auto const taken = take(in[step.consumed]);
      if (!taken) return std::unexpected(taken.error());
      ++step.consumed;
      continue;
    }
    auto const room = std::min(in.size() - step.consumed, out.size() - step.produced);
    if (room == 0) break;
    auto const count = static_cast<std::size_t>(std::min<std::uint64_t>(left_, room));
    std::ranges::copy(in.subspan(step.consumed, count), out.subspan(step.produced).begin());
    step.consumed += count;
    step.produced += count;
    left_ -= count;
    if (left_ == 0) state_ = State::data_cr;
  }
  step.finished = state_ == State::done;
  return step;
}

base::Result<void> ChunkDecoder::take(char byte) {
  switch (state_) {
    case State::size:
    case State::extension:
    case State::size_lf:
      return take_of_size_line(byte);
    case State::data_cr:
      if (byte != '\r') return bad("a chunk is longer than its size");
      state_ = State::data_lf;
      return {};
    case State::data_lf:
      if (byte != '\n') return bad("a chunk does not end with CRLF");
      state_ = State::size;
      digits_ = 0;
      return {};
    default:
      return take_of_trailer(byte);
  }
}

base::Result<void> ChunkDecoder::take_of_size_line(char byte) {
  if (state_ == State::size_lf) {
    if (byte != '\n') return bad("a chunk size does not end with CRLF");
    state_ = left_ == 0 ? State::trailer_start : State::data;
    return {};
  }
  if (state_ == State::size) {
    if (int const value = hex_value(byte); value >= 0) {
      if (++digits_ > chunk_digits_max) return bad("a chunk size is too large");
      left_ = (digits_ == 1 ? 0 : left_ * 16) + static_cast<std::uint64_t>(value);
      return {};
    }
    if (digits_ == 0) return bad("a chunk size is not hexadecimal");
    if (byte == ';') {
      state_ = State::extension;
      return {};
    }
    if (byte != '\r') return bad("a chunk size is not hexadecimal");
  } else if (byte != '\r') {
    if (!is_text(byte)) return bad("a control character in a chunk extension");
    if (++extra_bytes_ > chunk_extra_bytes_max) return bad("chunk extensions are too long");
    return {};
  }
  state_ = State::size_lf;
  return {};
}

base::Result<void> ChunkDecoder::take_of_trailer(char byte) {
  switch (state_) {
    case State::trailer_start:
      if (byte == '\r') {
        state_ = State::end_lf;
        return {};
      }
      if (!is_token_char(byte)) return bad("a malformed trailer");
      state_ = State::trailer;
      break;
    case State::trailer:
      if (byte == '\r') {
        state_ = State::trailer_lf;
        return {};
      }
      if (!is_text(byte)) return bad("a control character in a trailer");
      break;
    case State::trailer_lf:
    case State::end_lf:
      if (byte != '\n') return bad("a trailer does not end with CRLF");
      state_ = state_ == State::end_lf ? State::done : State::trailer_start;
      return {};
    default:
      return bad("bytes behind the end of a chunked body");
  }
  if (++extra_bytes_ > chunk_extra_bytes_max) return bad("trailers are too long");
  return {};
}

bool is_field_name(std::string_view name) noexcept {
  return !name.empty() && std::ranges::all_of(name, is_token_char);
}

bool is_field_value(std::string_view value) noexcept {
  return std::ranges::all_of(value, is_text);
}

}  // namespace http
