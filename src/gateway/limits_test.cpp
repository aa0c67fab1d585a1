#include "gateway/limits.hpp"

#include <gtest/gtest.h>

namespace gateway {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<domain::EgressPolicy const> policy_of(std::vector<std::string> const& levels) {
  wire::EffectivePolicy text{1, {}};
  for (auto const& level : levels) {
    auto policy = wire::decode_text<wire::Policy>(level);
    EXPECT_TRUE(policy) << policy.error().message();
    text.levels.push_back({fmt::format("level{}", text.levels.size()), *policy});
  }
  auto compiled = domain::EgressPolicy::compile(std::move(text));
  EXPECT_TRUE(compiled) << compiled.error().message();
  return *compiled;
}

class LimitsTest : public testing::Test {
 protected:
  void apply(std::vector<std::string> const& levels) {
    before_ = std::exchange(policy_, policy_of(levels));
    limits_.apply(*policy_);
  }

  /// "" when it may be sent at once, "waits", or the budget that refuses it.
  std::string ask(std::string const& host, std::string path = "/") {
    auto const decision =
        policy_->judge_request({domain::HostName::parse(host).value(), 443, "GET", path, false});
    EXPECT_TRUE(decision.allowed);
    limits_.find_meters(decision, meters_);
    auto const admission = limits_.admit_request(clock_.steady_now(), host, meters_);
    if (!admission.admitted) return std::string(admission.reason);
    return admission.wait > 0ns ? "waits" : "";
  }

  base::ManualClock clock_;
  Limits limits_{clock_.steady_now()};
  std::shared_ptr<domain::EgressPolicy const> policy_;
  std::shared_ptr<domain::EgressPolicy const> before_;
  RuleMeters meters_;
};

TEST_F(LimitsTest, WhoComesTooEarlyWaitsAndThenIsRefused) {
  apply({R"({"posture":"open","budgets":{"requests_per_s":2}})"});
  EXPECT_EQ(ask("a.example"), "");
  EXPECT_EQ(ask("b.example"), "");
  EXPECT_EQ(ask("a.example"), "waits");
  EXPECT_EQ(ask("a.example"), "waits");
  EXPECT_EQ(ask("a.example"), "request_budget");
  clock_.advance(1s);
  EXPECT_EQ(ask("a.example"), "waits") << "after the two that waited";
  clock_.advance(10s);
  EXPECT_EQ(ask("a.example"), "");
}

TEST_F(LimitsTest, EachHostHasItsBudgetAndTheSmallestLevelHolds) {
  apply({R"({"posture":"open","budgets":{"host_requests_per_s":5}})",
         R"({"posture":"open","budgets":{"host_requests_per_s":1}})",
         R"({"posture":"open"})"});
  EXPECT_EQ(ask("a.example"), "");
  EXPECT_EQ(ask("a.example"), "waits");
  EXPECT_EQ(ask("a.example"), "host_budget");
  EXPECT_EQ(ask("b.example"), "");
}

TEST_F(LimitsTest, InventedHostNamesNeitherGrowTheTableNorGiveMore) {
  apply({R"({"posture":"open","budgets":{"requests_per_s":1000000,"host_requests_per_s":1}})"});
  EXPECT_EQ(ask("a.example"), "");
  EXPECT_EQ(ask("a.example"), "waits");
  std::size_t admitted = 0;
  for (int i = 0; i < 20'000; ++i)
    admitted += ask(fmt::format("n{}.example", i)) != "host_budget";
  EXPECT_LE(admitted, 2 * HostPaces::places);
  EXPECT_GT(admitted, HostPaces::places) << "the places are used";
  EXPECT_EQ(ask("a.example"), "host_budget") << "nobody pushes a spent one out";
  clock_.advance(2s);
  EXPECT_EQ(ask("late.example"), "") << "places are given away when their budget is whole";
}

TEST_F(LimitsTest, TheRuleOfEachLevelCountsAndWritingItAgainRefillsNothing) {
  std::string const project =
      R"({"posture":"allowlist","rules":[{"id":"wide","hosts":["*"],"limits":{"requests_per_s":3}}]})";
  std::string const sandbox =
      R"({"posture":"allowlist","rules":[
        {"id":"few","hosts":["a.example"],"http":{"paths":["/few"]},"limits":{"requests_per_s":1}},
        {"id":"rest","hosts":["a.example"]}]})";
  apply({project, sandbox});
  EXPECT_EQ(ask("a.example", "/few"), "");
  EXPECT_EQ(ask("a.example", "/few"), "waits");
  EXPECT_EQ(ask("a.example", "/few"), "rule_budget");
  EXPECT_EQ(ask("a.example", "/few"), "rule_budget");
  EXPECT_EQ(ask("a.example"), "") << "what was refused cost the project's rule nothing";
  EXPECT_EQ(ask("a.example"), "waits");
  apply({project, sandbox});
  EXPECT_EQ(ask("a.example", "/few"), "rule_budget");
  apply({project, R"({"posture":"open"})"});
  EXPECT_EQ(ask("a.example", "/few"), "waits") << "the project's";
  EXPECT_EQ(ask("a.example"), "waits");
  EXPECT_EQ(ask("a.example"), "rule_budget");
}

TEST_F(LimitsTest, BytesAreThoseOfTheRuleAndOfTheSandbox) {
  apply({R"({"posture":"open","budgets":{"down_bytes":100},
             "rules":[{"id":"r","hosts":["a.example"],"limits":{"up_bytes":10}}]})"});
  EXPECT_EQ(ask("a.example"), "");
  EXPECT_TRUE(limits_.admit_bytes(10, 0, meters_));
  EXPECT_FALSE(limits_.admit_bytes(1, 0, meters_));
  RuleMeters const by_no_rule;
  EXPECT_TRUE(limits_.admit_bytes(1000, 100, by_no_rule));
  EXPECT_FALSE(limits_.admit_bytes(0, 1, by_no_rule));
}

TEST_F(LimitsTest, AConnectionThatGoesOnFeelsTheNewLimit) {
  std::string const rule =
      R"({{"posture":"allowlist","rules":[{{"id":"raw","hosts":["a.example"],"ports":[7],"protocol":"tcp","limits":{{"down_bytes":{}}}}}]}})";
  apply({fmt::format(fmt::runtime(rule), 10)});
  auto const host = domain::HostName::parse("a.example").value();
  limits_.find_meters(policy_->judge_connection(host, 7), meters_);
  EXPECT_TRUE(limits_.admit_bytes(0, 10, meters_));
  apply({fmt::format(fmt::runtime(rule), 20)});
  EXPECT_TRUE(limits_.admit_bytes(0, 10, meters_));
  EXPECT_FALSE(limits_.admit_bytes(0, 1, meters_));
  apply({R"({"posture":"open"})"});
  EXPECT_TRUE(limits_.admit_bytes(0, 1, meters_)) << "not limited any more";
}

}  // namespace
}  // namespace gateway
