#include "gateway/dialer.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

Address address(std::string const& text) {
  AddressFilter::Network network{};
  EXPECT_TRUE(parse_network(text, network)) << text;
  return network.base;
}

TEST(Dialer, ANameThatHasIpv6AloneIsRefusedWithTheReason) {
  base::Error const last(base::Code::unavailable, "Network is unreachable");
  auto const why = [&](std::vector<Address> const& tried) {
    return why_not_reached(tried, last).message();
  };
  EXPECT_NE(why({address("2001:db8::1"), address("2001:db8::2")}).find("IPv6 addresses alone"),
            std::string::npos);
  EXPECT_EQ(why({address("192.0.2.1"), address("2001:db8::2")}), last.message());
  EXPECT_EQ(why({address("192.0.2.1")}), last.message());
  EXPECT_EQ(why_not_reached({address("2001:db8::1")}, last).code(), base::Code::unavailable);
}

}  // namespace
}  // namespace gateway
