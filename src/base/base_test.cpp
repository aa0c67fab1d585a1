#include "base/clock.hpp"
#include "base/id.hpp"
#include "base/result.hpp"
#include "base/secret.hpp"

#include <cerrno>
#include <set>

#include <gtest/gtest.h>

namespace base {
namespace {

TEST(Code, EveryCodeHasANameThatLeadsBackToIt) {
  for (int i = 0; i <= static_cast<int>(Code::internal); ++i) {
    auto const code = static_cast<Code>(i);
    EXPECT_EQ(code_named(name_of(code)), code);
    EXPECT_GE(http_status_of(code), 400);
    EXPECT_NE(exit_code_of(code), 0);
  }
}

TEST(Result, AFailureReadsAsASentenceOfItsSteps) {
  Result<int> inner = fail(Code::unavailable, "no answer in time");
  Result<int> outer = passing(inner, "wait for the agent");
  EXPECT_EQ(outer.error().message(), "wait for the agent: no answer in time");
  EXPECT_EQ(outer.error().code(), Code::unavailable);
}

TEST(Result, AFullDiskIsExhausted) {
  Result<void> full = fail_errno(ENOSPC, "write the file");
  EXPECT_EQ(full.error().code(), Code::exhausted);
}

TEST(ShortId, AreDistinctAndFitADnsLabel) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    auto const id = make_short_id('i');
    EXPECT_TRUE(is_short_id('i', id)) << id;
    EXPECT_TRUE(seen.insert(id).second);
  }
  for (auto const* bad :
       {"", "i", "i../../etc/passwd00000", "I00000000000000000000", "i0000000000000000000-"})
    EXPECT_FALSE(SandboxId::parse(bad)) << bad;
}

TEST(Uuid7, OrdersByTimeAndCarriesItsVersion) {
  auto const id = make_uuid7();
  ASSERT_EQ(id.size(), 36U);
  EXPECT_EQ(id[14], '7');
}

TEST(Secret, ComparesWholeValues) {
  Secret const secret("tok123");
  EXPECT_TRUE(secret.equals("tok123"));
  EXPECT_FALSE(secret.equals("tok12"));
  EXPECT_FALSE(secret.equals("tok1234"));
  EXPECT_FALSE(secret.equals(""));
  EXPECT_FALSE(Secret().equals("x"));
}

TEST(Clock, WritesRfc3339) {
  ManualClock clock;
  clock.advance(std::chrono::milliseconds(1500));
  EXPECT_EQ(to_rfc3339(clock.wall_now()), "2030-01-01T00:00:01.500000Z");
}

}  // namespace
}  // namespace base
