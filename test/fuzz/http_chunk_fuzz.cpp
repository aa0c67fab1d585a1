#include "base/assert.hpp"
#include "http/parser.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>  // tidy-allow(heavy): the second parser of the comparison
#include <boost/beast/http/string_body.hpp>  // tidy-allow(heavy): the second parser of the comparison

// A chunked body decodes to the same bytes and ends at the same place however it arrives and
// however much room there is; and where a second parser (Beast) also finds an end, it finds the
// same one.

namespace {

namespace beast = boost::beast;

struct Decoded {
  bool refused = false;
  bool finished = false;
  std::string body;
  std::size_t consumed = 0;
  friend bool operator==(Decoded const&, Decoded const&) = default;
};

Decoded decode(std::string_view text, std::size_t in_step, std::size_t room) {
  http::ChunkDecoder decoder;
  Decoded out;
  std::vector<char> buffer(room);
  while (out.consumed < text.size() && !out.finished) {
    auto const piece = text.substr(out.consumed, in_step);
    auto const step = decoder.decode(std::span<char const>(piece.data(), piece.size()), buffer);
    if (!step) {
      out.refused = true;
      return out;
    }
    SPACE_ASSERT(step->consumed <= piece.size() && step->produced <= room,
                 "stays inside what it was given");
    SPACE_ASSERT(step->consumed > 0 || step->finished, "makes progress");
    out.consumed += step->consumed;
    out.body.append(buffer.data(), step->produced);
    out.finished = step->finished;
  }
  return out;
}

void agrees_with_beast(std::string_view text, Decoded const& ours) {
  beast::http::request_parser<beast::http::string_body> second;
  second.eager(true);
  second.body_limit(boost::none);
  second.header_limit(1 << 24);
  std::string const all =
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(text);
  std::size_t const head = all.size() - text.size();
  beast::error_code error;
  auto const used = second.put(boost::asio::const_buffer(all.data(), all.size()), error);
  if (error || !second.is_done()) return;
  SPACE_ASSERT(used - head == ours.consumed, "both find the same end");
  SPACE_ASSERT(second.get().body() == ours.body, "and the same body");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  std::string_view const text(reinterpret_cast<char const*>(data),
                              size);  // SAFETY: bytes are bytes
  auto const whole = decode(text, size + 1, size + 1);
  auto const dripping = decode(text, 1, 1);
  auto const odd = decode(text, 5, 3);
  SPACE_ASSERT(whole.refused == dripping.refused && whole.refused == odd.refused,
               "a refusal does not depend on the pieces");
  if (whole.refused) return 0;
  SPACE_ASSERT(whole == dripping && whole == odd, "the body does not depend on the pieces");
  if (whole.finished) agrees_with_beast(text, whole);
  return 0;
}
