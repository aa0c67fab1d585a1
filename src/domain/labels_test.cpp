#include "domain/labels.hpp"

#include <gtest/gtest.h>

namespace domain {
namespace {

TEST(MetadataFilter, TheCapturedVectorOfTheClientIsUndone) {
  // {"k 1": "v&="} arrives raw as metadata=k%2525201%3Dv%252526%25253D; the query's own decoding
  // has taken one layer off before we see it.
  auto const filter = parse_metadata_filter("k%25201=v%2526%253D");
  ASSERT_TRUE(filter) << filter.error().message();
  EXPECT_EQ(*filter, (Labels{{"k 1", "v&="}}));
}

TEST(MetadataFilter, SeveralPairsAndPlainOnes) {
  EXPECT_EQ(parse_metadata_filter("a=1&b=2").value(), (Labels{{"a", "1"}, {"b", "2"}}));
  EXPECT_EQ(parse_metadata_filter("a=").value(), (Labels{{"a", ""}}));
  EXPECT_EQ(parse_metadata_filter("a=b=c").value(), (Labels{{"a", "b=c"}}));
  EXPECT_EQ(parse_metadata_filter("a+b=c+d").value(), (Labels{{"a b", "c d"}}));
  EXPECT_TRUE(parse_metadata_filter("").value().empty());
}

TEST(MetadataFilter, AMalformedFilterIsRefusedAndNeverMatchesAll) {
  for (auto const* text : {"a",
                           "&",
                           "a=1&",
                           "&a=1",
                           "=1",
                           "a=%",
                           "a=%2",
                           "a=%zz",
                           "a=%25zz",
                           "a=%00",
                           "a=%25ff",
                           "a=1&b"}) {
    auto const refused = parse_metadata_filter(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code(), base::Code::invalid_argument);
  }
}

TEST(MetadataFilter, AllPairsMustMatchExactly) {
  Labels const metadata{{"a", "1"}, {"b", "2"}};
  EXPECT_TRUE(matches({}, metadata));
  EXPECT_TRUE(matches({{"a", "1"}}, metadata));
  EXPECT_TRUE(matches(metadata, metadata));
  EXPECT_FALSE(matches({{"a", "1"}, {"c", "3"}}, metadata));
  EXPECT_FALSE(matches({{"a", "10"}}, metadata));
  EXPECT_FALSE(matches({{"A", "1"}}, metadata));
}

TEST(Metadata, LimitsAreKept) {
  EXPECT_TRUE(check_metadata({}));
  EXPECT_TRUE(check_metadata({{"purpose", "täst"}}));
  EXPECT_TRUE(check_metadata({{std::string(256, 'k'), std::string(4096, 'v')}}));
  EXPECT_FALSE(check_metadata({{std::string(257, 'k'), "v"}}));
  EXPECT_FALSE(check_metadata({{"k", std::string(4097, 'v')}}));
  EXPECT_FALSE(check_metadata({{"", "v"}}));
  EXPECT_FALSE(check_metadata({{"k", std::string("a\0b", 3)}}));
  EXPECT_FALSE(check_metadata({{"k", "\xff"}}));
  Labels many;
  for (int i = 0; i < 65; ++i)
    many.emplace(std::to_string(i), "v");
  EXPECT_FALSE(check_metadata(many));
  many.erase("0");
  EXPECT_TRUE(check_metadata(many));
}

TEST(Environment, NamesAndSizesAreChecked) {
  EXPECT_TRUE(check_environment({{"PATH", "/bin"}, {"EMPTY", ""}, {"x y", "a=b"}}));
  EXPECT_FALSE(check_environment({{"", "v"}}));
  EXPECT_FALSE(check_environment({{"a=b", "v"}}));
  EXPECT_FALSE(check_environment({{"a", std::string("\0", 1)}}));
  EXPECT_FALSE(check_environment({{std::string("a\0", 2), "v"}}));
  EXPECT_TRUE(check_environment({{"a", std::string(65'000, 'v')}}));
  EXPECT_FALSE(check_environment({{"a", std::string(65'536, 'v')}}));
}

TEST(Utf8, OverlongSurrogatesAndCutSequencesAreNone) {
  for (auto const* text : {"", "abc", "ä", "€", "😀", "\x7f"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (auto const* text : {"\x80",
                           "\xc0\x80",
                           "\xc3",
                           "\xe2\x82",
                           "\xe0\x80\x80",
                           "\xed\xa0\x80",
                           "\xf0\x80\x80\x80",
                           "\xf4\x90\x80\x80",
                           "\xf5\x80\x80\x80",
                           "\xff"}) {
    EXPECT_FALSE(is_utf8(text));
  }
}

}  // namespace
}  // namespace domain
