#include "agent/files_negotiate.hpp"
#include "agent/multipart.hpp"
#include "agent/path.hpp"
#include "base/assert.hpp"

// A multipart body means the same files however it arrives; what it announces stays within the
// bounds; and the small grammars of a download take any text.

namespace {

using agent::MultipartParser;

struct Parsed {
  bool refused = false;
  bool finished = false;
  std::string story;  // every event in order, neighbouring pieces of content joined
  friend bool operator==(Parsed const&, Parsed const&) = default;
};

Parsed parse(std::string_view text, std::size_t step) {
  MultipartParser parser("b");
  Parsed out;
  bool open = false;
  for (std::size_t at = 0; at < text.size(); at += step) {
    parser.feed(text.substr(at, step));
    for (;;) {
      auto const event = parser.next();
      if (!event) {
        out.refused = true;
        return out;
      }
      using Kind = MultipartParser::Kind;
      if (event->kind == Kind::need_more) break;
      if (event->kind == Kind::finished) {
        SPACE_ASSERT(!open, "the last part was closed");
        out.finished = true;
        return out;
      }
      if (event->kind == Kind::content) {
        SPACE_ASSERT(open && !event->content.empty(),
                     "content belongs to a part and is never empty");
        out.story += event->content;
      } else {
        bool const begins = event->kind == Kind::part_begins;
        SPACE_ASSERT(begins != open, "parts do not nest");
        open = begins;
        out.story += begins ? "<" + event->name + "|" + event->filename + ">" : "</>";
      }
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  std::string_view const text(reinterpret_cast<char const*>(data),
                              size);  // SAFETY: bytes are bytes
  auto const whole = parse(text, size + 1);
  for (std::size_t const step : {1U, 2U, 7U}) {
    auto const pieces = parse(text, step);
    SPACE_ASSERT(whole.refused == pieces.refused, "a refusal does not depend on the pieces");
    SPACE_ASSERT(whole.refused || whole == pieces, "nor does what was read");
  }

  static_cast<void>(agent::multipart_boundary(text));
  static_cast<void>(agent::accepted_encodings(text));
  auto const range = agent::range_of(text, 1000);
  SPACE_ASSERT(range.kind != agent::RangeKind::part ||
                   (range.range.count > 0 && range.range.first + range.range.count <= 1000),
               "a range lies inside the file");
  auto const readable = agent::as_utf8(text);
  SPACE_ASSERT(agent::as_utf8(readable) == readable, "what is text stays as it is");
  auto const named = agent::inline_disposition(text);
  SPACE_ASSERT(named.find_first_of("\r\n") == std::string::npos, "a name cannot end the header");
  auto const clean = agent::clean_path(text);
  SPACE_ASSERT(clean.starts_with('/') && agent::clean_path(clean) == clean,
               "cleaning twice changes nothing");
  return 0;
}
