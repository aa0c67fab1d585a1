#include "agent/testing.hpp"

/// Framing, error forms, the token and the plain endpoints.
namespace agent {
namespace {

using testing::Guest;
using testing::with_guest;

std::string hex_of(std::string_view bytes) {
  std::string out;
  for (char const c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string enveloped(std::uint8_t flags, std::string_view payload) {
  std::string out;
  append_envelope(out, flags, payload);
  return out;
}

TEST(Envelope, TheVectorsOfTheProtocol) {
  std::pair<std::string, std::string> const cases[] = {
      {R"({"event":{"start":{"pid":42}}})", "000000001e"},
      {R"({"event":{"data":{"stdout":"aGk="}}})", "0000000024"},
      {R"({"event":{"end":{"exited":true,"status":"exit status 0"}}})", "000000003a"},
  };
  for (auto const& [payload, head] : cases)
    EXPECT_EQ(hex_of(enveloped(0, payload).substr(0, 5)), head);
  EXPECT_EQ(hex_of(enveloped(2, end_payload({}))),
            "0200000002"
            "7b7d");
  auto const late = end_payload(rpc_fail(RpcCode::deadline_exceeded, "context deadline exceeded"));
  EXPECT_EQ(late,
            R"({"error":{"code":"deadline_exceeded","message":"context deadline exceeded"}})");
  EXPECT_EQ(hex_of(enveloped(2, late).substr(0, 5)), "020000004c");
}

TEST(Envelope, ParsesHoweverTheBytesAreCut) {
  auto const text = enveloped(0, "first") + enveloped(0, "") + enveloped(2, "{}");
  for (std::size_t step = 1; step <= text.size(); ++step) {
    EnvelopeParser parser(100);
    std::string seen;
    for (std::size_t at = 0; at < text.size(); at += step) {
      parser.feed(std::string_view(text).substr(at, step));
      for (auto one = parser.next().value(); one; one = parser.next().value()) {
        seen += fmt::format("{}:{} ", one->flags, one->payload);
      }
    }
    EXPECT_EQ(seen, "0:first 0: 2:{} ");
    EXPECT_TRUE(parser.empty());
  }
  EnvelopeParser small(3);
  small.feed(enveloped(0, "four"));
  EXPECT_EQ(small.next().error().code, RpcCode::resource_exhausted);
}

TEST(Fields, AreReadInAllTheFormsOfTheMapping) {
  auto const message = wire::parse_json(
      R"({"watcher_id":"w1","exitCode":"7","n":null,"flag":true,"d":3.0,"m":{},"sig":"B","raw":"aGk","other":[1]})");
  Fields fields(*message);
  EXPECT_EQ(fields.text("watcherId"), "w1");
  EXPECT_EQ(fields.u32("exitCode"), 7U);
  EXPECT_EQ(fields.text("n"), "");
  EXPECT_TRUE(fields.boolean("flag"));
  EXPECT_EQ(fields.u32("d"), 3U);
  EXPECT_NE(fields.message("m"), nullptr);
  EXPECT_EQ(fields.enumerator("sig", {{"A", 1}, {"B", 2}}), 2);
  EXPECT_EQ(fields.optional_bytes("raw"), "hi");
  EXPECT_FALSE(fields.problem());
  EXPECT_EQ(fields.u32("watcherId"), 0U);
  EXPECT_EQ(fields.problem()->message, "watcherId: expected an integer from 0 to 4294967295");
  EXPECT_EQ(fields.text("flag"), "");
  EXPECT_EQ(fields.problem()->message, "watcherId: expected an integer from 0 to 4294967295")
      << "the first problem stays";
}

TEST(Rpc, FailuresHaveTheFormOfTheirKindOfCall) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const unknown = co_await guest.call("Fly", "{}");
    EXPECT_EQ(unknown.status, 501);
    EXPECT_EQ(unknown.json().at("code").as_string(), "unimplemented");
    auto const broken = co_await guest.call("List", "{");
    EXPECT_EQ(broken.status, 400);
    EXPECT_EQ(broken.json().at("code").as_string(), "invalid_argument");
    auto const empty = co_await guest.call("List", "");
    EXPECT_EQ(empty.status, 200);
    auto const got = co_await guest.get("/process.Process/List");
    EXPECT_EQ(got.status, 405);
    testing::HeaderList const plain{{"content-type", "text/plain"}};
    auto const typed = co_await guest.request("POST", "/process.Process/List", plain, "{}");
    EXPECT_EQ(typed.status, 415);
    testing::HeaderList const binary{{"content-type", "application/proto"}};
    auto const proto = co_await guest.request("POST", "/process.Process/List", binary, "");
    EXPECT_EQ(proto.status, 415);
    auto const nowhere = co_await guest.request("POST", "/some.Service/Method", plain, "{}");
    EXPECT_EQ(nowhere.status, 404);
    EXPECT_EQ(nowhere.json().at("code").as_int64(), 404);
    auto const timed = co_await guest.call("List", "{}", {{"connect-timeout-ms", "soon"}});
    EXPECT_EQ(timed.status, 400);
    auto const large = co_await guest.call("List", std::string(rpc_message_bytes_max + 1, ' '));
    EXPECT_EQ(large.status, 429);
    EXPECT_EQ(large.json().at("code").as_string(), "resource_exhausted");
  });
}

TEST(Rpc, AStreamsRequestIsOneUncompressedEnvelope) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    testing::HeaderList const headers{{"content-type", "application/connect+json; charset=utf-8"}};
    auto const message = std::string(R"({"process":{"cmd":"/bin/true"}})");
    for (auto const& body : {std::string(),
                             std::string("\0\0", 2),
                             enveloped(1, message),
                             enveloped(0, message) + "x",
                             enveloped(0, message).substr(0, 20)}) {
      auto const answer = co_await guest.request("POST", "/process.Process/Start", headers, body);
      EXPECT_EQ(answer.status, 200);
      EXPECT_EQ(answer.headers.get("content-type"), "application/connect+json");
      EXPECT_EQ(static_cast<int>(answer.body.at(0)), 2);
      EXPECT_NE(answer.body.find("invalid_argument"), std::string::npos) << answer.body;
    }
    std::string huge("\0\xff\xff\xff\xff", 5);
    auto const answer = co_await guest.request("POST", "/process.Process/Start", headers, huge);
    EXPECT_NE(answer.body.find("resource_exhausted"), std::string::npos) << answer.body;
  });
}

TEST(Rpc, TheConnectionCarriesTheNextCallAfterAStream) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const connection = co_await guest.connect();
    for (int i = 0; i < 3; ++i) {
      http::RequestHead head{
          "POST", "/process.Process/Start", {{"content-type", "application/connect+json"}}};
      auto exchange = co_await connection->start(
          std::move(head), enveloped(0, R"({"process":{"cmd":"/bin/true"}})"));
      EXPECT_TRUE(exchange.has_value());
      if (!exchange) co_return;
      auto const body = co_await (*exchange)->body().read_all(10'000);
      EXPECT_TRUE(body && body->ends_with(enveloped(2, "{}")));
      exchange->reset();
      EXPECT_TRUE(connection->reusable());
    }
  });
}

TEST(Token, IsAskedForEverywhereButHealth) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    guest.agent->context().access_token = base::Secret("tok123");
    auto const health = co_await guest.get("/health");
    EXPECT_EQ(health.status, 204);
    EXPECT_EQ(health.body, "");
    for (std::string const path : {"/metrics", "/envs", "/nowhere"}) {
      auto const refused = co_await guest.get(path);
      EXPECT_EQ(refused.status, 401) << path;
      EXPECT_EQ(refused.json().at("code").as_int64(), 401);
      EXPECT_TRUE(refused.json().at("message").is_string());
    }
    auto const call = co_await guest.call("List", "{}");
    EXPECT_EQ(call.status, 401);
    auto const wrong = co_await guest.call("List", "{}", {{"X-Access-Token", "tok124"}});
    EXPECT_EQ(wrong.status, 401);
    auto const right = co_await guest.call("List", "{}", {{"X-Access-Token", "tok123"}});
    EXPECT_EQ(right.status, 200);
  });
}

TEST(Metrics, SayWhatTheMachineUses) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const answer = co_await guest.get("/metrics");
    auto const metrics = answer.json();
    for (auto const* key : {"ts",
                            "cpu_count",
                            "mem_total",
                            "mem_used",
                            "mem_cache",
                            "mem_total_mib",
                            "mem_used_mib",
                            "disk_used",
                            "disk_total"}) {
      EXPECT_GT(metrics.at(key).to_number<double>(), 0) << key;
    }
    EXPECT_EQ(metrics.at("commands").to_number<int>(), 0);
    EXPECT_GE(metrics.at("cpu_used_pct").to_number<double>(), 0);
    EXPECT_LE(metrics.at("cpu_used_pct").to_number<double>(), 100);
    EXPECT_LT(metrics.at("mem_used").to_number<double>(),
              metrics.at("mem_total").to_number<double>());
  });
}

}  // namespace
}  // namespace agent
