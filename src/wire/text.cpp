#include "wire/text.hpp"

#include <boost/json/parse.hpp>

namespace wire::detail {

BriefDocument::~BriefDocument() {
  value_.reset();
  explicit_bzero(room_.data(), room_.size());
}

json::value const* BriefDocument::parse(std::string_view text) {
  json::parse_options options;
  options.max_depth = 32;
  boost::system::error_code error;
  auto value = json::parse(text, error, json::storage_ptr(&memory_), options);
  if (error) return nullptr;
  // Moved and not assigned: an assignment would copy it out of this memory.
  value_.emplace(std::move(value));
  return &*value_;
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  std::size_t from = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto const byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out += text.substr(from, i - from);
    from = i + 1;
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    }
  }
  out += text.substr(from);
  out += '"';
}

}  // namespace wire::detail
