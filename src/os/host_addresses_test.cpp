#include "os/host_addresses.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace os {
namespace {

TEST(HostAddresses, AreThoseOfTheLinksWithTheLoopback) {
  auto const found = host_addresses();
  EXPECT_NE(std::ranges::find(found, "127.0.0.1"), found.end());
}

}  // namespace
}  // namespace os
