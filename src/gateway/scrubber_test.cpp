#include "gateway/scrubber.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

constexpr std::string_view secret = "sk-\"live/0123456789+abc";

TEST(Scrubber, FindsTheEncodingsOfEchoEndpoints) {
  for (std::string const& echo : {
           std::string(secret),
           std::string("sk-%22live%2F0123456789%2Babc"),
           std::string("sk-%22live%2f0123456789%2babc"),
           std::string("sk-\\\"live\\/0123456789+abc"),
           std::string("%73%6b%2d%22%6c%69%76%65%2f%30%31%32%33%34%35%36%37%38%39%2b%61%62%63"),
           std::string("736b2d226c6976652f303132333435363738392b616263"),
           std::string("736B2D226C6976652F303132333435363738392B616263"),
           std::string("c2stImxpdmUvMDEyMzQ1Njc4OSthYmM"),     // base64 of the value
           std::string("eHNrLSJsaXZlLzAxMjM0NTY3ODkrYWJj"),    // … after one byte
           std::string("eHlzay0ibGl2ZS8wMTIzNDU2Nzg5K2FiYw"),  // … after two
       }) {
    Scrubber scrubber(secret);
    auto const text = scrubber.scrub("before " + echo + " after");
    EXPECT_GE(scrubber.hits(), 1U) << echo;
    EXPECT_EQ(text.size(), echo.size() + 13);
    EXPECT_EQ(text.find("0123456789"), std::string::npos) << text;
  }
}

TEST(Scrubber, FindsItSplitAtEveryPlace) {
  auto const text = "head " + std::string(secret) + " tail " + std::string(200, 'x');
  for (std::size_t step = 1; step < 40; ++step) {
    Scrubber scrubber(secret);
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += step)
      out += scrubber.pass(std::string_view(text).substr(at, step));
    out += scrubber.finish();
    EXPECT_EQ(out.size(), text.size());
    EXPECT_EQ(out.find("live"), std::string::npos) << step;
    EXPECT_EQ(scrubber.hits(), 1U);
  }
}

TEST(Scrubber, HoldsBackOnlyWhatMayBeABeginning) {
  Scrubber scrubber(secret);
  EXPECT_EQ(scrubber.pass("data: one\n\n"), "data: one\n\n");
  EXPECT_EQ(scrubber.pass("data: sk-\"li"), "data: ");
  EXPECT_EQ(scrubber.pass("ne\n\n"), "sk-\"line\n\n");
  EXPECT_EQ(scrubber.finish(), "");
  EXPECT_EQ(scrubber.hits(), 0U);
}

TEST(Scrubber, LooksForSeveralValues) {
  Scrubber scrubber({std::string(secret), "another-value"});
  EXPECT_EQ(scrubber.scrub("another-value"), std::string(13, '*'));
  EXPECT_EQ(scrubber.scrub(secret), std::string(secret.size(), '*'));
}

/// The end of a piece may be a whole secret and the beginning of another, or lie in two of them.
TEST(Scrubber, FindsTheLongerOfTwoWithOneBeginningAndTwoThatOverlapSplitAtEveryPlace) {
  std::string const text = "1 password1234 2 password1 3 password12 4 abcdefghabcdefgh 5 password1";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    Scrubber scrubber({"password1", "password1234", "abcdefgha"});
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += step)
      out += scrubber.pass(std::string_view(text).substr(at, step));
    out += scrubber.finish();
    EXPECT_EQ(out, "1 ************ 2 ********* 3 *********2 4 *********bcdefgh 5 *********")
        << step;
    EXPECT_EQ(scrubber.hits(), 5U) << step;
  }
  for (std::size_t split = 0; split < 17; ++split) {
    Scrubber scrubber("a1234567a");  // its end begins the next one
    std::string const twice = "a1234567a1234567a";
    auto out = scrubber.pass(std::string_view(twice).substr(0, split));
    out += scrubber.pass(std::string_view(twice).substr(split));
    EXPECT_EQ(out + scrubber.finish(), std::string(17, '*')) << split;
  }
}

TEST(Scrubber, SaysWhoseItWas) {
  Scrubber scrubber(std::vector<std::vector<std::string>>{
      {"password1"}, {"nothing-of-it"}, {"password1234", "another-value"}, {"another-value"}});
  EXPECT_EQ(scrubber.pass("password1") + scrubber.pass("234"), std::string(12, '*'));
  EXPECT_TRUE(scrubber.found(2));
  EXPECT_FALSE(scrubber.found(0)) << "it was the longer one";
  EXPECT_FALSE(scrubber.found(3));
  EXPECT_EQ(scrubber.scrub("another-value"), std::string(13, '*'));
  EXPECT_TRUE(scrubber.found(3)) << "of two with one value both";
  EXPECT_FALSE(scrubber.found(1));
}

TEST(Scrubber, KeepsNothingThatCannotBecomeMore) {
  Scrubber scrubber("password1");
  EXPECT_EQ(scrubber.pass("a password1"), "a *********") << "whole, and nothing can be added";
  EXPECT_EQ(scrubber.hits(), 1U);
}

TEST(Scrubber, LeavesOtherTextAlone) {
  Scrubber scrubber(secret);
  auto out = scrubber.pass("nothing to see");
  out += scrubber.finish();
  EXPECT_EQ(out, "nothing to see");
  Scrubber shorty("abc");
  EXPECT_EQ(shorty.pass("abc"), "abc");
}

}  // namespace
}  // namespace gateway
