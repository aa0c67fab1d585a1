#include "gateway/testing.hpp"

namespace gateway {
namespace {

using namespace std::chrono_literals;
using namespace testing;

TEST(Flow, WhatIsTooManyIsHeldBackAndThenRefusedWithATimeToComeAgain) {
  with_rig(
      R"({"id":"none","hosts":["api.corp.example"],"ports":[TLS],"http":{"paths":["/none"]},"limits":{"requests_per_s":0}},
         {"id":"two","hosts":["api.corp.example"],"ports":[TLS],"http":{"paths":["/two"]},"limits":{"requests_per_s":2}},
         {"id":"bytes","hosts":["api.corp.example"],"ports":[TLS],"http":{"paths":["/bytes"]},"limits":{"up_bytes":3}})",
      [](Rig& rig) -> asio::awaitable<void> {
        auto const host = fmt::format("Host: api.corp.example:{}\r\n", rig.origin.port());
        auto const refused = co_await rig.ask("GET /none HTTP/1.1\r\n" + host + "\r\n");
        EXPECT_TRUE(refused.starts_with("HTTP/1.1 429 ")) << refused;
        EXPECT_NE(refused.find("Retry-After: 1\r\n"), std::string::npos) << refused;
        EXPECT_TRUE(rig.records.has("request", "rule_budget"));
        auto const much =
            co_await rig.ask("POST /bytes HTTP/1.1\r\n" + host + "Content-Length: 4\r\n\r\nmuch");
        EXPECT_TRUE(much.starts_with("HTTP/1.1 403 ")) << much;
        EXPECT_EQ(much.find("Retry-After"), std::string::npos) << "later is no better";
        EXPECT_TRUE(rig.records.has("request", "byte_budget"));
        EXPECT_EQ(rig.origin.received, "");
        auto const began = base::system_clock().steady_now();
        for (int i = 0; i < 3; ++i) {
          auto const answer = co_await rig.ask("GET /two HTTP/1.1\r\n" + host + "\r\n");
          EXPECT_TRUE(answer.ends_with("hello")) << answer;
        }
        EXPECT_GE(base::system_clock().steady_now() - began, 490ms) << "the third had to wait";
      });
}

TEST(Flow, RawBytesBeyondTheLimitOfTheirRuleEndTheConnectionAndAreTold) {
  auto const rules =
      R"({"id":"raw","hosts":["raw.corp.example"],"ports":[PLAIN],"protocol":"tcp","limits":{"up_bytes":8}})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    auto raw = rig.connect("raw.corp.example", rig.plain.port());
    auto sent = co_await raw->write_text("12345678");
    EXPECT_TRUE(sent);
    EXPECT_TRUE((co_await rig.read_answer(*raw)).ends_with("hello"));
    sent = co_await raw->write_text("9");
    EXPECT_TRUE(sent);
    EXPECT_EQ(co_await rig.read_answer(*raw), "closed");
    EXPECT_EQ(rig.plain.received, "12345678");
    EXPECT_TRUE(rig.records.has("connection", "byte_budget"));
    auto again = rig.connect("raw.corp.example", rig.plain.port());
    sent = co_await again->write_text("9");
    EXPECT_TRUE(sent);
    EXPECT_EQ(co_await rig.read_answer(*again), "closed") << "a new connection has no new budget";
    EXPECT_EQ(rig.plain.received, "12345678");
  });
}

TEST(Flow, ACredentialThatIsUsedTooOftenIsWaitedForAndThenRefused) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    auto const text = fmt::format("POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n",
                                  rig.origin.port());
    rig.busy = 1;
    EXPECT_TRUE((co_await rig.ask(text)).ends_with("hello"));
    EXPECT_EQ(rig.asked.size(), 2U);
    rig.origin.received.clear();
    rig.busy = 1000;
    auto const answer = co_await rig.ask(text);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 429 ")) << answer;
    EXPECT_NE(answer.find("Retry-After: 1\r\n"), std::string::npos) << answer;
    EXPECT_TRUE(rig.records.has("request", "credential_budget"));
    EXPECT_EQ(rig.origin.received, "");
  });
}

TEST(Flow, WhatAllSandboxesOfAProjectMayDoTogetherIsAskedForEachRequest) {
  auto const rules =
      R"({"id":"api","hosts":["api.corp.example"],"ports":[TLS]},
         {"id":"raw","hosts":["raw.corp.example"],"ports":[PLAIN],"protocol":"tcp"})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    auto const text = fmt::format("GET /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n",
                                  rig.origin.port());
    EXPECT_TRUE((co_await rig.ask(text)).ends_with("hello"));
    EXPECT_TRUE(rig.asked.empty()) << "nobody is asked where no level has such a budget";
    rig.origin.received.clear();
    auto policy = rig.gateway->policy()->text();
    policy.generation = 2;
    policy.levels.front().level = "project";
    policy.levels.front().policy.budgets.together = wire::SharedBudget{{}, 1, {}};
    EXPECT_EQ(rig.gateway->apply(policy).error, "");
    EXPECT_TRUE((co_await rig.ask(text)).ends_with("hello"));
    EXPECT_EQ(rig.asked.size(), 1U);
    while (rig.asked.size() < 2)
      co_await async::sleep_for(1ms);
    EXPECT_NE(rig.asked.at(1).find("\"done\":1"), std::string::npos) << "it is over";
    rig.origin.received.clear();
    rig.busy = 1000;
    auto const refused = co_await rig.ask(text);
    EXPECT_TRUE(refused.starts_with("HTTP/1.1 429 ")) << refused;
    EXPECT_TRUE(rig.records.has("request", "project_budget"));
    auto raw = rig.connect("raw.corp.example", rig.plain.port());
    EXPECT_EQ(co_await rig.read_answer(*raw), "closed");
    EXPECT_TRUE(rig.records.has("connection", "project_budget"));
    rig.credential.clear();  // it dies of the next question
    auto const nobody = co_await rig.ask(text);
    EXPECT_TRUE(nobody.starts_with("HTTP/1.1 503 ")) << nobody;
    EXPECT_TRUE(rig.records.has("request", "shared_budget_unavailable"));
    EXPECT_EQ(rig.origin.received + rig.plain.received, "");
  });
}

/// A connection whose request was judged and waits for its credential: the broker's next answer is
/// the value.
async::Task<net::Stream> held_back(Rig& rig) {
  auto guest =
      co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
  EXPECT_TRUE(guest);
  if (!guest) co_return base::passing(guest);
  rig.busy = 1;
  auto const sent = co_await (*guest)->write_text(fmt::format(
      "POST /v1/messages HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
  EXPECT_TRUE(sent);
  while (rig.asked.empty() || rig.busy > 0)
    co_await async::sleep_for(1ms);
  co_return guest;
}

TEST(Flow, WhatIsCutWhileItWaitsIsNotSent) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    auto guest = co_await held_back(rig);
    if (!guest) co_return;
    EXPECT_EQ(rig.gateway->apply(rig.policy("", "blocked", "strict", 2)).cut, 1U);
    EXPECT_EQ(co_await rig.read_answer(**guest), "closed");
    while (!rig.gateway->flows().empty())
      co_await async::sleep_for(1ms);
    EXPECT_EQ(rig.asked.size(), 2U);
    EXPECT_EQ(rig.origin.received, "");
  });
}

TEST(Flow, AConnectionThatIsSilentUntilThePolicyChangedIsJudgedByTheNewOne) {
  with_rig(
      R"({"id":"api","hosts":["api.corp.example"],"ports":[TLS,443]})",
      [](Rig& rig) -> asio::awaitable<void> {
        // By name binding its first bytes say where it goes, and the guest says when they come.
        auto stream = rig.connect_to(0xcb007109, 443);
        while (rig.gateway->flows().empty())
          co_await async::sleep_for(1ms);
        auto const applied = rig.gateway->apply(rig.policy("", "blocked", "name", 2));
        EXPECT_EQ(applied.error, "");
        auto const secured = co_await rig.secure(std::move(stream), "api.corp.example");
        EXPECT_FALSE(secured);
        EXPECT_FALSE(rig.records.has("connection", "allowed"));
      },
      "allowlist",
      "name");
}

TEST(Flow, ACredentialThatIsRevokedWhileItIsOnItsWayIsNotSent) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    auto guest = co_await held_back(rig);
    if (!guest) co_return;
    // The broker has not heard of it.
    rig.gateway->revoke("llm-key");
    EXPECT_EQ(co_await rig.read_answer(**guest), "closed");
    while (!rig.gateway->flows().empty())
      co_await async::sleep_for(1ms);
    EXPECT_EQ(rig.origin.received, "");
  });
}

TEST(Flow, AMethodInAnotherSpellingIsNoWayAroundADenial) {
  with_rig(
      R"({"id":"no","hosts":["api.corp.example"],"action":"deny","http":{"methods":["POST"]}})",
      [](Rig& rig) -> asio::awaitable<void> {
        for (std::string const method : {"POST", "post", "PoST", "trace"}) {
          auto const answer = co_await rig.ask(
              fmt::format("{} / HTTP/1.1\r\nHost: api.corp.example:{}\r\nContent-Length: 0\r\n\r\n",
                          method,
                          rig.origin.port()));
          EXPECT_TRUE(answer.starts_with("HTTP/1.1 40")) << answer;
        }
        EXPECT_EQ(rig.origin.received, "");
      },
      "open");
}

TEST(Flow, AnUpgradeWithABodyIsRefused) {
  with_rig(R"({"id":"ws","hosts":["api.corp.example"],"ports":[TLS],"http":{"websocket":true}})",
           [](Rig& rig) -> asio::awaitable<void> {
             for (std::string const length : {"Content-Length: 5", "Transfer-Encoding: chunked"}) {
               auto const answer = co_await rig.ask(
                   fmt::format("GET / HTTP/1.1\r\nHost: api.corp.example:{}\r\nConnection: Upgrade"
                               "\r\nUpgrade: websocket\r\n{}\r\n\r\n",
                               rig.origin.port(),
                               length));
               EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 ")) << answer;
             }
             EXPECT_EQ(rig.origin.received, "");
           });
}

}  // namespace
}  // namespace gateway
