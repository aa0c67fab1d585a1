#include "base/assert.hpp"
#include "gateway/http1.hpp"

#include <cstdint>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>  // tidy-allow(heavy): the second parser of the comparison
#include <boost/beast/http/parser.hpp>  // tidy-allow(heavy): the second parser of the comparison

// Messages as the gateway reads them, in both directions: the end of a head is found however it
// arrives; what we accept, a laxer parser accepts with the same length and the same Host; written
// out anew it is the same message and nothing more.

namespace {

namespace beast = boost::beast;

template <bool is_request>
void agrees_with_beast(std::string_view head, gateway::Framing const& framing, bool has_body) {
  beast::http::parser<is_request, beast::http::empty_body> second;
  second.header_limit(1 << 24);
  second.body_limit(boost::none);
  beast::error_code error;
  auto const used = second.put(boost::asio::const_buffer(head.data(), head.size()), error);
  SPACE_ASSERT(!error && used == head.size() && second.is_header_done(),
               "a laxer parser accepts what we accept");
  if (!has_body) return;
  bool const chunked = framing.kind == gateway::Framing::Kind::chunked;
  SPACE_ASSERT(second.chunked() == chunked, "both see the same coding");
  if (framing.kind == gateway::Framing::Kind::length) {
    SPACE_ASSERT(second.content_length() && *second.content_length() == framing.length,
                 "both see the same length");
  }
}

void check_fields(std::vector<gateway::Field> const& fields) {
  for (auto const& field : fields) {
    for (auto const* never :
         {"transfer-encoding", "content-length", "connection", "upgrade", "te", "keep-alive"})
      SPACE_ASSERT(!gateway::same_name(field.name, never),
                   "framing and hop-by-hop fields stay here");
    for (char const c : field.name + field.value)
      SPACE_ASSERT(c != '\r' && c != '\n' && c != '\0', "a field is one line");
  }
}

void check_request(std::string_view head) {
  auto const parsed = gateway::parse_request_head(head, 443);
  if (!parsed) return;
  agrees_with_beast<true>(head, parsed->body, true);
  check_fields(parsed->fields);
  SPACE_ASSERT(parsed->host, "a request has one Host");
  SPACE_ASSERT(!parsed->find("host"), "which is ours to write");
  auto const again = gateway::serialise(*parsed);
  auto const length = gateway::head_length(again, {.head_bytes_max = 1 << 20});
  SPACE_ASSERT(length && *length == again.size(), "what we send is one head");
  auto const second = gateway::parse_request_head(again, 443, {1 << 20, 1 << 19, 256});
  SPACE_ASSERT(second, "what we send is accepted");
  SPACE_ASSERT(second->path == parsed->path && second->query == parsed->query &&
                   second->method == parsed->method && second->host == parsed->host,
               "and is the same request");
  SPACE_ASSERT(second->body.kind == parsed->body.kind && second->body.length == parsed->body.length,
               "of the same length");
  SPACE_ASSERT(gateway::serialise(*second) == again, "to the byte");
}

void check_response(std::string_view head) {
  for (std::string_view const method : {"GET", "HEAD"}) {
    auto const parsed = gateway::parse_response_head(head, method);
    if (!parsed) continue;
    bool const plain =
        method == "GET" && parsed->status >= 200 && parsed->status != 204 && parsed->status != 304;
    std::string as_written(head);
    // Many servers leave out the space before an empty reason; that much is forgiven.
    if (as_written[12] == '\r') as_written.insert(12, " ");
    agrees_with_beast<false>(as_written, parsed->body, plain);
    check_fields(parsed->fields);
    auto const again = gateway::serialise(*parsed);
    auto const length = gateway::head_length(again, {.head_bytes_max = 1 << 20});
    SPACE_ASSERT(length && *length == again.size(), "what we send is one head");
  }
}

std::pair<std::string, std::size_t> decode(std::string_view text,
                                           gateway::Framing framing,
                                           std::size_t step) {
  gateway::BodyDecoder decoder(framing);
  std::string out;
  std::size_t used = 0;
  while (used < text.size() && !decoder.done()) {
    auto const piece = text.substr(used, step);
    std::string_view rest = piece;
    while (!rest.empty() && !decoder.done()) {
      auto const taken = decoder.decode(rest, out);
      if (!taken) return {out, std::string_view::npos};
      rest.remove_prefix(*taken);
      used += *taken;
    }
  }
  return {out, decoder.done() ? used : std::string_view::npos - 1};
}

void check_body(std::string_view text) {
  gateway::Framing chunked;
  chunked.kind = gateway::Framing::Kind::chunked;
  auto const whole = decode(text, chunked, text.size() + 1);
  SPACE_ASSERT(decode(text, chunked, 1).second == whole.second,
               "the end of a body does not depend on how it arrives");
  if (whole.second < text.size() + 1)
    SPACE_ASSERT(decode(text, chunked, 3).first == whole.first, "nor does its content");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  // SAFETY: bytes are bytes.
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  auto const length = gateway::head_length(text);
  for (std::size_t have = 0; have < text.size(); have += 1 + have / 8) {
    auto const part = gateway::head_length(text.substr(0, have));
    // A CR as the last byte may still become a line end: only what is complete is final.
    if (part && *part > 0)
      SPACE_ASSERT(length && *length == *part, "a complete head stays complete");
  }
  if (length && *length > 0) {
    check_request(text.substr(0, *length));
    check_response(text.substr(0, *length));
    check_body(text.substr(*length));
  } else {
    check_body(text);
  }
  return 0;
}
