// E2B's network settings as policies: the lists, and what a whole API makes of them.
#include "controlplane/e2b_rules.hpp"
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

TEST(E2bEgress, WhatIsDoneAtAnAllowedHostIsFreeWebSocketsIncluded) {
  for (
      auto const* settings :
      {R"({"allowOut":["allowed.example"],"denyOut":["0.0.0.0/0"]})",
       R"({"allowOut":["allowed.example"],"denyOut":["0.0.0.0/0"],"rules":{"allowed.example":[{"transform":{"headers":{"x-key":""}}}]}})",
       "null"}) {
    auto const policy = e2b::egress_of(taken(wire::parse_json(settings)));
    auto const compiled = taken(domain::EgressPolicy::compile({1, {{"sandbox", policy}}}));
    for (std::uint16_t const port : {std::uint16_t{443}, std::uint16_t{80}}) {
      domain::RequestTuple const request{
          domain::HostName::parse("allowed.example").value(), port, "GET", "/ws", true};
      EXPECT_TRUE(compiled->judge_request(request).allowed) << settings << port;
    }
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
    auto const proxy = co_await bench.ask(
        "PUT", "/sandboxes/" + id + "/network", R"({"egressProxy":{"address":"a:1"}})");
    EXPECT_EQ(proxy.status, 501);
    EXPECT_THAT(proxy.text, HasSubstr("own gateway"));
    bench.worker.policy_refusal =
        base::Error(base::Code::unavailable, "the network is off: silent");
    auto const failed = co_await bench.ask("PUT", "/sandboxes/" + id + "/network", "{}");
    EXPECT_EQ(failed.status, 500) << failed.text;
    EXPECT_THAT(failed.text, HasSubstr("not in force: the network is off"));
  });
}

TEST(E2bRules, AreSetForAllowedHostsOverTlsAndAllowNothingThemselves) {
  auto const rules_of = [](std::string_view settings) {
    auto const policy = e2b::egress_of(taken(wire::parse_json(settings)));
    EXPECT_TRUE(domain::EgressPolicy::compile({1, {{"sandbox", policy}}})) << settings;
    std::string out;
    for (auto const& rule : policy.rules) {
      out += rule.id + "(" + rule.hosts.front() + ")";
      for (auto const port : rule.ports)
        out += fmt::format(":{}", port);
      for (auto const& one : rule.inject)
        out += "+" + one.credential;
      out += " ";
    }
    return out;
  };
  std::string const headers =
      R"("rules":{"Api.x.example":[{"transform":{"headers":{"X-Key":"","x-b":""}}}]})";
  std::string const made =
      "rules.api.x.example(api.x.example):443+e2b:api.x.example:x-key+e2b:api.x.example:x-b "
      "rules.api.x.example.80(api.x.example):80 ";
  EXPECT_EQ(rules_of("{" + headers + "}"), made) << "all is open, and this host gets headers";
  EXPECT_EQ(rules_of(R"({"denyOut":["0.0.0.0/0"],)" + headers + "}"), "");
  EXPECT_EQ(rules_of(R"({"allowInternetAccess":false,)" + headers + "}"), "");
  EXPECT_EQ(rules_of(R"({"allowOut":["api.X.example"],"denyOut":["0.0.0.0/0"],)" + headers + "}"),
            made);
  EXPECT_EQ(rules_of(R"({"allowOut":["*.x.example"],"denyOut":["0.0.0.0/0"],)" + headers + "}"),
            "allowOut(*.x.example) " + made);
  EXPECT_EQ(rules_of(R"({"allowOut":["x.example"],"denyOut":["0.0.0.0/0"],)" + headers + "}"),
            "allowOut(x.example) ");
  EXPECT_EQ(rules_of(R"({"rules":{"api.x.example":[{"transform":{}}]}})"), "");
}

TEST(E2bRules, ValuesAreTakenOutAndWhatCannotBeSetIsSaidWithoutThem) {
  auto rules = taken(wire::parse_json(
      R"({"A.example":[{"transform":{"headers":{"Authorization":"Bearer canary","x-b":"two"}}}],"b.example":[]})"));
  auto const headers = taken(e2b::take_header_rules(rules));
  EXPECT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers.at(0).host, "a.example");
  EXPECT_EQ(headers.at(0).header, "Authorization");
  EXPECT_EQ(headers.at(0).value, "Bearer canary");
  EXPECT_EQ(
      wire::to_text(rules),
      R"({"A.example":[{"transform":{"headers":{"Authorization":"","x-b":""}}}],"b.example":[]})");
  auto const header = [](std::string const& name, std::string const& value) {
    return R"({"a.example":[{"transform":{"headers":{")" + name + R"(":)" + value + "}}}]}";
  };
  std::string const canary = R"("canary")";

  struct Case {
    std::string rules, wanted;
  };

  for (auto const& [text, wanted] :
       {Case{R"(["canary"])", "expected an object"},
        Case{R"({"*.a.example":[{"transform":{"headers":{"x":"canary"}}}]})", "exact host names"},
        Case{R"({"10.0.0.1":[{"transform":{"headers":{"x":"canary"}}}]})", "exact host names"},
        Case{R"({"a.example":[{},{"x":"canary"}]})", "at most one transform"},
        Case{R"({"a.example":[{"other":"canary"}]})", "unknown key"},
        Case{R"({"a.example":[{"transform":{"query":{"k":"canary"}}}]})", "only headers"},
        Case{R"({"a.example":[{"transform":"canary"}]})", "expected an object"},
        Case{R"({"a.example":[],"A.example.":[]})", "the same host twice"},
        Case{header("Host", canary), "cannot be set"},
        Case{header("transfer-encoding", canary), "cannot be set"},
        Case{header("x_y", canary), "letters, digits and dashes"},
        Case{header("x", R"(["canary"])"), "no string"},
        Case{header("x", R"("")"), "never shown"},
        Case{header("x", R"("canary\r\nHost: b")"), "visible ASCII"},
        Case{header("x", R"("Bearer ${e2b.secrets.canary}")"), "placeholder"},
        Case{header("x", "\"" + std::string(2049, 'c') + "\""), "2048"}}) {
    auto value = taken(wire::parse_json(text));
    auto const refused = e2b::take_header_rules(value);
    EXPECT_FALSE(refused) << text;
    if (refused) continue;
    EXPECT_EQ(refused.error().code(), base::Code::invalid_argument);
    EXPECT_THAT(refused.error().message(), HasSubstr(wanted)) << text;
    EXPECT_THAT(refused.error().message(), Not(HasSubstr("canary"))) << text;
  }
}

asio::awaitable<void> with_uplink(Bench& bench) {
  fs::create_directories(bench.config.run_dir + "/broker");
  co_await bench.stop_api();
  bench.config.uplink = "/run/netns/none-of-ours";
  bench.start_api();
  co_await bench.api->nodes().refresh();
}

std::string rules_with(std::string const& value) {
  return R"({"allowOut":["a.example"],"denyOut":["0.0.0.0/0"],"rules":{"a.example":[{"transform":{"headers":{"x-key":")" +
         value + R"("}}}]}})";
}

std::string create_with(std::string const& value) {
  return R"({"templateID":"base","timeout":60,"network":)" + rules_with(value) + "}";
}

TEST(E2bRules, AreSealedWithTheirSandboxAndShownWithoutTheirValues) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    Bench::Ask asked;
    asked.method = "POST";
    asked.target = "/sandboxes";
    asked.body = create_with("canary-one");
    asked.headers.add("Idempotency-Key", "k-1");
    auto const made = co_await bench.ask(asked);
    EXPECT_EQ(made.status, 201) << made.text;
    auto const id = made.str("sandboxID");
    EXPECT_EQ(broker.seals.size(), 1u);
    EXPECT_EQ(broker.seals.at(0).value, "canary-one");
    EXPECT_EQ(broker.seals.at(0).binding.hosts, std::vector<std::string>{"a.example"});
    auto const& start = bench.worker.starts.back();
    EXPECT_EQ(start.credentials.size(), 1u);
    EXPECT_EQ(start.credentials.at(0).name, "e2b:a.example:x-key");
    EXPECT_EQ(start.credentials.at(0).sealed.binding.header, "x-key");
    EXPECT_EQ(start.credentials.at(0).sealed.binding.form, "header");
    EXPECT_TRUE(e2b::is_plain_header("User-Agent")) << "answers may well have these words";
    EXPECT_FALSE(e2b::is_plain_header("authorization"));
    EXPECT_EQ(start.policy->levels.at(0).policy.rules.at(0).inject.at(0).credential,
              "e2b:a.example:x-key");
    auto const again = co_await bench.ask(asked);
    EXPECT_EQ(again.str("sandboxID"), id) << "a repeat is known without the value";

    auto const at = "/sandboxes/" + id;
    auto const put = co_await bench.ask("PUT", at + "/network", rules_with("canary-two"));
    EXPECT_EQ(put.status, 204) << put.text;
    auto const& lease = bench.worker.policies.back().second.credentials->at(0);
    EXPECT_EQ(lease.name, "e2b:a.example:x-key");
    EXPECT_NE(lease.sealed.credential, start.credentials.at(0).sealed.credential);
    auto const shown = co_await bench.ask("GET", at);
    EXPECT_THAT(shown.text, HasSubstr(R"("headers":{"x-key":""})"));
    for (auto const& place :
         {at, "/v1" + at, "/v1" + at + "/policy", std::string("/v1/credentials")}) {
      auto const answer = co_await bench.ask("GET", place);
      EXPECT_EQ(answer.status, 200) << answer.text;
      EXPECT_THAT(answer.text, Not(HasSubstr("canary"))) << place;
    }
    auto const back = co_await bench.ask("PUT", at + "/network", rules_with(""));
    EXPECT_EQ(back.status, 400) << back.text;
    EXPECT_EQ(taken(co_await bench.api->store().credentials.of_sandbox(id, soon())).size(), 1u)
        << "what is refused changes nothing";
    co_await broker.close();
  });
}

TEST(E2bRules, AreForkedAlongReplacedAndGoneWithTheirSandbox) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    auto& credentials = bench.api->store().credentials;
    auto const made = co_await bench.ask("POST", "/sandboxes", create_with("canary-one"));
    EXPECT_EQ(made.status, 201) << made.text;
    auto const id = made.str("sandboxID");
    auto const at = "/sandboxes/" + id;
    auto const lease = bench.worker.starts.back().credentials.at(0);
    auto const forked = co_await bench.ask("POST", at + "/fork", "{}");
    EXPECT_LT(forked.status, 300) << forked.text;
    auto const& copy = bench.worker.starts.back();
    EXPECT_NE(copy.sandbox, id);
    EXPECT_EQ(copy.credentials.size(), 1u);
    EXPECT_EQ(copy.credentials.at(0).sandbox, copy.sandbox);
    EXPECT_EQ(copy.credentials.at(0).sealed.credential, lease.sealed.credential);

    auto const cleared = co_await bench.ask("PUT", at + "/network", "{}");
    EXPECT_EQ(cleared.status, 204);
    EXPECT_TRUE(bench.worker.policies.back().second.credentials->empty());
    EXPECT_TRUE(taken(co_await credentials.of_sandbox(id, soon())).empty());
    EXPECT_EQ(taken(co_await credentials.of_sandbox(copy.sandbox, soon())).size(), 1u);
    auto const gone = co_await bench.ask("DELETE", "/sandboxes/" + copy.sandbox);
    EXPECT_EQ(gone.status, 204) << gone.text;
    EXPECT_TRUE(taken(co_await credentials.of_sandbox(copy.sandbox, soon())).empty());
    co_await broker.close();
  });
}

}  // namespace
}  // namespace controlplane
