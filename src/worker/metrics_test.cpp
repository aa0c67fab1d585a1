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

TEST(WorkerMetrics, EveryDecisionIsCountedWithoutItsHost) {
  base::Metrics all;
  auto request = decided("request", "allowed", "allowed");
  request.status = 204;
  request.up_bytes = 10;
  request.down_bytes = 20;
  request.credential = "id/1";
  request.scrub_hits = 2;
  count_decision(all, request);
  auto refused = decided("request", "denied", "credential_refused");
  refused.status = 403;
  count_decision(all, refused);
  auto flow = decided("connection", "denied", "no_rule");
  flow.count = 5;
  count_decision(all, flow);
  count_decision(all, decided("connection", "error", "secret.example cannot be reached"));
  auto name = decided("dns", "denied", "name_budget");
  name.count = 3;
  count_decision(all, name);
  count_decision(all, decided("connection", "error", "byte_budget"));
  count_decision(all, decided("credential", "quarantined", "a server sent it back"));
  count_decision(all, decided("network", "denied", "its gateway failed three times"));
  auto gap = decided("gap", "", "");
  gap.count = 9;
  count_decision(all, gap);
  auto const text = text_of(all);
  for (auto const* line : {
           "space_egress_requests_total{decision=\"allowed\",status=\"2xx\"} 1\n",
           "space_egress_requests_total{decision=\"denied\",status=\"4xx\"} 1\n",
           "space_egress_bytes_total{direction=\"up\"} 10\n",
           "space_egress_bytes_total{direction=\"down\"} 20\n",
           "space_credential_injections_total{result=\"ok\"} 1\n",
           "space_credential_injections_total{result=\"refused\"} 1\n",
           "space_scrub_hits_total 2\n",
           "space_egress_flows_total{decision=\"denied\",reason=\"no_rule\"} 5\n",
           "space_egress_flows_total{decision=\"error\",reason=\"error\"} 2\n",
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
