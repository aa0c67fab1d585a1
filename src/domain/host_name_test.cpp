#include "domain/host_name.hpp"

#include <gtest/gtest.h>

namespace domain {
namespace {

TEST(HostName, FoldsCaseAndOneTrailingDot) {
  EXPECT_EQ(HostName::parse("aLLoWeD.eXaMPle.")->str(), "allowed.example");
  EXPECT_EQ(HostName::parse("_dmarc.a-b.example")->str(), "_dmarc.a-b.example");
  EXPECT_EQ(HostName::parse("localhost")->str(), "localhost");
}

TEST(HostName, RefusesWhatCouldBeReadDifferentlyElsewhere) {
  std::string const nul("a\0.example", 10);
  for (std::string_view bad : {"",
                               ".",
                               "a..example",
                               ".a.example",
                               "a.example..",
                               "127.0.0.1",
                               "127.1",
                               "0x7f.1",
                               "2130706433",
                               "0177.0.0.1",
                               "1.2.3",
                               "169.254.169.254.",
                               "a.example.0x7f",
                               "a b.example",
                               "a/b",
                               "a@b.example",
                               "a.example:443",
                               "[::1]",
                               "xn--\xc3\xa9.example",
                               "a\r\n.example",
                               "\xff.example",
                               "a%2e.example"}) {
    EXPECT_FALSE(HostName::parse(bad)) << bad;
  }
  EXPECT_FALSE(HostName::parse(nul));
  EXPECT_FALSE(HostName::parse(std::string(64, 'a') + ".example"));
  EXPECT_TRUE(HostName::parse(std::string(63, 'a') + ".example"));
  EXPECT_FALSE(HostName::parse(std::string(250, 'a') + ".exa"));
}

TEST(HostName, BelowMeansWholeLabels) {
  auto const name = HostName::parse("a.b.example").value();
  EXPECT_TRUE(name.is_below("b.example"));
  EXPECT_TRUE(name.is_below("example"));
  EXPECT_FALSE(name.is_below("a.b.example"));
  EXPECT_FALSE(HostName::parse("evilb.example")->is_below("b.example"));
}

TEST(Authority, TakesThePortOrTheDefault) {
  EXPECT_EQ(parse_authority("A.example:8443", 443)->port, 8443);
  EXPECT_EQ(parse_authority("a.example", 443)->port, 443);
  for (std::string_view bad : {"a.example:",
                               "a.example:0",
                               "a.example:080",
                               "a.example:+80",
                               "a.example:65536",
                               "a.example:80:80",
                               "user@a.example",
                               "a.example:8 0",
                               ":443"}) {
    EXPECT_FALSE(parse_authority(bad, 443)) << bad;
  }
}

}  // namespace
}  // namespace domain
