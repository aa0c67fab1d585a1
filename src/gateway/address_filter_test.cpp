#include "gateway/address_filter.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

Address address(std::string const& text) {
  AddressFilter::Network network{};
  EXPECT_TRUE(parse_network(text, network)) << text;
  return network.base;
}

TEST(AddressFilter, RefusesEverythingThatIsNotTheOpenInternet) {
  AddressFilter const filter;
  for (auto const* text : {"0.0.0.0",
                           "10.1.2.3",
                           "100.64.0.1",
                           "127.0.0.1",
                           "169.254.169.254",
                           "169.254.170.2",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.0.0.192",
                           "192.168.1.1",
                           "198.18.0.1",
                           "224.0.0.251",
                           "239.255.255.250",
                           "240.0.0.1",
                           "255.255.255.255",
                           "168.63.129.16",
                           "100.100.100.200",
                           "::",
                           "::1",
                           "::ffff:127.0.0.1",
                           "::127.0.0.1",
                           "64:ff9b::a9fe:a9fe",
                           "64:ff9b:1::1",
                           "2002:7f00:1::1",
                           "2002:a9fe:a9fe::1",
                           "2001:0:53aa:64c:0:0:5601:5601",
                           "fc00::1",
                           "fd00:ec2::254",
                           "fe80::1",
                           "fec0::1",
                           "ff02::1",
                           "2001:db8::1"}) {
    EXPECT_FALSE(filter.allows(address(text))) << text;
  }
}

TEST(AddressFilter, AllowsPublicAddresses) {
  AddressFilter const filter;
  for (auto const* text : {"1.1.1.1",
                           "8.8.8.8",
                           "172.15.255.255",
                           "172.32.0.1",
                           "100.128.0.1",
                           "2606:4700::1111",
                           "64:ff9b::808:808",
                           "2002:808:808::1"}) {
    EXPECT_TRUE(filter.allows(address(text))) << text;
  }
}

TEST(AddressFilter, RefusesTheHostsOwnAddressesAlsoWrapped) {
  AddressFilter::Network own{};
  ASSERT_TRUE(parse_network("8.8.4.4", own));
  AddressFilter const filter({own});
  EXPECT_FALSE(filter.allows(address("8.8.4.4")));
  EXPECT_FALSE(filter.allows(address("64:ff9b::808:404")));
  EXPECT_TRUE(filter.allows(address("8.8.4.5")));
}

TEST(AddressFilter, AnOperatorsRouteWins) {
  AddressFilter::Network route{};
  ASSERT_TRUE(parse_network("10.9.0.0/16", route));
  AddressFilter const filter({}, {route});
  EXPECT_TRUE(filter.allows(address("10.9.1.1")));
  EXPECT_FALSE(filter.allows(address("10.8.1.1")));
}

TEST(Network, RefusesNonsense) {
  AddressFilter::Network network{};
  for (auto const* text : {"", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/", "a.example"})
    EXPECT_FALSE(parse_network(text, network)) << text;
}

TEST(AddressFilter, RefusesTheHostsOwnAddressesUnlessAnOperatorAdmitsThem) {
  auto const networks = [](std::vector<std::string> const& texts) {
    std::vector<AddressFilter::Network> out;
    for (auto const& text : texts)
      EXPECT_TRUE(parse_network(text, out.emplace_back())) << text;
    return out;
  };
  AddressFilter const filter(networks({"5.6.7.1", "2600::1"}), networks({"5.6.7.9"}));
  EXPECT_FALSE(filter.allows(address("5.6.7.1")));
  EXPECT_FALSE(filter.allows(address("2600::1")));
  EXPECT_FALSE(filter.allows(address("64:ff9b::506:701"))) << "the same behind NAT64";
  EXPECT_TRUE(filter.allows(address("5.6.7.2")));
  AddressFilter const admitting(networks({"5.6.7.1"}), networks({"5.6.7.0/24"}));
  EXPECT_TRUE(admitting.allows(address("5.6.7.1")));
}

}  // namespace
}  // namespace gateway
