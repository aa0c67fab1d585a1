// What of a decision is written down, and of which decisions.
#include "gateway/control.hpp"
#include "gateway/testing.hpp"

namespace gateway {
namespace {

using namespace std::chrono_literals;
using namespace testing;

wire::GatewayDecision const* find(Records const& records,
                                  std::string_view kind,
                                  std::string_view decision) {
  auto const found = std::ranges::find_if(
      records.all, [&](auto const& one) { return one.kind == kind && one.decision == decision; });
  return found == records.all.end() ? nullptr : &*found;
}

asio::awaitable<bool> eventually(std::function<bool()> done) {
  auto const until = base::system_clock().in(20s);
  while (!done() && base::system_clock().steady_now() < until)
    co_await async::sleep_for(1ms);
  co_return done();
}

TEST(Records, ARequestSaysWhoseItIsAndHowItWent) {
  with_rig(with_credential, [](Rig& rig) -> asio::awaitable<void> {
    auto const answer =
        co_await rig.ask(fmt::format("POST /v1/messages?user=me&bare-value&n= HTTP/1.1\r\nHost: "
                                     "api.corp.example:{}\r\n\r\n",
                                     rig.origin.port()));
    EXPECT_TRUE(answer.ends_with("hello")) << answer;
    auto const* const connection = find(rig.records, "connection", "allowed");
    auto const* const request = find(rig.records, "request", "allowed");
    EXPECT_TRUE(connection && request);
    if (!connection || !request) co_return;
    EXPECT_NE(connection->flow, "");
    EXPECT_EQ(connection->flow_class, "http");
    EXPECT_EQ(request->flow, connection->flow);
    EXPECT_EQ(request->request, connection->flow + "-1");
    EXPECT_EQ(request->sni, "api.corp.example");
    EXPECT_EQ(request->authority, fmt::format("api.corp.example:{}", rig.origin.port()));
    EXPECT_EQ(request->tls, "TLSv1.3");
    EXPECT_EQ(request->upstream_tls, "TLSv1.3");
    EXPECT_EQ(request->query, "user,?,n") << "names, and what may be a value is not told";
    EXPECT_EQ(request->credential_name, "llm-key");
    EXPECT_EQ(request->injected, "x-api-key");
    EXPECT_GT(request->duration_us, 0U);
    EXPECT_EQ(request->generation, 1U);
  });
}

TEST(Records, ARefusalTellsTheGuestUnderWhichNumberItIsRecorded) {
  auto const rules = R"({"id":"read","hosts":["api.corp.example"],"ports":[TLS],)"
                     R"("http":{"methods":["GET"],"paths":["/public/**"]}})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    for (auto const* head : {"GET /private HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n",
                             "GET /public/x HTTP/1.1\r\nHost: b.corp.example:{}\r\n\r\n",
                             "GET  /public/x HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n"}) {
      rig.records.all.clear();
      auto const answer = co_await rig.ask(fmt::format(fmt::runtime(head), rig.origin.port()));
      auto const* const denied = find(rig.records, "request", "denied");
      EXPECT_TRUE(denied) << answer;
      if (!denied) co_return;
      EXPECT_NE(denied->request, "") << answer;
      EXPECT_NE(answer.find(fmt::format("X-Space-Request: {}\r\n", denied->request)),
                std::string::npos)
          << answer;
      EXPECT_NE(answer.find(fmt::format(R"("request":"{}")", denied->request)), std::string::npos);
    }
  });
}

TEST(Records, TheGenerationIsThatOfThePolicyThatDecided) {
  with_rig(allow_all_paths, [](Rig& rig) -> asio::awaitable<void> {
    rig.origin.answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    rig.origin.second_part = "world";
    auto stream = rig.connect("api.corp.example", rig.origin.port());
    auto secured = co_await rig.secure(std::move(stream), "api.corp.example");
    EXPECT_TRUE(secured);
    if (!secured) co_return;
    auto const sent = co_await (*secured)->write_text(
        fmt::format("GET / HTTP/1.1\r\nHost: api.corp.example:{}\r\n\r\n", rig.origin.port()));
    EXPECT_TRUE(sent);
    EXPECT_TRUE(co_await eventually([&] { return !rig.origin.received.empty(); }));
    EXPECT_FALSE(find(rig.records, "request", "allowed")) << "the answer is not whole yet";
    auto policy = rig.gateway->policy()->text();
    policy.generation = 2;
    EXPECT_EQ(rig.gateway->apply(policy).cut, 0U);
    EXPECT_TRUE((co_await rig.read_answer(**secured)).ends_with("helloworld"));
    EXPECT_TRUE(co_await eventually([&] { return find(rig.records, "request", "allowed"); }));
    EXPECT_EQ(find(rig.records, "request", "allowed")->generation, 1U);
  });
}

TEST(Records, RawBytesHaveAnEndWithWhatWentThrough) {
  auto const rules =
      R"({"id":"raw","hosts":["raw.corp.example"],"ports":[PLAIN],"protocol":"tcp"})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    auto raw = rig.connect("raw.corp.example", rig.plain.port());
    auto const sent = co_await raw->write_text("ping");
    EXPECT_TRUE(sent);
    auto const answer = co_await rig.read_answer(*raw);
    raw->close();
    EXPECT_TRUE(co_await eventually([&] { return find(rig.records, "flow", "ended"); }));
    auto const* const connection = find(rig.records, "connection", "allowed");
    auto const* const ended = find(rig.records, "flow", "ended");
    if (!connection || !ended) co_return;
    EXPECT_EQ(connection->flow_class, "tcp");
    EXPECT_EQ(ended->flow, connection->flow);
    EXPECT_EQ(ended->address, "127.0.0.1");
    EXPECT_EQ(ended->up_bytes, 4U);
    EXPECT_EQ(ended->down_bytes, answer.size());
  });
}

TEST(Records, APassthroughThatIsOverItsBudgetAtOnceIsRecorded) {
  auto const rules =
      R"({"id":"pin","hosts":["api.corp.example"],"ports":[TLS],"tls":"passthrough"})";
  with_rig(rules, [](Rig& rig) -> asio::awaitable<void> {
    auto policy = rig.gateway->policy()->text();
    policy.generation = 2;
    policy.levels.front().policy.budgets.up_bytes = 10;
    EXPECT_EQ(rig.gateway->apply(policy).error, "");
    auto const refused =
        co_await rig.secure(rig.connect("api.corp.example", rig.origin.port()), "api.corp.example");
    EXPECT_FALSE(refused);
    EXPECT_EQ(rig.origin.received, "");
    EXPECT_TRUE(rig.records.has("connection", "byte_budget"));
    EXPECT_TRUE(co_await eventually([&] { return find(rig.records, "flow", "ended"); }));
  });
}

TEST(Records, OnlyWhatIsTheSameIsCountedTogether) {
  wire::GatewayDecision one;
  one.kind = "request";
  one.decision = "denied";
  one.reason = "no_rule";
  one.host = "a.example";
  auto again = one;
  again.flow = "f-2";
  again.request = "f-2-1";
  again.duration_us = 7;
  EXPECT_EQ(repeat_key(one), repeat_key(again));
  auto const differs = [&](auto change) {
    auto other = one;
    change(other);
    return repeat_key(one) != repeat_key(other);
  };
  EXPECT_TRUE(differs([](auto& d) { d.port = 8443; }));
  EXPECT_TRUE(differs([](auto& d) { d.path = "/x|"; }));
  EXPECT_TRUE(differs([](auto& d) { d.method = "PUT"; }));
  EXPECT_TRUE(differs([](auto& d) { d.path = "/x"; }));
  EXPECT_TRUE(differs([](auto& d) { d.query = "x"; }));
  EXPECT_TRUE(differs([](auto& d) { d.authority = "b.example:443"; }));
  EXPECT_TRUE(differs([](auto& d) { d.sni = "b.example"; }));
  EXPECT_TRUE(differs([](auto& d) { d.level = "project"; }));
  EXPECT_TRUE(differs([](auto& d) { d.rule = "r"; }));
  EXPECT_TRUE(differs([](auto& d) { d.generation = 2; }));
}

}  // namespace
}  // namespace gateway
