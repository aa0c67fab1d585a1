#include "hostd/uplink_rules.hpp"

#include "os/host_resolvers.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hostd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

wire::Config config_with(std::vector<std::string> routes) {
  wire::Config config;
  config.instance = "abc";
  config.slot_uid_base = 700'000;
  config.slots_max = 16;
  config.private_routes = std::move(routes);
  return config;
}

TEST(UplinkRules, NamesUsersAndAddressesAreTheInstallationsOwn) {
  auto const plan = plan_uplink(config_with({}), {}, 3);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->link, "spup-abc");
  EXPECT_EQ(plan->table, "space_abc");
  EXPECT_EQ(text_of(plan->host_end), "198.51.100.13");
  EXPECT_EQ(text_of(plan->inner_end), "198.51.100.14");
  EXPECT_EQ(uplink_number_of(plan->host_end), 3U);
  EXPECT_EQ(plan->user_min, 700'016U);
  EXPECT_EQ(plan->user_max, 700'031U);
}

TEST(UplinkRules, TheLongestInstanceStillMakesALinksName) {
  auto config = config_with({});
  config.instance = "abcdefgh";
  EXPECT_LT(plan_uplink(config, {}, 0)->link.size(), 16U);
}

TEST(UplinkRules, RoutesAndResolversAreReadAsNumbersAndWrittenAnew) {
  auto const plan =
      plan_uplink(config_with({"10.1.2.3/8", "fd00::/8", "192.168.7.7"}), {"10.9.9.53", "::1"}, 0);
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->admitted, ElementsAre("10.0.0.0/8", "192.168.7.7/32"));
  EXPECT_THAT(plan->resolvers, ElementsAre("10.9.9.53"));
}

TEST(UplinkRules, WhatIsNoNetworkNeverReachesTheRules) {
  for (char const* route : {"10.0.0.0/33", "10.0.0.0/8 }", "10.0.0.0/-1", "any", "", "10.0.0/8"}) {
    EXPECT_FALSE(plan_uplink(config_with({route}), {}, 0)) << route;
    EXPECT_FALSE(plan_uplink(config_with({}), {route}, 0)) << route;
  }
}

TEST(UplinkRules, AnEmptySetIsWrittenWithoutElements) {
  auto const rules = uplink_host_rules(*plan_uplink(config_with({}), {}, 0));
  EXPECT_THAT(rules, Not(HasSubstr("elements = {  }")));
}

TEST(HostResolvers, OnesThatOnlyTheHostCanReachAreReplacedByThoseBehind) {
  std::string directory = "/tmp/space-resolvers-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  auto const file = directory + "/resolv.conf";
  auto const behind = directory + "/behind";
  std::ofstream(file) << "# nameserver 192.0.2.7\nnameserver 127.0.0.53\noptions edns0\n";
  EXPECT_THAT(os::host_resolvers(file, behind), IsEmpty());
  std::ofstream(behind) << "nameserver 192.0.2.8\n";
  EXPECT_THAT(os::host_resolvers(file, behind), ElementsAre("192.0.2.8"));
  std::ofstream(file) << "nameserver 192.0.2.9\nnameserver 127.0.0.53\n";
  EXPECT_THAT(os::host_resolvers(file, behind), ElementsAre("192.0.2.9"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace hostd
