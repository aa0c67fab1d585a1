#include "domain/quota.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace domain {
namespace {

constexpr auto most = std::numeric_limits<std::uint64_t>::max();

TEST(Quota, TheLastOneFitsAndTheNextDoesNot) {
  Limits const limits{.sandboxes = 2, .vcpus = {}, .memory_mib = 1024, .disk_mib = {}};
  Amounts const one{1, 1, 512, 4096};
  EXPECT_TRUE(check_quota(limits, {}, one));
  EXPECT_TRUE(check_quota(limits, one, one));
  auto const refused = check_quota(limits, plus(one, one), one);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), base::Code::exhausted);
  EXPECT_EQ(
      refused.error().message(),
      "the project uses 2 of 2 sandboxes and 1 more were asked for; delete sandboxes or raise the "
      "project's quota");
}

TEST(Quota, EachAmountHasItsOwnLimit) {
  Amounts const wanted{1, 2, 3, 4};
  EXPECT_TRUE(
      check_quota({.sandboxes = 1, .vcpus = 2, .memory_mib = 3, .disk_mib = 4}, {}, wanted));
  EXPECT_FALSE(
      check_quota({.sandboxes = 0, .vcpus = 2, .memory_mib = 3, .disk_mib = 4}, {}, wanted));
  EXPECT_FALSE(
      check_quota({.sandboxes = 1, .vcpus = 1, .memory_mib = 3, .disk_mib = 4}, {}, wanted));
  EXPECT_FALSE(
      check_quota({.sandboxes = 1, .vcpus = 2, .memory_mib = 2, .disk_mib = 4}, {}, wanted));
  EXPECT_FALSE(
      check_quota({.sandboxes = 1, .vcpus = 2, .memory_mib = 3, .disk_mib = 3}, {}, wanted));
}

TEST(Quota, NothingWantedIsAllowedEvenWhenOverTheLimit) {
  // After a quota was lowered a project may be over it; that must not break what asks for nothing.
  EXPECT_TRUE(check_quota(
      {.sandboxes = 1, .vcpus = {}, .memory_mib = {}, .disk_mib = {}}, {5, 0, 0, 0}, {}));
}

TEST(Quota, NumbersNeverWrapAround) {
  EXPECT_FALSE(check_quota({.sandboxes = 10, .vcpus = {}, .memory_mib = {}, .disk_mib = {}},
                           {most, 0, 0, 0},
                           {2, 0, 0, 0}));
  EXPECT_EQ(minus({1, 1, 1, 1}, {2, 0, 1, most}), (Amounts{0, 1, 0, 0}));
  EXPECT_EQ(plus({most, 1, 0, 0}, {1, 1, 0, 0}), (Amounts{most, 2, 0, 0}));
}

}  // namespace
}  // namespace domain
