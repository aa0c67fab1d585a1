#include "base/assert.hpp"
#include "http/parser.hpp"
#include "http/serialize.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>  // tidy-allow(heavy): the second parser of the comparison
#include <boost/beast/http/parser.hpp>  // tidy-allow(heavy): the second parser of the comparison

// What must hold for the head of a message, whatever the bytes: the end is found however they
// arrive; what we accept means the same to a second, laxer parser (Beast alone); and it means the
// same again after we send it on.

namespace {

namespace beast = boost::beast;

std::size_t end_of(std::string_view text, std::size_t step) {
  http::HeadScanner scanner;
  for (std::size_t have = std::min(step, text.size());; have = std::min(have + step, text.size())) {
    auto const found = scanner.scan(text.substr(0, have));
    if (!found) return 0;
    if (*found > 0 || have == text.size()) return *found;
  }
}

template <bool is_request>
void agrees_with_beast(std::string_view head, http::Framing framing, bool has_body) {
  beast::http::parser<is_request, beast::http::empty_body> second;
  second.header_limit(1 << 24);
  second.body_limit(boost::none);
  beast::error_code error;
  auto const used = second.put(boost::asio::const_buffer(head.data(), head.size()), error);
  SPACE_ASSERT(!error && used == head.size() && second.is_header_done(),
               "a laxer parser accepts what we accept");
  if (!has_body) return;
  SPACE_ASSERT(second.chunked() == (framing.kind == http::Framing::Kind::chunked),
               "both see the same coding");
  if (framing.kind == http::Framing::Kind::length) {
    SPACE_ASSERT(second.content_length() && *second.content_length() == framing.length,
                 "both see the same length");
  }
}

void check_request(std::string_view head) {
  auto const parsed = http::parse_request_head(head);
  if (!parsed) return;
  agrees_with_beast<true>(head, parsed->framing, true);
  std::string again;
  if (!http::append_request_head(again, parsed->head))
    return;  // an empty value of an odd name, refused to be sent
  if (!parsed->head.headers.find("Host"))
    http::append_field(again, "Host", "localhost");  // as Connection does
  again += "\r\n";
  http::HeadScanner scanner;
  auto const length = scanner.scan(again);
  SPACE_ASSERT(length && *length == again.size(), "what we send is one head");
  auto const second = http::parse_request_head(again);
  SPACE_ASSERT(second, "what we send is accepted");
  SPACE_ASSERT(
      second->head.target == parsed->head.target && second->head.method == parsed->head.method,
      "and is the same request");
}

void check_response(std::string_view head) {
  for (std::string_view const method : {"GET", "HEAD"}) {
    auto const parsed = http::parse_response_head(head, method);
    if (!parsed) continue;
    agrees_with_beast<false>(head,
                             parsed->framing,
                             method == "GET" && parsed->head.status >= 200 &&
                                 parsed->head.status != 204 && parsed->head.status != 304);
    std::string again;
    if (!http::append_response_head(again, parsed->head.status, parsed->head.headers)) continue;
    again += "\r\n";
    http::HeadScanner scanner;
    auto const length = scanner.scan(again);
    SPACE_ASSERT(length && *length == again.size(), "what we send is one head");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  std::string_view const text(reinterpret_cast<char const*>(data),
                              size);  // SAFETY: bytes are bytes
  auto const length = end_of(text, text.size() + 1);
  SPACE_ASSERT(end_of(text, 1) == length && end_of(text, 7) == length,
               "the end does not depend on how bytes arrive");
  if (length == 0) return 0;
  check_request(text.substr(0, length));
  check_response(text.substr(0, length));
  return 0;
}
