#include "agent/gzip.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace agent {
namespace {

std::string packed(std::string_view text, std::size_t step = 1000) {
  GzipEncoder encoder;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += step)
    encoder.add(text.substr(at, step), GzipEncoder::Last::no, out);
  encoder.add("", GzipEncoder::Last::yes, out);
  return out;
}

/// Decodes in pieces of `step` bytes; "error" for what is no whole gzip stream.
std::string unpacked(std::string_view bytes, std::size_t step, std::size_t most = 64) {
  GzipDecoder decoder;
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    auto piece = bytes.substr(at, step);
    for (;;) {
      auto const before = out.size();
      if (!decoder.take(piece, most, out)) return "error";
      EXPECT_LE(out.size() - before, most);
      if (piece.empty() && out.size() - before < most) break;
    }
  }
  return decoder.complete() ? out : "error";
}

TEST(Gzip, RoundTripsInStepsOfAnySize) {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += std::to_string(i * 7919);
  auto const bytes = packed(text);
  EXPECT_LT(bytes.size(), text.size());
  for (std::size_t const step : {std::size_t(1), std::size_t(7), std::size_t(4096), bytes.size()})
    EXPECT_EQ(unpacked(bytes, step), text) << step;
  EXPECT_EQ(unpacked(packed(""), 1), "");
}

TEST(Gzip, SeveralMembersAreOneStream) {
  EXPECT_EQ(unpacked(packed("one ") + packed("two"), 3), "one two");
}

TEST(Gzip, ABombComesOutInBoundedSteps) {
  auto const bomb = packed(std::string(8U << 20, 'a'), 1U << 20);
  EXPECT_LT(bomb.size(), 64U * 1024);
  EXPECT_EQ(unpacked(bomb, bomb.size(), 4096).size(), 8U << 20);
}

TEST(Gzip, BrokenStreamsAreRefused) {
  auto const bytes = packed("some text that is long enough to be cut");
  EXPECT_EQ(unpacked(bytes.substr(0, bytes.size() - 1), 5), "error");  // too short
  EXPECT_EQ(unpacked("", 1), "error");                                 // nothing is no gzip
  EXPECT_EQ(unpacked("plain text", 4), "error");
  auto flipped = bytes;
  flipped[flipped.size() - 6] =
      static_cast<char>(flipped[flipped.size() - 6] ^ 1);  // in the checksum
  EXPECT_EQ(unpacked(flipped, 5), "error");
}

}  // namespace
}  // namespace agent
