#include "domain/reach.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace domain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Network all{.address = 0, .bits = 0};
constexpr Network ten{.address = 0x0a000000, .bits = 8};
constexpr Network ten_one{.address = 0x0a010000, .bits = 16};
constexpr Network host{.address = 0xcb007114, .bits = 32};  // 203.0.113.20

wire::Policy allowlist(std::vector<std::string> allow,
                       wire::Binding binding = wire::Binding::strict) {
  wire::Policy policy;
  policy.posture = wire::Posture::allowlist;
  policy.binding = binding;
  policy.cidr.allow = std::move(allow);
  return policy;
}

wire::Policy open(wire::Binding binding = wire::Binding::strict) {
  wire::Policy policy;
  policy.posture = wire::Posture::open;
  policy.binding = binding;
  return policy;
}

Reach reach(std::vector<wire::Policy> levels) {
  wire::EffectivePolicy policy;
  for (auto& one : levels)
    policy.levels.push_back({"level", std::move(one)});
  auto found = reach_of(policy);
  EXPECT_TRUE(found);
  return *found;
}

TEST(Reach, NoLevelAndABlockedOneLetNothingThrough) {
  EXPECT_EQ(reach({}), Reach{});
  EXPECT_EQ(reach({open(wire::Binding::name), wire::Policy{}}), Reach{});
}

TEST(Reach, IsTheNetworksThatPolicyNamesInOrderAndOnce) {
  EXPECT_THAT(
      reach({allowlist({"203.0.113.20", "10.1.0.0/16", "10.0.0.0/8", "10.0.0.0/8"})}).networks,
      ElementsAre(ten, host));
  EXPECT_THAT(reach({allowlist({})}).networks, IsEmpty());
  EXPECT_THAT(reach({allowlist({"0.0.0.0/0", "10.0.0.0/8"})}).networks, ElementsAre(all));
  EXPECT_THAT(reach({open()}).networks, ElementsAre(all));
}

TEST(Reach, EveryLevelCanOnlyNarrow) {
  EXPECT_THAT(reach({open(), allowlist({"10.1.0.0/16"})}).networks, ElementsAre(ten_one));
  EXPECT_THAT(
      reach({allowlist({"10.0.0.0/8"}), allowlist({"10.1.0.0/16", "203.0.113.20"})}).networks,
      ElementsAre(ten_one));
  EXPECT_THAT(
      reach({allowlist({"10.1.0.0/16", "203.0.113.20"}), allowlist({"10.0.0.0/8"})}).networks,
      ElementsAre(ten_one));
  EXPECT_THAT(reach({allowlist({"10.0.0.0/8"}), allowlist({"11.0.0.0/8"})}).networks, IsEmpty());
}

TEST(Reach, ConnectionsThatSayTheirNameNeedEveryLevelsConsent) {
  EXPECT_TRUE(reach({allowlist({}, wire::Binding::name)}).named);
  EXPECT_FALSE(reach({allowlist({}, wire::Binding::name), allowlist({})}).named);
}

TEST(Reach, WhatASlotsRulesCannotTakeIsRefused) {
  for (char const* text : {"10.0.0.0/33", "10.0.0.0/", "x", "", "::/0", "10.0.0.0/8 "}) {
    wire::EffectivePolicy policy;
    policy.levels.push_back({"sandbox", allowlist({text})});
    EXPECT_FALSE(reach_of(policy)) << text;
  }
  std::vector<std::string> many;
  for (std::size_t i = 0; i <= reach_networks_max; ++i)
    many.push_back(fmt::format("10.0.{}.0/24", i));
  wire::EffectivePolicy policy;
  policy.levels.push_back({"sandbox", allowlist(many)});
  EXPECT_FALSE(reach_of(policy));
  many.pop_back();
  policy.levels[0].policy = allowlist(many);
  EXPECT_TRUE(reach_of(policy));
}

TEST(Reach, WhatTwoHaveInCommonIsInBoth) {
  Reach const one{.networks = {ten, host}, .named = true};
  Reach const other{.networks = {ten_one}, .named = true};
  EXPECT_EQ(common(one, other), other);
  EXPECT_EQ(common(other, one), other);
  EXPECT_EQ(common(one, Reach{}), Reach{});
}

}  // namespace
}  // namespace domain
