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
