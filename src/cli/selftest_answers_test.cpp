#include "cli/selftest_answers.hpp"

#include "cli/selftest_catalogue.hpp"

#include <gtest/gtest.h>

namespace cli::selftest {
namespace {

TEST(SelftestAnswers, ARequestIsTakenWithItsBody) {
  std::string received =
      "GET /one HTTP/1.1\r\nhost: a.example\r\n\r\nPOST /two?x HTTP/1.1\r\nContent-Length: "
      "3\r\n\r\nab";
  auto const one = take_request(received);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->path, "/one");
  EXPECT_EQ(field_of(*one, "host"), "a.example");
  EXPECT_EQ(field_of(*one, "content-length"), "");
  EXPECT_FALSE(take_request(received));  // its body is not whole
  received += "cPOST /three HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n";
  EXPECT_EQ(take_request(received)->path, "/two?x");
  EXPECT_FALSE(take_request(received));
  received += "0\r\n\r\nGET /four HTTP/1.1\r\n\r\n";
  EXPECT_EQ(take_request(received)->path, "/three");
  EXPECT_EQ(take_request(received)->path, "/four");
  EXPECT_EQ(received, "");
}

TEST(SelftestAnswers, HostileOnesByName) {
  auto const answer = answer_to({"/two_lengths/tk1", "GET /two_lengths/tk1 HTTP/1.1\r\n"});
  EXPECT_TRUE(answer.text.contains("Content-Length: 5\r\nContent-Length: 6"));
  EXPECT_TRUE(answer.last);
  EXPECT_FALSE(hostile_answer("one_too_many")->last);
  EXPECT_TRUE(hostile_answer("nul")->text.contains(std::string_view("a\0b", 3)));
  EXPECT_GT(hostile_answer("huge_head")->text.size(), 200'000U);
  EXPECT_FALSE(hostile_answer("well"));
  EXPECT_TRUE(answer_to({"/well/tk1", ""}).text.ends_with("\r\n\r\nhello\n"));
}

TEST(SelftestAnswers, ACredentialComesBackInPieces) {
  auto const head = fmt::format("GET / HTTP/1.1\r\nX-Api-Key: {}\r\n", planted_credential);
  auto const raw = answer_to({"/v1/reflect/raw", head}).text;
  EXPECT_TRUE(raw.contains(fmt::format("X-Echo: {}\r\n", planted_credential)));
  EXPECT_TRUE(raw.contains("\r\n\r\n7\r\n[plante\r\nd\r\nd-credential-\r\n"));
  EXPECT_TRUE(raw.ends_with("0\r\n\r\n"));
  EXPECT_TRUE(answer_to({"/v1/reflect/raw", "GET / HTTP/1.1\r\n"}).text.contains("[none]"));
}

TEST(SelftestAnswers, EncodingsAreThoseThatTheCatalogueLooksFor) {
  EXPECT_EQ(encoded_as("hex", planted_credential),
            "706c616e7465642d63726564656e7469616c2d30313233343536373839");
  EXPECT_EQ(encoded_as("hex_upper", planted_credential),
            "706C616E7465642D63726564656E7469616C2D30313233343536373839");
  EXPECT_TRUE(encoded_as("base64", planted_credential)
                  ->starts_with("cGxhbnRlZC1jcmVkZW50aWFsLTAxMjM0NTY3ODk"));
  EXPECT_TRUE(encoded_as("base64_1", planted_credential)
                  ->contains("BsYW50ZWQtY3JlZGVudGlhbC0wMTIzNDU2Nzg5"));
  EXPECT_TRUE(encoded_as("base64_2", planted_credential)
                  ->contains("wbGFudGVkLWNyZWRlbnRpYWwtMDEyMzQ1Njc4"));
  EXPECT_TRUE(encoded_as("percent", planted_credential)->starts_with("%70%6C%61%6E%74%65%64"));
  EXPECT_EQ(encoded_as("base64url", "\xff\xfe\xfd"), "__79");
  EXPECT_EQ(encoded_as("json", "a"), "\"a\"");
  EXPECT_FALSE(encoded_as("rot13", "a"));
  EXPECT_TRUE(catalogue_text().contains(planted_credential));
}

}  // namespace
}  // namespace cli::selftest
