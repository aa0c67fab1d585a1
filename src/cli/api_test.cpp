#include "cli/api.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

TEST(ApiAddress, IsReadFromUrls) {
  auto plain = parse_address("http://127.0.0.1:7380", "");
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->tls);
  EXPECT_EQ(plain->host, "127.0.0.1");
  EXPECT_EQ(plain->port, 7380);
  auto secure = parse_address("https://api.space.localhost/", "ca.pem");
  ASSERT_TRUE(secure);
  EXPECT_TRUE(secure->tls);
  EXPECT_EQ(secure->port, 443);
  auto six = parse_address("http://[::1]:80", "");
  ASSERT_TRUE(six);
  EXPECT_EQ(six->host, "::1");
}

TEST(ApiAddress, RefusesWhatIsNone) {
  for (char const* bad : {"",
                          "127.0.0.1:80",
                          "ftp://x",
                          "http://",
                          "http://x:0",
                          "http://x:99999",
                          "http://x:8a",
                          "http://x/v1",
                          "http://u@x",
                          "http://[]"}) {
    EXPECT_FALSE(parse_address(bad, "")) << bad;
  }
}

TEST(ErrorOf, KeepsTheServersCodeAndSentence) {
  auto error =
      error_of(404, R"({"code":"not_found","message":"there is no sandbox i1","request_id":"r"})");
  EXPECT_EQ(error.code(), base::Code::not_found);
  EXPECT_EQ(error.message(), "there is no sandbox i1");
  EXPECT_EQ(error_of(429, R"({"code":429,"message":"slower"})").code(), base::Code::exhausted);
}

TEST(ErrorOf, AnAnswerThatIsNoJsonStillSaysSomething) {
  auto error = error_of(502, "<html>");
  EXPECT_EQ(error.code(), base::Code::unavailable);
  EXPECT_EQ(error.message(), "the API answered 502 Bad Gateway");
}

TEST(EventParser, PutsEventsTogetherHoweverTheyArrive) {
  std::string const text =
      "id: 7\nevent: stdout\ndata: a\ndata: b\n\n: keepalive\n\nid:8\r\ndata:{}\r\n\r\nevent: "
      "lost\n\ndata: tail";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    EventParser parser;
    std::vector<ServerEvent> events;
    for (std::size_t at = 0; at < text.size(); at += size)
      ASSERT_TRUE(parser.feed(std::string_view(text).substr(at, size), events));
    ASSERT_EQ(events.size(), 2U);
    EXPECT_EQ(events[0].id, "7");
    EXPECT_EQ(events[0].type, "stdout");
    EXPECT_EQ(events[0].data, "a\nb");
    EXPECT_EQ(events[1].id, "8");
    EXPECT_EQ(events[1].type, "");
    EXPECT_EQ(events[1].data, "{}");
  }
}

TEST(EventParser, AnEndlessLineBreaksTheStream) {
  EventParser parser;
  std::vector<ServerEvent> events;
  EXPECT_FALSE(parser.feed(std::string(5U << 20, 'x'), events));
}

}  // namespace
}  // namespace cli
