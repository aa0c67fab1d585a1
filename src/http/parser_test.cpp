#include "http/parser.hpp"

#include <gtest/gtest.h>

namespace http {
namespace {

/// The whole path of a request's head; what went wrong, or "".
std::string problem_of(std::string_view text) {
  HeadScanner scanner;
  auto const length = scanner.scan(text);
  if (!length) return length.error().message();
  if (*length == 0) return "incomplete";
  auto const parsed = parse_request_head(text.substr(0, *length));
  return parsed ? "" : parsed.error().message();
}

std::string with(std::string_view fields) {
  return fmt::format("POST /x HTTP/1.1\r\nHost: a\r\n{}\r\n", fields);
}

TEST(HeadScanner, FindsTheEndHoweverTheBytesArrive) {
  std::string const text = "GET / HTTP/1.1\r\nHost: a\r\n\r\nnext";
  for (std::size_t step = 1; step < text.size(); ++step) {
    HeadScanner scanner;
    std::size_t found = 0;
    for (std::size_t have = step; found == 0; have = std::min(have + step, text.size())) {
      auto const result = scanner.scan(std::string_view(text).substr(0, have));
      ASSERT_TRUE(result);
      found = *result;
    }
    EXPECT_EQ(found, text.size() - 4);
  }
}

TEST(RequestHead, KeepsTargetAndFieldsAsWritten) {
  auto const parsed = parse_request_head(
      "PATCH /a%2Fb//c?x=%20&y HTTP/1.1\r\nhOST: h\r\nX-A:  v \r\nX-A: w\r\nContent-Length: "
      "5\r\n\r\n");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->head.method, "PATCH");
  EXPECT_EQ(parsed->head.target, "/a%2Fb//c?x=%20&y");
  EXPECT_EQ(parsed->head.path(), "/a%2Fb//c");
  EXPECT_EQ(parsed->head.query(), "x=%20&y");
  EXPECT_EQ(parsed->head.headers.begin()->first, "hOST");
  EXPECT_EQ(parsed->head.headers.get("x-a"), "v");
  EXPECT_EQ(parsed->head.headers.count("x-a"), 2U);
  EXPECT_EQ(parsed->framing.length, 5U);
  EXPECT_TRUE(parsed->keep_alive);
}

TEST(RequestHead, RefusesEveryShapeOnWhichTwoReadersCouldDisagree) {
  EXPECT_EQ(problem_of(with("")), "");
  EXPECT_EQ(problem_of(with("Content-Length: 3\r\n")), "");
  EXPECT_EQ(problem_of(with("Transfer-Encoding: chunked\r\n")), "");
  for (std::string const fields : {
           "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
           "Content-Length: 3\r\nContent-Length: 3\r\n",
           "Content-Length: 3\r\nContent-Length: 4\r\n",
           "Content-Length: 3, 3\r\n",
           "Content-Length: +3\r\n",
           "Content-Length: -3\r\n",
           "Content-Length: 0x3\r\n",
           "Content-Length: 3 \r\n 4\r\n",
           "Content-Length:\r\n",
           "Content-Length: 18446744073709551616\r\n",
           "Content-Length: 9223372036854775808\r\n",
           "Content-Length : 3\r\n",
           " Content-Length: 3\r\n",
           "Transfer-Encoding: gzip, chunked\r\n",
           "Transfer-Encoding: chunked, chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: xchunked\r\n",
           "Transfer-Encoding: \"chunked\"\r\n",
           "Transfer-Encoding: identity\r\n",
           "Transfer-Encoding : chunked\r\n",
           "Transfer-Encoding:\x0b"
           "chunked\r\n",
           "X: a\r\n folded: b\r\n",
           "X: a\r\n\tfolded\r\n",
           "X: a\nY: b\r\n",
           "X: a\rY: b\r\n",
           "X\r\n",
           ": novalue\r\n",
           "X y: z\r\n",
           "X\x01: z\r\n",
           "Host: second\r\n",
           "Expect: something\r\n",
       }) {
    EXPECT_NE(problem_of(with(fields)), "") << fields;
    EXPECT_NE(problem_of(with(fields)), "incomplete") << fields;
  }
  EXPECT_NE(problem_of(with(std::string("X: a\0b\r\n", 8))), "");
  EXPECT_NE(problem_of(std::string("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 28)), "");
}

TEST(RequestHead, HasNoLimitOnTheBodysLength) {
  auto const request =
      parse_request_head("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000000000\r\n\r\n");
  EXPECT_EQ(request->framing.length, 900'000'000'000U);
  auto const response =
      parse_response_head("HTTP/1.1 200 OK\r\nContent-Length: 900000000000\r\n\r\n", "GET");
  EXPECT_EQ(response->framing.length, 900'000'000'000U);
}

TEST(RequestHead, RefusesBadRequestLines) {
  for (std::string const line : {
           "GET  / HTTP/1.1",
           "GET / HTTP/1.1 ",
           "GET /",
           "GET / HTTP/2.0",
           "GET / HTTP/0.9",
           "GET / http/1.1",
           "GET / HTTP/1.1x",
           " GET / HTTP/1.1",
           "G(T / HTTP/1.1",
           "GET http://other/ HTTP/1.1",
           "CONNECT a:1 HTTP/1.1",
           "GET x HTTP/1.1",
           "GET /a b HTTP/1.1",
           "",
           "HTTP/1.1 200 OK",
       }) {
    EXPECT_NE(problem_of(line + "\r\nHost: a\r\n\r\n"), "") << line;
  }
  EXPECT_NE(problem_of("GET / HTTP/1.1\r\n\r\n"), "");  // no Host
  EXPECT_EQ(problem_of("GET / HTTP/1.0\r\n\r\n"), "");
  EXPECT_NE(problem_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), "");
}

TEST(RequestHead, HasABoundOnTheNumberOfFields) {
  std::string fields;
  for (std::size_t i = 0; i < header_fields_max; ++i)
    fields += "a: b\r\n";
  auto const parsed = parse_request_head(with(fields));
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), base::Code::too_large);
}

TEST(RequestHead, KnowsWhenTheConnectionGoesOn) {
  auto const keeps = [](std::string_view text) { return parse_request_head(text)->keep_alive; };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST(ResponseHead, FindsHowTheBodyEnds) {
  auto const kind = [](std::string_view text, std::string_view method = "GET") {
    auto const parsed = parse_response_head(text, method);
    return parsed ? static_cast<int>(parsed->framing.kind) : -1;
  };
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), 1);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), 2);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\n\r\n"), 3);
  EXPECT_EQ(kind("HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"), 0);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HEAD"), 0);
  EXPECT_EQ(kind("HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n"), 0);
  EXPECT_EQ(kind("HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n"), 0);
  EXPECT_EQ(kind("HTTP/1.1 101 S\r\n\r\n"), 0);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"), -1);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 9\r\n\r\n"), -1);
  EXPECT_EQ(kind("HTTP/1.1 99 OK\r\n\r\n"), -1);
  EXPECT_EQ(kind("HTTP/1.1 700 OK\r\n\r\n"), -1);
  EXPECT_EQ(kind("GET / HTTP/1.1\r\n\r\n"), -1);
  EXPECT_TRUE(parse_response_head("HTTP/1.1 204 No\r\n\r\n", "GET")->keep_alive);
  EXPECT_FALSE(parse_response_head("HTTP/1.1 200 OK\r\n\r\n", "GET")->keep_alive);
}

/// Decodes with the given piece sizes; nothing when the bytes are refused or the end is not
/// reached.
std::optional<std::string> dechunk(std::string_view text,
                                   std::size_t in_step,
                                   std::size_t out_step,
                                   std::size_t* rest = nullptr) {
  ChunkDecoder decoder;
  std::string out;
  std::vector<char> room(out_step);
  while (!text.empty()) {
    auto const piece = text.substr(0, in_step);
    auto const step = decoder.decode(std::span<char const>(piece.data(), piece.size()), room);
    if (!step) return std::nullopt;
    out.append(room.data(), step->produced);
    text.remove_prefix(step->consumed);
    if (step->finished) {
      if (rest) *rest = text.size();
      return out;
    }
  }
  return std::nullopt;
}

TEST(ChunkDecoder, TakesTheCodingOffInAnyPieces) {
  std::string const text =
      "4\r\nWiki\r\n00A;name=\"v\"\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\nnext";
  for (std::size_t in_step = 1; in_step <= text.size(); ++in_step) {
    for (std::size_t const out_step : {1UL, 3UL, 100UL}) {
      std::size_t rest = 0;
      EXPECT_EQ(dechunk(text, in_step, out_step, &rest), "Wiki0123456789");
      EXPECT_EQ(rest, 4U);
    }
  }
  EXPECT_EQ(dechunk("0\r\n\r\n", 5, 5), "");
}

TEST(ChunkDecoder, RefusesAnythingButTheGrammar) {
  for (std::string const text : {
           "\r\n",
           "x\r\n",
           "-1\r\n",
           "+1\r\n",
           "0x1\r\n",
           " 1\r\na\r\n",
           "1 \r\na\r\n0\r\n\r\n",
           "1\na\n0\n\n",
           "1\r\nab\r\n0\r\n\r\n",
           "2\r\na\r\n0\r\n\r\n",
           "1\r\na0\r\n\r\n",
           "1\ra\r\n",
           "FFFFFFFFFFFFFFFF\r\n",
           "10000000000000000\r\n",
           "1;\x01\r\na\r\n",
           "1;a\n\r\na\r\n",
           "0\r\n: x\r\n\r\n",
           "0\r\nX: \x01\r\n\r\n",
           "0\r\nX: a\n\r\n",
           "0\r\n\rx",
           ";a\r\n",
       }) {
    EXPECT_EQ(dechunk(text, 1, 10), std::nullopt) << text;
    EXPECT_EQ(dechunk(text, text.size(), 10), std::nullopt) << text;
  }
}

TEST(ChunkDecoder, BoundsExtensionsAndTrailers) {
  EXPECT_TRUE(dechunk("1;" + std::string(1000, 'a') + "\r\nx\r\n0\r\n\r\n", 100, 10));
  EXPECT_FALSE(dechunk("1;" + std::string(20'000, 'a') + "\r\nx\r\n0\r\n\r\n", 100, 10));
  EXPECT_FALSE(dechunk("0\r\nX: " + std::string(20'000, 'a') + "\r\n\r\n", 100, 10));
  std::string many;
  for (int i = 0; i < 3000; ++i)
    many += "1;aaaaaaaa\r\nx\r\n";
  EXPECT_FALSE(dechunk(many + "0\r\n\r\n", 100, 10));
}

TEST(Message, DecodesAddressesAndQueries) {
  EXPECT_EQ(*percent_decode("/a%20b+c%C3%A9"), "/a b+c\xC3\xA9");
  EXPECT_FALSE(percent_decode("%"));
  EXPECT_FALSE(percent_decode("%4"));
  EXPECT_FALSE(percent_decode("%zz"));
  EXPECT_FALSE(percent_decode("a%00b"));
  EXPECT_EQ(*percent_decode("%41"), "A");
  EXPECT_EQ(percent_encode("/a b~\xC3\xA9"), "%2Fa%20b~%C3%A9");
  auto const query = parse_query("a=1&b=x+y%26&&c&a=2");
  ASSERT_TRUE(query);
  ASSERT_EQ(query->size(), 4U);
  EXPECT_EQ((*query)[1].second, "x y&");
  EXPECT_EQ((*query)[2].first, "c");
  EXPECT_FALSE(parse_query("a=%"));
}

TEST(Headers, AreFoundIgnoringCase) {
  Headers headers{{"A", "1"}, {"b", "2"}, {"a", "3"}};
  EXPECT_EQ(headers.get("a"), "1");
  headers.set("a", "4");
  EXPECT_EQ(headers.count("A"), 1U);
  EXPECT_EQ(headers.get("A"), "4");
  headers.remove("B");
  EXPECT_FALSE(headers.find("b"));
  headers.set("new", "5");
  EXPECT_EQ(headers.get("New"), "5");
}

}  // namespace
}  // namespace http
