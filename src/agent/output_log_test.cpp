#include "agent/output_log.hpp"

#include <gtest/gtest.h>

namespace agent {
namespace {

std::string all_from(OutputLog const& log, std::uint64_t offset) {
  std::string out;
  while (auto const piece = log.piece_at(offset, 10)) {
    EXPECT_EQ(piece->offset, offset);
    out += piece->bytes;
    offset += piece->bytes.size();
  }
  EXPECT_EQ(offset, log.end_offset());
  return out;
}

TEST(OutputLog, GivesBackWhatCameFromAnyOffset) {
  OutputLog log(10'000);
  log.append(OutputKind::standard_output, "hello ");
  log.append(OutputKind::standard_output, "big ");
  log.append(OutputKind::standard_error, "oops ");
  log.append(OutputKind::standard_output, "world");
  EXPECT_EQ(all_from(log, 0), "hello big oops world");
  EXPECT_EQ(all_from(log, 8), "g oops world");
  EXPECT_EQ(log.piece_at(10, 99)->kind, OutputKind::standard_error);
  EXPECT_EQ(log.piece_at(10, 99)->bytes, "oops ");
  EXPECT_FALSE(log.piece_at(20, 99));
}

TEST(OutputLog, IsBoundedHoweverItIsFilled) {
  for (std::size_t const piece : {1UL, 7UL, 1000UL, 40'000UL, 500'000UL}) {
    OutputLog log(256 * 1024);
    std::uint64_t written = 0;
    for (int i = 0; written < 2'000'000; ++i) {
      // Alternating streams cannot be merged: the worst case.
      log.append(i % 2 ? OutputKind::standard_error : OutputKind::standard_output,
                 std::string(piece, 'x'));
      written += piece;
      ASSERT_LE(log.cost(), 256U * 1024 + 200);
    }
    EXPECT_EQ(log.end_offset(), written);
    EXPECT_EQ(all_from(log, log.begin_offset()).size(), written - log.begin_offset());
  }
}

TEST(OutputLog, KnowsWhetherAReaderWouldLoseBytes) {
  OutputLog log(100'000);
  EXPECT_TRUE(log.keeps(0, 32'768));
  std::uint64_t reader = 0;
  for (int i = 0; i < 100; ++i) {
    while (!log.keeps(reader, 20'000)) {
      auto const piece = log.piece_at(reader, 4'000);
      ASSERT_TRUE(piece) << "a reader at the end holds nobody back";
      reader += piece->bytes.size();
    }
    log.append(OutputKind::standard_output, std::string(20'000, 'x'));
    ASSERT_LE(log.begin_offset(), reader) << "what it promised to keep is gone";
  }
}

TEST(OutputLog, ClearForgetsTheBytesAndNotTheirNumber) {
  OutputLog log(1000);
  log.append(OutputKind::terminal, "abc");
  log.clear();
  EXPECT_EQ(log.end_offset(), 3U);
  EXPECT_EQ(log.begin_offset(), 3U);
  EXPECT_EQ(log.cost(), 0U);
}

TEST(IncompleteTail, CountsTheBytesOfACutCharacter) {
  std::pair<std::string_view, std::size_t> const cases[] = {
      {"", 0},
      {"a", 0},
      {"\xc3", 1},
      {"\xc3\xa9", 0},
      {"x\xe2\x82", 2},
      {"\xe2\x82\xac", 0},
      {"\xf0\x9f\x98", 3},
      {"\xf0\x9f\x98\x80", 0},
      {"\x80\x80\x80\x80", 0},
      {"\xc3\xa9\x80", 0},
  };
  for (auto const& [text, expected] : cases)
    EXPECT_EQ(incomplete_tail(text), expected) << text;
}

}  // namespace
}  // namespace agent
