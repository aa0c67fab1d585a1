#include "gateway/http1.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

base::Result<RequestHead> parse(std::string const& head) {
  auto length = head_length(head);
  if (!length) return base::passing(length);
  if (*length != head.size()) return base::fail(base::Code::invalid_argument, "not one whole head");
  return parse_request_head(head, 443);
}

std::string refusal(std::string const& head) {
  auto const result = parse(head);
  return result ? "" : result.error().message();
}

TEST(RequestHead, AnOrdinaryRequestIsWrittenOutAnew) {
  auto head = parse(
      "GET /a%20b?q=1&r=%2F HTTP/1.1\r\nhOsT: A.Example:443\r\nAccept: */*\r\nConnection: "
      "keep-alive, X-Hop\r\nX-Hop: 1\r\n"
      "Keep-Alive: 5\r\nTE: trailers\r\n\r\n");
  ASSERT_TRUE(head) << head.error().message();
  EXPECT_EQ(head->host->str(), "a.example");
  EXPECT_EQ(head->port, 443);
  EXPECT_TRUE(head->keep_alive);
  EXPECT_EQ(serialise(*head),
            "GET /a%20b?q=1&r=%2F HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n\r\n");
}

TEST(RequestHead, RefusesWhatTwoServersCouldReadDifferently) {
  std::string const host = "Host: a.example\r\n";
  std::vector<std::string> const corpus = {
      "GET / HTTP/1.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a.example\r\nhost: b.example\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: a.\xff"
      "example\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: user@a.example\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: \r\n\r\n",
      "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
      "GET / HTTP/1.1\r\n Host: a.example\r\n\r\n",
      "GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n",
      "GET / HTTP/1.1\r\n" + host + "X: a\x01\r\n\r\n",
      "GET / HTTP/1.1\r\n" + host + "X(: a\r\n\r\n",
      "GET / HTTP/1.1\r\n" + host + "no colon\r\n\r\n",
      "GET / HTTP/1.1\n" + host + "\r\n",
      "GET / HTTP/1.1\r\n" + host + "X: a\rb\r\n\r\n",
      std::string("GET / HTTP/1.1\r\nHost: a.example\r\nX: \0\r\n\r\n", 41),
      "GET  / HTTP/1.1\r\n" + host + "\r\n",
      "GET / x HTTP/1.1\r\n" + host + "\r\n",
      "GET /\r\n" + host + "\r\n",
      "GET / HTTP/0.9\r\n" + host + "\r\n",
      "GET / HTTP/2.0\r\n" + host + "\r\n",
      "GET / HTTP/1.2\r\n" + host + "\r\n",
      "G@T / HTTP/1.1\r\n" + host + "\r\n",
      "GET a.example HTTP/1.1\r\n" + host + "\r\n",
      "GET /#f HTTP/1.1\r\n" + host + "\r\n",
      "GET /\x80 HTTP/1.1\r\n" + host + "\r\n",
      "GET http://b.example/ HTTP/1.1\r\n" + host + "\r\n",
      "GET http://a.example:81/ HTTP/1.1\r\n" + host + "\r\n",
      "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
      "CONNECT a.example:443 HTTP/1.1\r\n" + host + "\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 1, 1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: +1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 0x1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 1 1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 1234567890123456789\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host +
          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
      "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host +
          "Transfer-Encoding:\x0b"
          "chunked\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Expect: 200-maybe\r\n\r\n",
  };
  for (auto const& head : corpus)
    EXPECT_NE(refusal(head), "") << head;
}

TEST(RequestHead, ConnectionIsAListOfTokens) {
  for (std::string_view value : {"\xe3lose", "close; x", "a b", "close, (x)"})
    EXPECT_FALSE(parse_request_head(
        fmt::format("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: {}\r\n\r\n", value), 80))
        << value;
  auto const head =
      parse_request_head("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: , Close\r\n\r\n", 80);
  ASSERT_TRUE(head);
  EXPECT_FALSE(head->keep_alive);
}

TEST(RequestHead, DropsNamesThatServersReadAsOthers) {
  auto const head = parse_request_head(
      "GET / HTTP/1.1\r\nHost: a.example\r\nTransfer_Encoding: chunked\r\nA: b\r\n\r\n", 80);
  ASSERT_TRUE(head);
  ASSERT_EQ(head->fields.size(), 1U);
  EXPECT_EQ(head->fields[0].name, "A");
}

TEST(RequestHead, AcceptsWhatIsPlain) {
  EXPECT_EQ(refusal("POST /x HTTP/1.1\r\nHost: a.example:8443\r\nContent-Length: 0\r\n\r\n"), "");
  EXPECT_EQ(refusal("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"), "");
  EXPECT_EQ(refusal("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: Chunked\r\n\r\n"),
            "");
  EXPECT_EQ(refusal("GET / HTTP/1.0\r\nHost: a.example\r\n\r\n"), "");
}

TEST(RequestHead, LimitsHold) {
  EXPECT_NE(
      refusal("GET / HTTP/1.1\r\nHost: a.example\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n"),
      "");
  std::string many = "GET / HTTP/1.1\r\nHost: a.example\r\n";
  for (int i = 0; i < 200; ++i)
    many += "A: b\r\n";
  EXPECT_NE(refusal(many + "\r\n"), "");
  EXPECT_FALSE(head_length(std::string(65'536, 'a')));
  EXPECT_EQ(head_length("GET / HTTP/1.1\r\nHost: a").value(), 0U);
}

TEST(RequestHead, WebSocketsKeepTheirUpgrade) {
  auto const head = parse(
      "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: "
      "WebSocket\r\nSec-WebSocket-Key: k\r\n\r\n");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->upgrade, "websocket");
  EXPECT_NE(serialise(*head).find("Connection: Upgrade\r\nUpgrade: websocket\r\n"),
            std::string::npos);
}

base::Result<ResponseHead> response(std::string const& head, std::string_view method = "GET") {
  return parse_response_head(head, method);
}

TEST(ResponseHead, KnowsWhetherABodyFollows) {
  EXPECT_EQ(response("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")->body.length, 3U);
  EXPECT_EQ(response("HTTP/1.1 200 OK\r\n\r\n")->body.kind, Framing::Kind::until_close);
  EXPECT_FALSE(response("HTTP/1.1 200 OK\r\n\r\n")->keep_alive);
  EXPECT_EQ(response("HTTP/1.1 204 No Content\r\n\r\n")->body.kind, Framing::Kind::none);
  EXPECT_EQ(response("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n")->body.kind,
            Framing::Kind::none);
  EXPECT_EQ(response("HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n")->body.kind,
            Framing::Kind::chunked);
}

TEST(ResponseHead, RefusesMalformedOnes) {
  for (auto const* head :
       {"HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 200OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 999 X\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\n X: y\r\n\r\n"}) {
    EXPECT_FALSE(response(head)) << head;
  }
}

std::string decode(Framing framing,
                   std::string_view bytes,
                   std::size_t step,
                   std::string* error = nullptr,
                   std::size_t* left = nullptr) {
  BodyDecoder decoder(framing);
  std::string out;
  while (!bytes.empty() && !decoder.done()) {
    auto used = decoder.decode(bytes.substr(0, step), out);
    if (!used) {
      if (error) *error = used.error().message();
      return out;
    }
    bytes.remove_prefix(*used);
  }
  if (left) *left = bytes.size();
  if (auto ended = decoder.end_of_stream(); !ended && error) *error = ended.error().message();
  return out;
}

TEST(BodyDecoder, TakesChunksApartAtEveryBoundary) {
  std::string const body =
      "5;ext=\"x\"\r\nhello\r\n00000006\r\n world\r\n0\r\nTrailer: no\r\n\r\nNEXT";
  for (std::size_t step = 1; step < body.size(); ++step) {
    std::string error;
    std::size_t left = 0;
    EXPECT_EQ(decode({Framing::Kind::chunked, 0}, body, step, &error, &left), "hello world")
        << step;
    EXPECT_EQ(error, "");
    EXPECT_EQ(left, 4U);
  }
}

TEST(BodyDecoder, RefusesBadChunks) {
  for (auto const* body : {"5\nhello\r\n0\r\n\r\n",
                           "5\r\nhelloX\r\n0\r\n\r\n",
                           "-5\r\nhello",
                           "0x5\r\nhello",
                           "123456789\r\n",
                           "g\r\n",
                           "\r\n",
                           "5\r\nhel"}) {
    std::string error;
    decode({Framing::Kind::chunked, 0}, body, 100, &error);
    EXPECT_NE(error, "") << body;
  }
}

TEST(BodyDecoder, StopsAtTheLength) {
  std::size_t left = 0;
  EXPECT_EQ(decode({Framing::Kind::length, 3}, "abcdef", 2, nullptr, &left), "abc");
  EXPECT_EQ(left, 3U);
  std::string error;
  decode({Framing::Kind::length, 9}, "abc", 2, &error);
  EXPECT_EQ(error, "the body ended early");
}

TEST(Chunks, AreEncoded) {
  EXPECT_EQ(encode_chunk("hello"), "5\r\nhello\r\n");
  EXPECT_EQ(encode_chunk(""), "0\r\n\r\n");
}

}  // namespace
}  // namespace gateway
