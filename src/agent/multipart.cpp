#include "agent/multipart.hpp"

#include "http/message.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace agent {
namespace {

using base::Code;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

struct Parameters {
  std::string_view value;  // before the first ';'
  std::vector<std::pair<std::string, std::string>> parameters;

  std::string const* find(std::string_view name) const {
    for (auto const& [key, value_of] : parameters)
      if (http::equal_ignoring_case(key, name)) return &value_of;
    return nullptr;
  }
};

/// A quoted string without its opening quote; takes it off `text`, closing quote included. Only \"
/// and \\ are escapes: in a Windows path a backslash is just that.
std::optional<std::string> take_quoted(std::string_view& text) {
  std::string value;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      text.remove_prefix(at + 1);
      return value;
    }
    if (text[at] == '\\' && at + 1 < text.size() && (text[at + 1] == '"' || text[at + 1] == '\\'))
      ++at;
    value += text[at];
  }
  return std::nullopt;
}

/// `form-data; name="file"; filename="a b"`. Nothing when it is malformed.
std::optional<Parameters> parse_parameters(std::string_view text) {
  Parameters parsed;
  auto cut = text.find(';');
  parsed.value = trimmed(text.substr(0, cut));
  while (cut != std::string_view::npos) {
    text = trimmed(text.substr(cut + 1));
    if (text.empty()) break;
    auto const equals = text.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    std::string key(trimmed(text.substr(0, equals)));
    text = trimmed(text.substr(equals + 1));
    std::string value;
    if (text.starts_with('"')) {
      text.remove_prefix(1);
      auto quoted = take_quoted(text);
      if (!quoted) return std::nullopt;
      value = *std::move(quoted);
      cut = text.find(';');
      if (!trimmed(text.substr(0, cut)).empty()) return std::nullopt;
    } else {
      cut = text.find(';');
      value = trimmed(text.substr(0, cut));
    }
    parsed.parameters.emplace_back(std::move(key), std::move(value));
  }
  return parsed;
}

/// Form encoders write a quote and line breaks as %22, %0D and %0A, and nothing else; "%41" is a
/// name's own.
std::string unescape_form(std::string const& text) {
  std::string plain;
  for (std::size_t at = 0; at < text.size(); ++at) {
    auto const code = std::string_view(text).substr(at, 3);
    if (code == "%22") {
      plain += '"';
    } else if (http::equal_ignoring_case(code, "%0d")) {
      plain += '\r';
    } else if (http::equal_ignoring_case(code, "%0a")) {
      plain += '\n';
    } else {
      plain += text[at];
      continue;
    }
    at += 2;
  }
  return plain;
}

/// The form of RFC 5987: UTF-8''%e2%82%ac.txt
std::optional<std::string> decode_extended(std::string const& text) {
  auto const charset = text.find('\'');
  auto const language = charset == std::string::npos ? charset : text.find('\'', charset + 1);
  if (language == std::string::npos) return std::nullopt;
  if (!http::equal_ignoring_case(std::string_view(text).substr(0, charset), "utf-8"))
    return std::nullopt;
  auto decoded = http::percent_decode(std::string_view(text).substr(language + 1));
  if (!decoded) return std::nullopt;
  return *std::move(decoded);
}

}  // namespace

std::optional<std::string> multipart_boundary(std::string_view content_type) {
  auto const parsed = parse_parameters(content_type);
  if (!parsed || parsed->value.size() < 10 ||
      !http::equal_ignoring_case(parsed->value.substr(0, 10), "multipart/"))
    return std::nullopt;
  auto const* boundary = parsed->find("boundary");
  // RFC 2046 allows 70; be generous but bounded.
  if (boundary == nullptr || boundary->empty() || boundary->size() > 200) return std::nullopt;
  bool const clean = std::ranges::none_of(
      *boundary, [](char one) { return one == '\r' || one == '\n' || one == '\0'; });
  if (!clean) return std::nullopt;
  return *boundary;
}

// The first delimiter may stand at the very start; as if a line break preceded it.
MultipartParser::MultipartParser(std::string_view boundary)
    : delimiter_("\r\n--" + std::string(boundary)), buffer_("\r\n") {}

void MultipartParser::drop(std::size_t count) {
  taken_ += count;
  // Moving the rest to the front only now and then keeps byte-wise feeding linear.
  if (taken_ < 64 * 1024 && taken_ < buffer_.size()) return;
  buffer_.erase(0, taken_);
  taken_ = 0;
}

base::Result<MultipartParser::Event> MultipartParser::next() {
  switch (state_) {
    case State::preamble:
      return at_preamble();
    case State::after_delimiter:
      return at_delimiter();
    case State::head:
      return at_head();
    case State::content:
      return at_content();
    case State::finished:
      break;
  }
  // What follows the last boundary is to be ignored.
  drop(rest().size());
  return Event{.kind = Kind::finished};
}

base::Result<MultipartParser::Event> MultipartParser::at_preamble() {
  auto const at = rest().find(delimiter_);
  if (at == std::string_view::npos) {
    auto const keep = std::min(rest().size(), delimiter_.size() - 1);
    drop(rest().size() - keep);
    return Event{};
  }
  drop(at + delimiter_.size());
  state_ = State::after_delimiter;
  return at_delimiter();
}

base::Result<MultipartParser::Event> MultipartParser::at_delimiter() {
  if (std::exchange(in_part_, false)) return Event{.kind = Kind::part_ends};
  auto const text = rest();
  if (text.starts_with("--")) {
    state_ = State::finished;
    return Event{.kind = Kind::finished};
  }
  auto const line = text.find("\r\n");
  if (line == std::string_view::npos) {
    if (text.size() > part_head_bytes_max)
      return base::fail(Code::invalid_argument, "a multipart boundary line does not end");
    return Event{};
  }
  if (!trimmed(text.substr(0, line)).empty())
    return base::fail(Code::invalid_argument, "there is text behind a multipart boundary");
  drop(line);  // the line break stays: a head without fields is then found like any other
  state_ = State::head;
  return at_head();
}

base::Result<MultipartParser::Event> MultipartParser::at_head() {
  auto const text = rest();
  auto const end = text.find("\r\n\r\n");
  if (std::min(end, text.size()) > part_head_bytes_max)
    return base::fail(Code::too_large, "the head of a multipart part is too large");
  if (end == std::string_view::npos) return Event{};
  if (++parts_ > parts_max)
    return base::fail(Code::too_large, fmt::format("more than {} parts in one request", parts_max));

  Event event{.kind = Kind::part_begins};
  auto head = text.substr(0, end);
  while (!head.empty()) {
    head.remove_prefix(2);  // the line break before each field
    auto const line_end = std::min(head.find("\r\n"), head.size());
    auto const line = head.substr(0, line_end);
    head.remove_prefix(line_end);
    auto const colon = line.find(':');
    if (colon == std::string_view::npos)
      return base::fail(Code::invalid_argument, "a multipart part has a malformed head");
    if (!http::equal_ignoring_case(trimmed(line.substr(0, colon)), "content-disposition")) continue;
    auto const disposition = parse_parameters(trimmed(line.substr(colon + 1)));
    if (!disposition)
      return base::fail(Code::invalid_argument,
                        "a multipart part has a malformed Content-Disposition");
    if (auto const* name = disposition->find("name")) event.name = unescape_form(*name);
    if (auto const* filename = disposition->find("filename"))
      event.filename = unescape_form(*filename);
    if (auto const* extended = disposition->find("filename*"))
      event.filename = decode_extended(*extended).value_or(event.filename);
  }
  drop(end + 4);
  state_ = State::content;
  in_part_ = true;
  return event;
}

base::Result<MultipartParser::Event> MultipartParser::at_content() {
  auto const text = rest();
  auto const at = text.find(delimiter_);
  if (at == 0) {
    drop(delimiter_.size());
    state_ = State::after_delimiter;
    return at_delimiter();
  }
  auto ready = at;
  if (at == std::string_view::npos) {
    // The end may be the beginning of a delimiter, which is told by its first byte.
    auto const window = text.size() - std::min(text.size(), delimiter_.size() - 1);
    ready = std::min(text.find('\r', window), text.size());
  }
  if (ready == 0) return Event{};
  Event event{.kind = Kind::content, .content = std::string(text.substr(0, ready))};
  drop(ready);
  return event;
}

}  // namespace agent
