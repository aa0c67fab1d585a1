#include "worker/metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(base::Metrics const& metrics) {
  std::vector<base::NodeSamples> const all{{"", metrics.all()}};
  return base::prometheus_text(all);
}

wire::GatewayDecision decided(std::string kind, std::string decision, std::string reason) {
  wire::GatewayDecision out;
  out.kind = std::move(kind);
  out.decision = std::move(decision);
  out.reason = std::move(reason);
  out.host = "secret.example";
  return out;
}

PolicyWords words() {
  auto const policy = wire::decode_text<wire::EffectivePolicy>(R"({"generation":1,"levels":[
    {"level":"project","policy":{"posture":"open"}},
    {"level":"sandbox","policy":{"posture":"allowlist","rules":[
      {"id":"secret-llm","hosts":["a.example"],"inject":[{"credential":"secret-key"}]},
      {"id":"secret-api","hosts":["b.example"],"http":{"methods":["GET"]}},
      {"id":"web","hosts":["c.example"]},
      {"id":"through","hosts":["d.example"],"tls":"passthrough"},
      {"id":"raw","hosts":["e.example"],"ports":[7],"protocol":"tcp"}]}}]})");
  EXPECT_TRUE(policy) << policy.error().message();
  wire::Lease lease;
  lease.name = "secret-key";
  lease.sealed.credential = "id";
  lease.sealed.version = 1;
  lease.sealed.binding.form = "bearer";
  return {policy.value(), {lease}};
}

TEST(WorkerMetrics, RulesAndCredentialsAreCalledByTheirKind) {
  auto const all = words();
  EXPECT_EQ(all.posture(), "allowlist") << "of the narrowest level";
  EXPECT_EQ(PolicyWords().posture(), "blocked");
  auto flow = decided("connection", "allowed", "allowed");
  flow.level = "sandbox";
  for (auto const& [rule, is] : {std::pair{"web", "http"},
                                 std::pair{"secret-llm", "http"},
                                 std::pair{"through", "passthrough"},
                                 std::pair{"raw", "tcp"},
                                 std::pair{"", "open"},
                                 std::pair{"secret-unknown", "open"}}) {
    flow.rule = rule;
    EXPECT_EQ(all.class_of(flow), is) << rule;
  }
  flow.host.clear();
  EXPECT_EQ(all.class_of(flow), "address");
  flow.decision = "denied";
  EXPECT_EQ(all.class_of(flow), "none");
  auto request = decided("request", "denied", "method");
  request.level = "sandbox";
  for (auto const& [rule, is] : {std::pair{"web", "host"},
                                 std::pair{"secret-llm", "credential"},
                                 std::pair{"secret-api", "http"},
                                 std::pair{"", "none"}}) {
    request.rule = rule;
    EXPECT_EQ(all.kind_of(request), is) << rule;
  }
  EXPECT_EQ(all.form_of(request), "none");
  request.credential = "id/1";
  EXPECT_EQ(all.form_of(request), "bearer");
  request.credential = "secret/1";
  EXPECT_EQ(all.form_of(request), "other");
}

TEST(WorkerMetrics, EveryDecisionIsCountedWithoutItsHost) {
  base::Metrics all;
  auto const policy = words();
  auto request = decided("request", "allowed", "allowed");
  request.status = 204;
  request.up_bytes = 10;
  request.down_bytes = 20;
  request.credential = "id/1";
  request.level = "sandbox";
  request.rule = "secret-llm";
  request.scrub_hits = 2;
  count_decision(all, request, policy);
  auto refused = decided("request", "denied", "credential_refused");
  refused.status = 403;
  count_decision(all, refused, policy);
  auto flow = decided("connection", "denied", "no_rule");
  flow.count = 5;
  count_decision(all, flow, policy);
  count_decision(all, decided("connection", "error", "secret.example cannot be reached"), policy);
  auto name = decided("dns", "denied", "name_budget");
  name.count = 3;
  count_decision(all, name, policy);
  count_decision(all, decided("connection", "error", "byte_budget"), policy);
  count_decision(all, decided("credential", "quarantined", "a server sent it back"), policy);
  count_decision(all, decided("network", "denied", "its gateway failed three times"), policy);
  auto gap = decided("gap", "", "");
  gap.count = 9;
  count_decision(all, gap, policy);
  auto const text = text_of(all);
  for (auto const* line : {
           "space_egress_requests_total{decision=\"allowed\",status=\"2xx\",rule_kind="
           "\"credential\"} 1\n",
           "space_egress_requests_total{decision=\"denied\",status=\"4xx\",rule_kind=\"none\"} 1\n",
           "space_egress_bytes_total{direction=\"up\"} 10\n",
           "space_egress_bytes_total{direction=\"down\"} 20\n",
           "space_credential_injections_total{result=\"ok\",type=\"bearer\"} 1\n",
           "space_credential_injections_total{result=\"refused\",type=\"none\"} 1\n",
           "space_scrub_hits_total 2\n",
           "space_egress_flows_total{decision=\"denied\",reason=\"no_rule\",posture=\"allowlist\","
           "class=\"none\"} 5\n",
           "space_egress_flows_total{decision=\"error\",reason=\"error\",posture=\"allowlist\","
           "class=\"none\"} 2\n",
           "space_dns_queries_total{decision=\"denied\"} 3\n",
           "space_budget_hits_total{budget=\"name_budget\"} 3\n",
           "space_budget_hits_total{budget=\"byte_budget\"} 1\n",
           "space_credential_quarantines_total 1\n",
           "space_networks_switched_off_total 1\n",
           "space_audit_gap_records_total 9\n",
       })
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST(WorkerMetrics, AGatewayTellsItsOwnCountersAndNothingElse) {
  base::Metrics all;
  EXPECT_TRUE(merge_gateway(
      all, R"([{"name":"space_dns_queries_total","labels":["allowed"],"value":2,"buckets":[]}])"));
  EXPECT_FALSE(merge_gateway(
      all, R"([{"name":"space_sandbox_ends_total","labels":["deleted"],"value":2,"buckets":[]}])"));
  EXPECT_FALSE(merge_gateway(all, "no JSON"));
  std::string many = "[";
  for (int i = 0; i < 300; ++i)
    many += (i > 0 ? "," : "") +
            fmt::format(R"({{"name":"space_dns_queries_total","labels":["w{}"],"value":1}})", i);
  EXPECT_FALSE(merge_gateway(all, many + "]"));
  EXPECT_EQ(all.all().size(), 1U);
  EXPECT_THAT(text_of(all), HasSubstr("space_dns_queries_total{decision=\"allowed\"} 2\n"));
}

}  // namespace
}  // namespace worker
