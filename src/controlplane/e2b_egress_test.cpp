// E2B's network settings as policies: the lists, and what a whole API makes of them.
#include "controlplane/e2b_schema.hpp"
#include "controlplane/testing.hpp"
#include "domain/egress_policy.hpp"

#include <arpa/inet.h>

namespace controlplane {
namespace {

using namespace testing;
using ::testing::HasSubstr;

struct Verdicts {
  bool name, other_name, address, other_address;

  friend bool operator==(Verdicts const&, Verdicts const&) = default;
};

/// What the settings say about allowed.example, other.example, 203.0.113.10 and 198.51.100.7.
Verdicts judged(std::string_view settings) {
  auto const policy = e2b::egress_of(taken(wire::parse_json(settings)));
  EXPECT_EQ(policy.binding, wire::Binding::name);
  auto const compiled = domain::EgressPolicy::compile({1, {{"sandbox", policy}}});
  if (!compiled) {
    ADD_FAILURE() << settings << compiled.error().message();
    return {};
  }
  auto const name = [&](std::string_view host) {
    return (*compiled)->judge_connection(domain::HostName::parse(host).value(), 443).allowed;
  };
  auto const address = [&](char const* text) {
    in_addr parsed{};
    ::inet_pton(AF_INET, text, &parsed);
    return (*compiled)->judge_address(ntohl(parsed.s_addr), 7000).allowed;
  };
  return {name("allowed.example"),
          name("other.example"),
          address("203.0.113.10"),
          address("198.51.100.7")};
}

TEST(E2bEgress, ListsBecomeAPolicy) {
  struct Case {
    std::string_view settings;
    Verdicts wanted;
  };

  for (
      auto const& [settings, wanted] :
      {Case{"null", {true, true, true, true}},
       Case{R"({"allowInternetAccess":false})", {false, false, false, false}},
       Case{R"({"denyOut":["0.0.0.0/0"]})", {false, false, false, false}},
       Case{R"({"denyOut":["203.0.113.77/24"]})", {true, true, false, true}},
       Case{R"({"allowOut":["allowed.example"],"denyOut":["0.0.0.0/0"]})",
            {true, false, false, false}},
       Case{R"({"allowOut":["*.example"],"denyOut":["0.0.0.0/0"]})", {false, false, false, false}},
       Case{R"({"allowOut":["*"],"denyOut":["0.0.0.0/0"]})", {true, true, false, false}},
       Case{R"({"allowOut":["203.0.113.0/24"],"denyOut":["0.0.0.0/0"]})",
            {false, false, true, false}},
       Case{R"({"allowOut":["203.0.113.10"],"denyOut":["203.0.113.0/24"]})",
            {true, true, true, true}},
       Case{
           R"({"allowInternetAccess":false,"allowOut":["203.0.113.10"],"denyOut":["198.51.100.0/24"]})",
           {false, false, true, false}},
       Case{R"({"allowOut":["2001:db8::1"],"denyOut":["::/0"]})", {true, true, true, true}}}) {
    if (settings.find("*.example") != std::string_view::npos) {
      auto const policy = e2b::egress_of(taken(wire::parse_json(settings)));
      EXPECT_FALSE(domain::EgressPolicy::compile({1, {{"sandbox", policy}}}))
          << "a whole top-level domain is refused, and said so at the create";
      continue;
    }
    EXPECT_EQ(judged(settings), wanted) << settings;
  }
}

TEST(E2bEgress, IsOfTheSandboxAndReplacedWhileItRuns) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await bench.stop_api();
    bench.config.uplink = "/run/netns/none-of-ours";
    bench.start_api();
    co_await bench.api->nodes().refresh();
    auto const made = co_await bench.ask(
        "POST",
        "/sandboxes",
        R"({"templateID":"base","timeout":60,"network":{"allowOut":["allowed.example"],"denyOut":["0.0.0.0/0"],"allowPublicTraffic":false}})");
    EXPECT_EQ(made.status, 201) << made.text;
    auto const id = made.str("sandboxID");
    EXPECT_EQ(bench.worker.starts.back().policy->levels.at(0).policy.rules.at(0).hosts.at(0),
              "allowed.example");
    auto const replaced = co_await bench.ask(
        "PUT", "/sandboxes/" + id + "/network", R"({"denyOut":["203.0.113.0/24"]})");
    EXPECT_EQ(replaced.status, 204) << replaced.text;
    auto const& put = bench.worker.policies.back().second.policy;
    EXPECT_EQ(put.generation, 2u);
    EXPECT_EQ(put.levels.at(0).policy.posture, wire::Posture::open);
    EXPECT_EQ(put.levels.at(0).policy.cidr.deny.at(0), "203.0.113.0/24");
    auto const shown = co_await bench.ask("GET", "/sandboxes/" + id);
    EXPECT_THAT(shown.text, HasSubstr(R"("allowPublicTraffic":false)")) << "of visitors: it stays";
    EXPECT_THAT(shown.text, Not(HasSubstr("allowed.example")));
    auto const names =
        co_await bench.ask("PUT", "/sandboxes/" + id + "/network", R"({"allowOut":["a.example"]})");
    EXPECT_EQ(names.status, 400) << names.text;
    EXPECT_THAT(names.text, HasSubstr("ALL_TRAFFIC"));
    auto const rules = co_await bench.ask(
        "PUT", "/sandboxes/" + id + "/network", R"({"rules":{"a.example":[{}]}})");
    EXPECT_EQ(rules.status, 501);
    EXPECT_THAT(rules.text, HasSubstr("space credential put"));
    bench.worker.policy_refusal =
        base::Error(base::Code::unavailable, "the network is off: silent");
    auto const failed = co_await bench.ask("PUT", "/sandboxes/" + id + "/network", "{}");
    EXPECT_EQ(failed.status, 500) << failed.text;
    EXPECT_THAT(failed.text, HasSubstr("not in force: the network is off"));
  });
}

}  // namespace
}  // namespace controlplane
