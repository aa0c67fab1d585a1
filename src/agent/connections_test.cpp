#include "agent/connections.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <initializer_list>

#include <gtest/gtest.h>

namespace agent {
namespace {

PeerAddress address(std::initializer_list<std::uint8_t> bytes) {
  PeerAddress out{};
  std::ranges::copy(bytes, out.begin());
  return out;
}

PeerAddress mapped(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  return address({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d});
}

TEST(Connections, OnlyThoseToTheWorldAreEnded) {
  auto const guest = address({192, 0, 2, 2});
  EXPECT_TRUE(is_outward(AF_INET, guest, address({198, 18, 0, 1})));
  EXPECT_TRUE(is_outward(AF_INET, guest, address({192, 0, 2, 3})));
  EXPECT_FALSE(is_outward(AF_INET, guest, address({192, 0, 2, 1}))) << "the host's, /init itself";
  EXPECT_FALSE(is_outward(AF_INET, guest, guest)) << "with itself";
  EXPECT_FALSE(is_outward(AF_INET, address({127, 0, 0, 1}), address({127, 0, 0, 1})));
  EXPECT_FALSE(is_outward(AF_INET, guest, address({127, 9, 9, 9})));
  // The same from sockets that speak both.
  auto const dual = mapped(192, 0, 2, 2);
  EXPECT_TRUE(is_outward(AF_INET6, dual, mapped(198, 18, 0, 1)));
  EXPECT_FALSE(is_outward(AF_INET6, dual, mapped(192, 0, 2, 1)));
  EXPECT_FALSE(is_outward(AF_INET6, dual, mapped(127, 0, 0, 1)));
  EXPECT_FALSE(is_outward(AF_INET6, dual, dual));
  PeerAddress loopback{};
  loopback.back() = 1;
  EXPECT_FALSE(is_outward(AF_INET6, loopback, loopback));
  auto const far = address({0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9});
  EXPECT_TRUE(is_outward(AF_INET6, loopback, far));
}

}  // namespace
}  // namespace agent
