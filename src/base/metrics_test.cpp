#include "base/metric_names.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace base {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(Metrics const& metrics, std::string node = {}) {
  std::vector<NodeSamples> const all{{std::move(node), metrics.all()}};
  return prometheus_text(all);
}

TEST(Metrics, CountSetAndObserveAreTextForPrometheus) {
  Metrics all;
  all.count(metric::egress_flows, {"denied", "no_rule", "open", "none"});
  all.count(metric::egress_flows, {"denied", "no_rule", "open", "none"}, 2);
  all.set(metric::sandboxes, 7, {"running"});
  all.set(metric::sandboxes, 5, {"running"});
  all.observe(metric::mint_seconds, 0.00015);
  all.observe(metric::mint_seconds, 3);
  auto const text = text_of(all, "a\"b\\c\nd");
  EXPECT_THAT(text,
              HasSubstr("# TYPE space_egress_flows_total counter\n"
                        "space_egress_flows_total{node=\"a\\\"b\\\\c\\nd\",decision=\"denied\","
                        "reason=\"no_rule\",posture=\"open\",class=\"none\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("state=\"running\"} 5\n"));
  EXPECT_THAT(text_of(all),
              HasSubstr("space_mint_seconds_bucket{le=\"0.0001\"} 0\n"
                        "space_mint_seconds_bucket{le=\"0.0002\"} 1\n"));
  EXPECT_THAT(text_of(all),
              HasSubstr("space_mint_seconds_bucket{le=\"+Inf\"} 2\n"
                        "space_mint_seconds_sum 3.00015\nspace_mint_seconds_count 2\n"));
}

TEST(Metrics, LabelsAreWordsAndSeriesAreBounded) {
  Metrics all;
  all.count(metric::egress_requests, {"denied", "secret.example\" } evil 1\n", "host"});
  all.count(metric::egress_requests, {"denied", "other", "host"});
  all.count(metric::egress_requests, {"denied"});
  all.observe(metric::start_seconds, 1, {"warm machine"});
  EXPECT_THAT(text_of(all),
              HasSubstr("{decision=\"denied\",status=\"other\",rule_kind=\"host\"} 2\n"));
  EXPECT_THAT(text_of(all), HasSubstr("status=\"other\",rule_kind=\"other\"} 1\n"));
  EXPECT_THAT(text_of(all), HasSubstr("_count{way=\"warm_machine\"} 1\n"));
  EXPECT_THAT(text_of(all), Not(HasSubstr("example")));
  for (int i = 0; i < 1000; ++i)
    all.count(metric::ends, {fmt::format("cause_{}", i)});
  double sum = 0;
  std::size_t series = 0;
  for (auto const& sample : all.all()) {
    if (sample.name != metric::ends.name) continue;
    sum += sample.value;
    ++series;
  }
  EXPECT_LE(series, 129U);
  EXPECT_EQ(sum, 1000) << "what has no series of its own is counted all the same";
}

TEST(Metrics, WhatOthersTellIsTakenOnlyInTheShapeOfItsFamilyAndFromWhomMayTellIt) {
  Metrics all;
  auto const from_gateway = [&all](MetricSample const& sample) {
    return all.merge(sample, MetricTeller::gateway);
  };
  std::string const dns(metric::dns_queries.name);
  std::string const mint(metric::mint_seconds.name);
  std::vector<std::uint64_t> const buckets(metric::mint_seconds.bounds.size() + 1, 2);
  EXPECT_TRUE(from_gateway({dns, {"allowed"}, 3, {}}));
  EXPECT_TRUE(from_gateway({dns, {"allowed"}, 4, {}}));
  EXPECT_TRUE(from_gateway({mint, {}, 0.5, buckets}));
  EXPECT_FALSE(from_gateway({"space_nothing_total", {}, 1, {}}));
  EXPECT_FALSE(from_gateway({dns, {}, 1, {}})) << "a label is missing";
  EXPECT_FALSE(from_gateway({dns, {"allowed", "b"}, 1, {}}));
  EXPECT_FALSE(from_gateway({dns, {"evil.example"}, 1, {}}));
  EXPECT_FALSE(from_gateway({dns, {std::string(41, 'a')}, 1, {}}));
  EXPECT_FALSE(from_gateway({dns, {"allowed"}, -1, {}}));
  EXPECT_FALSE(from_gateway({dns, {"allowed"}, 1e300, {}}));
  EXPECT_FALSE(from_gateway({dns, {"allowed"}, std::numeric_limits<double>::infinity(), {}}));
  EXPECT_FALSE(from_gateway({dns, {"allowed"}, std::nan(""), {}}));
  EXPECT_FALSE(from_gateway({dns, {"allowed"}, 1, {1}})) << "no histogram";
  EXPECT_FALSE(from_gateway({mint, {}, 1, {1, 2}})) << "other buckets";
  std::string const starts(metric::ends.name);
  EXPECT_FALSE(from_gateway({starts, {"deleted"}, 1, {}})) << "a worker's";
  EXPECT_TRUE(all.merge({starts, {"deleted"}, 1, {}}, MetricTeller::worker));
  EXPECT_FALSE(all.merge({std::string(metric::node_up.name), {}, 1, {}}, MetricTeller::worker));
  EXPECT_THAT(text_of(all), HasSubstr("space_dns_queries_total{decision=\"allowed\"} 7\n"));
  EXPECT_THAT(text_of(all),
              HasSubstr(fmt::format("space_mint_seconds_count {}\n", 2 * buckets.size())));
}

TEST(Metrics, TakeBeginsAtNought) {
  Metrics all;
  all.count(metric::dns_queries, {"allowed"});
  EXPECT_EQ(all.take().size(), 1U);
  EXPECT_TRUE(all.take().empty());
  all.count(metric::dns_queries, {"allowed"});
  ASSERT_EQ(all.all().size(), 1U);
  EXPECT_EQ(all.all()[0].value, 1);
}

/// One of its rows for each family, in this order: name, type, labels.
TEST(Metrics, TheGuideHasTheSameTable) {
  std::ifstream guide(METRICS_GUIDE);
  ASSERT_TRUE(guide);
  std::vector<std::string> told;
  std::regex const row(R"(^\| `(space_\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$)");
  for (std::string line; std::getline(guide, line);) {
    std::smatch found;
    if (std::regex_match(line, found, row))
      told.push_back(
          fmt::format("{} {} {} {}", found.str(1), found.str(2), found.str(3), found.str(4)));
  }
  std::vector<std::string> known;
  constexpr std::array<std::string_view, 3> kinds{"counter", "gauge", "histogram"};
  for (auto const* one : metric::all) {
    bool const of_node =
        one->name.find("_api_") == std::string_view::npos && one != &metric::samples_refused;
    std::string labels = of_node ? "node" : "";
    if (!one->labels.empty()) labels += (labels.empty() ? "" : ",") + std::string(one->labels);
    labels = labels.empty() ? "-" : "`" + std::regex_replace(labels, std::regex(","), "`, `") + "`";
    known.push_back(fmt::format("{} {} {} {}",
                                one->name,
                                kinds.at(static_cast<std::size_t>(one->kind)),
                                labels,
                                one->help));
  }
  EXPECT_EQ(told, known);
}

TEST(Metrics, FamiliesAreNamedAsPrometheusWantsThem) {
  std::set<std::string_view> names;
  for (auto const* one : metric::all) {
    EXPECT_TRUE(names.insert(one->name).second) << one->name << " twice";
    EXPECT_TRUE(one->name.starts_with("space_"));
    EXPECT_EQ(one->kind == MetricKind::counter, one->name.ends_with("_total")) << one->name;
    EXPECT_EQ(one->kind == MetricKind::histogram, !one->bounds.empty()) << one->name;
    EXPECT_TRUE(std::ranges::is_sorted(one->bounds));
    EXPECT_EQ(metric_named(one->name), one);
  }
}

}  // namespace
}  // namespace base
