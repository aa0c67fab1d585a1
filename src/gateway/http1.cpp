#include "gateway/http1.hpp"

#include <charconv>

namespace gateway {
namespace {

using base::Code;

constexpr std::size_t chunk_line_max = 256;
constexpr std::size_t trailer_bytes_max = 8192;

std::unexpected<base::Error> bad(std::string what) {
  return base::fail(Code::invalid_argument, std::move(what));
}

bool is_token_char(char c) noexcept {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) noexcept {
  return !text.empty() && std::ranges::all_of(text, is_token_char);
}

bool is_digits(std::string_view text) noexcept {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Visible ASCII, space, tab and obs-text; no control bytes.
bool is_field_value(std::string_view text) noexcept {
  return std::ranges::all_of(text, [](char c) {
    auto const byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
  });
}

bool is_visible_ascii(std::string_view text) noexcept {
  return std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string_view trim(std::string_view text) noexcept {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

/// Fields that speak about one connection only, and never go further.
constexpr std::string_view hop_by_hop[] = {"connection",
                                           "keep-alive",
                                           "proxy-connection",
                                           "te",
                                           "trailer",
                                           "trailers",
                                           "upgrade",
                                           "proxy-authorization",
                                           "proxy-authenticate",
                                           "transfer-encoding",
                                           "content-length",
                                           "http2-settings"};

struct Fields {
  std::vector<Field> all;
  std::vector<std::string> connection;  // lower-case options
};

base::Result<Field> parse_field(std::string_view line) {
  auto const colon = line.find(':');
  if (colon == std::string_view::npos) return bad("a header line has no colon");
  auto const name = line.substr(0, colon);
  // Also refuses folded lines (they begin with a space) and a space before the colon.
  if (!is_token(name)) return bad("a header name has a byte that is not allowed there");
  auto const value = trim(line.substr(colon + 1));
  if (!is_field_value(value)) return bad("a header value has a control byte");
  return Field{std::string(name), std::string(value)};
}

/// The options of a Connection field, lower case. A value that is no list of tokens is a list to
/// one server and a single odd word to another.
base::Result<std::vector<std::string>> parse_options(std::string_view rest) {
  std::vector<std::string> out;
  while (true) {
    auto const comma = rest.find(',');
    auto const option = trim(rest.substr(0, comma));
    if (!option.empty() && !is_token(option))
      return bad("Connection has a byte that is not allowed there");
    if (!option.empty()) out.push_back(lower(option));
    if (comma == std::string_view::npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

base::Result<Fields> parse_fields(std::string_view lines, HeadLimits const& limits) {
  Fields fields;
  while (!lines.empty()) {
    auto const end = lines.find("\r\n");
    auto const line = lines.substr(0, end);
    lines.remove_prefix(end + 2);
    if (line.empty()) break;
    if (line.size() > limits.line_bytes_max) return bad("a header line is too long");
    if (fields.all.size() == limits.fields_max) return bad("too many header lines");
    auto field = parse_field(line);
    if (!field) return base::passing(field);
    bool const speaks = same_name(field->name, "connection");
    if (speaks || same_name(field->name, "proxy-connection")) {
      auto options = parse_options(field->value);
      if (!options) return base::passing(options);
      if (speaks) std::ranges::move(*options, std::back_inserter(fields.connection));
    }
    fields.all.push_back(std::move(*field));
  }
  return fields;
}

std::size_t count(Fields const& fields, std::string_view name) {
  return static_cast<std::size_t>(
      std::ranges::count_if(fields.all, [&](Field const& f) { return same_name(f.name, name); }));
}

std::string const* only(Fields const& fields, std::string_view name) {
  for (auto const& field : fields.all)
    if (same_name(field.name, name)) return &field.value;
  return nullptr;
}

base::Result<Framing> framing_of(Fields const& fields, int minor_version) {
  Framing framing;
  auto const lengths = count(fields, "content-length");
  auto const encodings = count(fields, "transfer-encoding");
  if (lengths > 1 || encodings > 1 || (lengths && encodings))
    return bad("the length of the body is given twice");
  if (encodings) {
    if (minor_version == 0) return bad("Transfer-Encoding in HTTP/1.0");
    if (lower(*only(fields, "transfer-encoding")) != "chunked")
      return bad("a Transfer-Encoding other than chunked");
    framing.kind = Framing::Kind::chunked;
  } else if (lengths) {
    auto const& text = *only(fields, "content-length");
    if (!is_digits(text) || text.size() > 18) return bad("Content-Length is not a plain number");
    std::from_chars(text.data(), text.data() + text.size(), framing.length);
    framing.kind = Framing::Kind::length;
  }
  return framing;
}

bool has_option(Fields const& fields, std::string_view option) {
  return std::ranges::find(fields.connection, option) != fields.connection.end();
}

void drop_hop_by_hop(Fields& fields) {
  std::erase_if(fields.all, [&](Field const& field) {
    auto const name = lower(field.name);
    return std::ranges::find(hop_by_hop, name) != std::end(hop_by_hop) || has_option(fields, name);
  });
}

base::Result<int> minor_version_of(std::string_view version) {
  if (version == "HTTP/1.1") return 1;
  if (version == "HTTP/1.0") return 0;
  return bad("only HTTP/1.1 and HTTP/1.0 are spoken here");
}

base::Result<void> parse_target(std::string_view target,
                                std::uint16_t default_port,
                                RequestHead& head) {
  if (!is_visible_ascii(target))
    return bad("the request target has a byte that is not allowed there");
  if (target.find('#') != std::string_view::npos) return bad("the request target has a fragment");
  if (target.starts_with("http://") || target.starts_with("https://")) {
    auto const rest = target.substr(target.find("//") + 2);
    auto const slash = rest.find('/');
    auto authority = domain::parse_authority(rest.substr(0, slash), default_port);
    if (!authority) return base::passing(authority, "the request target");
    head.host = authority->host;
    head.port = authority->port;
    target = slash == std::string_view::npos ? "/" : rest.substr(slash);
  } else if (target == "*" && head.method == "OPTIONS") {
    return bad("OPTIONS * is not forwarded");
  } else if (!target.starts_with('/')) {
    return bad("the request target must begin with a slash");
  }
  auto const question = target.find('?');
  head.path = target.substr(0, question);
  if (question != std::string_view::npos) head.query = target.substr(question + 1);
  return {};
}

base::Result<void> parse_request_line(std::string_view line,
                                      std::uint16_t default_port,
                                      RequestHead& head) {
  auto const first = line.find(' ');
  auto const last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || line.find(' ', first + 1) != last) {
    return bad("the request line is not `method target version`");
  }
  head.method = line.substr(0, first);
  if (!is_token(head.method) || head.method.size() > 32)
    return bad("the method has a byte that is not allowed there");
  auto version = minor_version_of(line.substr(last + 1));
  if (!version) return base::passing(version);
  head.minor_version = *version;
  return parse_target(line.substr(first + 1, last - first - 1), default_port, head);
}

base::Result<void> apply_host(Fields const& fields, std::uint16_t default_port, RequestHead& head) {
  auto const hosts = count(fields, "host");
  if (hosts > 1) return bad("more than one Host");
  if (hosts == 0)
    return head.minor_version == 0 && head.host ? base::Result<void>()
                                                : base::Result<void>(bad("no Host"));
  auto const& text = *only(fields, "host");
  if (!is_visible_ascii(text)) return bad("Host has a byte that is not allowed there");
  auto authority = domain::parse_authority(text, default_port);
  if (!authority) return base::passing(authority, "Host");
  if (head.host && (*head.host != authority->host || head.port != authority->port))
    return bad("Host and the request target disagree");
  head.host = authority->host;
  head.port = authority->port;
  return {};
}

void remove_named(std::vector<Field>& fields, std::string_view name) {
  std::erase_if(fields, [&](Field const& field) { return same_name(field.name, name); });
}

std::string const* find_named(std::vector<Field> const& fields, std::string_view name) noexcept {
  for (auto const& field : fields)
    if (same_name(field.name, name)) return &field.value;
  return nullptr;
}

void write_framing(std::string& out, Framing const& framing) {
  if (framing.kind == Framing::Kind::length)
    out += fmt::format("Content-Length: {}\r\n", framing.length);
  if (framing.kind == Framing::Kind::chunked) out += "Transfer-Encoding: chunked\r\n";
}

/// What a head has besides its texts: version, status, port, framing, `Connection: Upgrade`.
constexpr std::size_t fixed_bytes_max = 192;

std::size_t size_of(std::vector<Field> const& fields) {
  std::size_t size = 0;
  for (auto const& field : fields)
    size += field.name.size() + field.value.size() + 4;
  return size;
}

void write_fields(std::string& out, std::vector<Field> const& fields) {
  for (auto const& field : fields)
    out.append(field.name).append(": ").append(field.value).append("\r\n");
  out.append("\r\n");
}

}  // namespace

bool same_name(std::string_view a, std::string_view b) noexcept {
  auto const fold = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::ranges::equal(a, b, [&](char x, char y) { return fold(x) == fold(y); });
}

std::string const* RequestHead::find(std::string_view name) const noexcept {
  return find_named(fields, name);
}

void RequestHead::remove(std::string_view name) {
  remove_named(fields, name);
}

std::string const* ResponseHead::find(std::string_view name) const noexcept {
  return find_named(fields, name);
}

void ResponseHead::remove(std::string_view name) {
  remove_named(fields, name);
}

base::Result<std::size_t> head_length(std::string_view bytes, HeadLimits const& limits) {
  for (std::size_t i = 0; i < bytes.size() && i < limits.head_bytes_max; ++i) {
    if (bytes[i] == '\0') return bad("a NUL byte in the head");
    if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r'))
      return bad("a line that ends with LF alone");
    if (bytes[i] == '\r' && i + 1 < bytes.size() && bytes[i + 1] != '\n')
      return bad("a CR that ends no line");
    if (i >= 3 && bytes.substr(i - 3, 4) == "\r\n\r\n") return i + 1;
  }
  if (bytes.size() >= limits.head_bytes_max) return bad("the head is too long");
  return std::size_t{0};
}

base::Result<RequestHead> parse_request_head(std::string_view bytes,
                                             std::uint16_t default_port,
                                             HeadLimits const& limits) {
  RequestHead head;
  auto const end = bytes.find("\r\n");
  if (end == std::string_view::npos || !bytes.ends_with("\r\n\r\n"))
    return bad("the head is not complete");
  if (end > limits.line_bytes_max) return bad("the request line is too long");
  if (auto done = parse_request_line(bytes.substr(0, end), default_port, head); !done)
    return base::passing(done);
  auto fields = parse_fields(bytes.substr(end + 2), limits);
  if (!fields) return base::passing(fields);
  if (auto done = apply_host(*fields, default_port, head); !done) return base::passing(done);
  auto framing = framing_of(*fields, head.minor_version);
  if (!framing) return base::passing(framing);
  head.body = *framing;
  head.keep_alive =
      head.minor_version == 1 ? !has_option(*fields, "close") : has_option(*fields, "keep-alive");
  if (has_option(*fields, "upgrade") && count(*fields, "upgrade") == 1)
    head.upgrade = lower(*only(*fields, "upgrade"));
  if (auto const* expect = only(*fields, "expect")) {
    if (lower(*expect) != "100-continue") return bad("an Expect other than 100-continue");
    head.expect_continue = true;
  }
  drop_hop_by_hop(*fields);
  // Many servers read `_` as `-`: Transfer_Encoding would be the field that we did not see.
  std::erase_if(fields->all, [](Field const& field) { return field.name.contains('_'); });
  remove_named(fields->all, "host");
  remove_named(fields->all, "expect");
  head.fields = std::move(fields->all);
  return head;
}

base::Result<ResponseHead> parse_response_head(std::string_view bytes,
                                               std::string_view request_method,
                                               HeadLimits const& limits) {
  ResponseHead head;
  auto const end = bytes.find("\r\n");
  if (end == std::string_view::npos || !bytes.ends_with("\r\n\r\n"))
    return bad("the head is not complete");
  auto const line = bytes.substr(0, end);
  if (line.size() < 12 || line[8] != ' ' || !is_digits(line.substr(9, 3)) ||
      (line.size() > 12 && line[12] != ' ')) {
    return bad("the status line is not `version status reason`");
  }
  auto version = minor_version_of(line.substr(0, 8));
  if (!version) return base::passing(version);
  head.minor_version = *version;
  std::from_chars(line.data() + 9, line.data() + 12, head.status);
  if (head.status < 100 || head.status > 599) return bad("a status outside 100 to 599");
  head.reason = line.size() > 13 ? line.substr(13) : std::string_view();
  if (!is_field_value(head.reason)) return bad("the reason has a control byte");
  auto fields = parse_fields(bytes.substr(end + 2), limits);
  if (!fields) return base::passing(fields);
  auto framing = framing_of(*fields, head.minor_version);
  if (!framing) return base::passing(framing);
  head.body = *framing;
  bool const bodiless =
      request_method == "HEAD" || head.status < 200 || head.status == 204 || head.status == 304;
  if (!bodiless && head.body.kind == Framing::Kind::none)
    head.body.kind = Framing::Kind::until_close;
  if (bodiless && request_method != "HEAD") head.body = Framing{};
  if (bodiless && request_method == "HEAD" && head.body.kind == Framing::Kind::chunked)
    head.body = Framing{};
  head.keep_alive =
      head.body.kind != Framing::Kind::until_close &&
      (head.minor_version == 1 ? !has_option(*fields, "close") : has_option(*fields, "keep-alive"));
  if (has_option(*fields, "upgrade") && count(*fields, "upgrade") == 1)
    head.upgrade = lower(*only(*fields, "upgrade"));
  drop_hop_by_hop(*fields);
  head.fields = std::move(fields->all);
  return head;
}

std::string serialise(RequestHead const& head) {
  std::string out;
  // Never moved while it grows: a field may be a credential, and a copy would stay behind.
  out.reserve(head.method.size() + head.path.size() + (head.query ? head.query->size() : 0) +
              head.host->str().size() + head.upgrade.size() + fixed_bytes_max +
              size_of(head.fields));
  out.append(head.method).append(" ").append(head.path);
  if (head.query) out.append("?").append(*head.query);
  out.append(" HTTP/1.1\r\nHost: ").append(head.host->str());
  bool const default_port = head.port == 443 || head.port == 80;
  if (!default_port) out.append(fmt::format(":{}", head.port));
  out.append("\r\n");
  write_framing(out, head.body);
  if (!head.upgrade.empty())
    out += fmt::format("Connection: Upgrade\r\nUpgrade: {}\r\n", head.upgrade);
  write_fields(out, head.fields);
  return out;
}

std::string serialise(ResponseHead const& head) {
  std::string out;
  out.reserve(head.reason.size() + head.upgrade.size() + fixed_bytes_max + size_of(head.fields));
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", head.status, head.reason);
  write_framing(out, head.body);
  if (!head.upgrade.empty()) {
    out += fmt::format("Connection: Upgrade\r\nUpgrade: {}\r\n", head.upgrade);
  } else if (!head.keep_alive || head.body.kind == Framing::Kind::until_close) {
    out += "Connection: close\r\n";
  }
  write_fields(out, head.fields);
  return out;
}

BodyDecoder::BodyDecoder(Framing framing) noexcept
    : state_(State::done), remaining_(framing.length) {
  if (framing.kind == Framing::Kind::length && framing.length > 0) state_ = State::length;
  if (framing.kind == Framing::Kind::chunked) state_ = State::chunk_size;
  if (framing.kind == Framing::Kind::until_close) state_ = State::until_close;
}

base::Result<std::size_t> BodyDecoder::take_line(std::string_view bytes, std::string_view& line) {
  line = {};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\0') return bad("a NUL byte between chunks");
    if (bytes[i] == '\n') {
      if (!line_.ends_with('\r')) return bad("a chunk line that ends with LF alone");
      line_.pop_back();
      if (line_.find('\r') != std::string::npos) return bad("a CR in a chunk line");
      line = line_;
      return i + 1;
    }
    if (line_.size() == chunk_line_max) return bad("a chunk line is too long");
    line_ += bytes[i];
  }
  return bytes.size();
}

base::Result<void> BodyDecoder::on_chunk_size(std::string_view line) {
  // Extensions are allowed by the protocol and mean nothing to anybody: read, then forgotten.
  auto const digits = trim(line.substr(0, line.find(';')));
  if (digits.empty() || digits.size() > 8) return bad("a chunk size is not 1 to 8 hex digits");
  auto const [stop, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), remaining_, 16);
  if (error != std::errc() || stop != digits.data() + digits.size())
    return bad("a chunk size is not 1 to 8 hex digits");
  state_ = remaining_ == 0 ? State::trailer : State::chunk_data;
  return {};
}

base::Result<std::size_t> BodyDecoder::decode(std::string_view bytes, std::string& out) {
  std::size_t used = 0;
  while (used < bytes.size() && state_ != State::done) {
    auto const rest = bytes.substr(used);
    if (state_ == State::until_close) {
      out += rest;
      return bytes.size();
    }
    if (state_ == State::length || state_ == State::chunk_data) {
      auto const take = static_cast<std::size_t>(std::min<std::uint64_t>(remaining_, rest.size()));
      out += rest.substr(0, take);
      used += take;
      remaining_ -= take;
      if (remaining_ == 0) state_ = state_ == State::length ? State::done : State::chunk_end;
      continue;
    }
    std::string_view line;
    auto taken = take_line(rest, line);
    if (!taken) return base::passing(taken);
    used += *taken;
    if (bytes[used - 1] != '\n') return used;  // the line goes on in the next bytes
    if (state_ == State::chunk_end) {
      if (!line.empty()) return bad("no line end after a chunk");
      state_ = State::chunk_size;
    } else if (state_ == State::chunk_size) {
      if (auto done = on_chunk_size(line); !done) return base::passing(done);
    } else {
      trailer_bytes_ += line.size();
      if (trailer_bytes_ > trailer_bytes_max) return bad("the trailers are too long");
      if (line.empty()) state_ = State::done;
    }
    line_.clear();
  }
  return used;
}

base::Result<void> BodyDecoder::end_of_stream() noexcept {
  if (state_ == State::until_close || state_ == State::done) {
    state_ = State::done;
    return {};
  }
  return base::fail(Code::unavailable, "the body ended early");
}

std::string encode_chunk(std::string_view content) {
  return fmt::format("{:x}\r\n{}\r\n", content.size(), content);
}

}  // namespace gateway
