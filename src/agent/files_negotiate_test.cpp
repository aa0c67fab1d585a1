#include "agent/files_negotiate.hpp"

#include <gtest/gtest.h>

namespace agent {
namespace {

TEST(AcceptedEncodings, FollowTheHeader) {
  auto const nothing = accepted_encodings(std::nullopt);
  EXPECT_TRUE(nothing.identity && !nothing.gzip);
  auto const usual = accepted_encodings("gzip, deflate");
  EXPECT_TRUE(usual.identity && usual.gzip && !usual.only_gzip);
  EXPECT_TRUE(accepted_encodings("GZip").only_gzip);
  EXPECT_FALSE(accepted_encodings("gzip;q=0").gzip);
  EXPECT_FALSE(accepted_encodings("gzip; q=0.000, deflate").gzip);
  EXPECT_TRUE(accepted_encodings("gzip;q=0.001").gzip);
  EXPECT_TRUE(accepted_encodings("*").gzip);
  auto const insistent = accepted_encodings("gzip, identity;q=0");
  EXPECT_TRUE(insistent.gzip && !insistent.identity);
  auto const impossible = accepted_encodings("br, *;q=0");
  EXPECT_TRUE(!impossible.gzip && !impossible.identity);
  EXPECT_TRUE(accepted_encodings("br").identity);
  EXPECT_TRUE(accepted_encodings("").identity);
}

TEST(Ranges, OneRangeIsServed) {
  auto const part = [](char const* header, std::uint64_t size) {
    auto const answer = range_of(header, size);
    return answer.kind == RangeKind::part
               ? fmt::format("{}+{}", answer.range.first, answer.range.count)
               : std::string(answer.kind == RangeKind::whole ? "whole" : "unsatisfiable");
  };
  EXPECT_EQ(part("bytes=0-0", 10), "0+1");
  EXPECT_EQ(part("bytes=2-4", 10), "2+3");
  EXPECT_EQ(part("bytes=2-", 10), "2+8");
  EXPECT_EQ(part("bytes=2-99", 10), "2+8");
  EXPECT_EQ(part("bytes=-3", 10), "7+3");
  EXPECT_EQ(part("bytes=-99", 10), "0+10");
  EXPECT_EQ(part("Bytes = 1 - 2", 10), "1+2");
  EXPECT_EQ(part("bytes=10-", 10), "unsatisfiable");
  EXPECT_EQ(part("bytes=0-", 0), "unsatisfiable");
  EXPECT_EQ(part("bytes=-0", 10), "unsatisfiable");
  for (auto const* header : {"bytes=",
                             "bytes=-",
                             "bytes=4-2",
                             "bytes=a-b",
                             "bytes=1-2,4-5",
                             "lines=1-2",
                             "bytes=--1",
                             "bytes=1",
                             "bytes=99999999999999999999-",
                             ""})
    EXPECT_EQ(part(header, 10), "whole") << header;
}

TEST(ContentTypes, AreGuessedAndTextIsAlwaysUtf8) {
  EXPECT_EQ(content_type_of("/a/B.PNG", ""), "image/png");
  EXPECT_EQ(content_type_of("/a/notes.txt", "\xff\xfe"), "text/plain; charset=utf-8");
  EXPECT_EQ(content_type_of("/a/README", "hello ü\n"), "text/plain; charset=utf-8");
  EXPECT_EQ(content_type_of("/a/.txt", ""), "application/octet-stream");
  EXPECT_EQ(content_type_of("/a/x", std::string_view("\0\1", 2)), "application/octet-stream");
  EXPECT_EQ(content_type_of("/a/latin1", "caf\xe9 au lait"), "application/octet-stream");
  EXPECT_EQ(content_type_of("/a/cut", std::string(511, 'a') + "\xC3"), "text/plain; charset=utf-8");
  EXPECT_EQ(content_type_of("/a/dir.d/empty", ""), "application/octet-stream");
}

TEST(Disposition, HoldsAnyName) {
  EXPECT_EQ(inline_disposition("a.txt"), "inline; filename=a.txt");
  EXPECT_EQ(inline_disposition("a b\"c\\.txt"), R"(inline; filename="a b\"c\\.txt")");
  EXPECT_EQ(inline_disposition("ü \r\n.txt"), "inline; filename*=utf-8''%C3%BC%20%0D%0A.txt");
}

TEST(HttpDate, IsTheFixedForm) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(-5), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(http_date(INT64_MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
}

}  // namespace
}  // namespace agent
