// What every request goes through, and the description that it is held to.
#include "controlplane/openapi.hpp"
#include "controlplane/testing.hpp"

#include <set>

#include <boost/json/serialize.hpp>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

/// Every "$ref" below `value` leads somewhere.
void check_references(json::value const& value) {
  EXPECT_FALSE(value.is_null()) << "a comma that YAML took for the end of a text";
  if (auto const* object = value.if_object()) {
    if (object->contains("$ref"))
      EXPECT_NE(schemas().resolve(value), nullptr) << json::serialize(value);
    for (auto const& member : *object)
      check_references(member.value());
  } else if (auto const* array = value.if_array()) {
    for (auto const& one : *array)
      check_references(one);
  }
}

TEST(Openapi, DescribesExactlyTheNativeRoutes) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    std::set<std::string> served;
    for (auto const& route : bench.api->router().routes()) {
      if (route.dialect == Dialect::native)
        served.insert(route.method + " " + route.pattern + " " + route.operation_id);
    }
    std::set<std::string> described;
    for (auto const& path : schemas().document().at("paths").as_object()) {
      for (auto const& member : path.value().as_object()) {
        if (member.key() == "parameters") continue;
        std::string method(member.key());
        std::ranges::transform(method, method.begin(), [](unsigned char c) {
          return static_cast<char>(std::toupper(c));
        });
        described.insert(method + " " + std::string(path.key()) + " " +
                         std::string(member.value().at("operationId").as_string()));
      }
    }
    EXPECT_EQ(served, described);
    auto const answer = co_await bench.ask("GET", "/openapi.json", "", "");
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.text, openapi_json());
  });
}

TEST(Openapi, IsWhole) {
  check_references(schemas().document());
  for (auto const& path : schemas().document().at("paths").as_object()) {
    std::set<std::string> declared;
    auto const collect = [&](json::value const& owner) {
      if (!owner.as_object().contains("parameters")) return;
      for (auto const& one : owner.at("parameters").as_array()) {
        auto const& parameter = schemas().resolve(one)->as_object();
        if (parameter.at("in").as_string() == "path")
          declared.insert(std::string(parameter.at("name").as_string()));
      }
    };
    collect(path.value());
    std::set<std::string> used;
    std::string_view rest = path.key();
    for (auto open = rest.find('{'); open != std::string_view::npos; open = rest.find('{')) {
      auto const close = rest.find('}');
      used.insert(std::string(rest.substr(open + 1, close - open - 1)));
      rest.remove_prefix(close + 1);
    }
    EXPECT_EQ(declared, used) << std::string_view(path.key());
    for (auto const& member : path.value().as_object()) {
      if (member.key() == "parameters") continue;
      EXPECT_TRUE(member.value().as_object().contains("responses")) << std::string_view(path.key());
      if (member.key() == "post") {
        bool const takes_key =
            json::serialize(member.value()).find("IdempotencyKey") != std::string::npos;
        EXPECT_TRUE(takes_key) << std::string_view(path.key())
                               << " does not say that it takes Idempotency-Key";
      }
    }
  }
}

TEST(Front, HeadIsGetWithoutItsBody) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const me = co_await bench.ask("GET", "/v1/me");
    auto const head = co_await bench.head("/v1/me");
    EXPECT_EQ(head.status, 200);
    EXPECT_TRUE(head.body.empty());
    EXPECT_EQ(head.headers.get("content-length"), std::to_string(me.text.size()));
    EXPECT_EQ(head.headers.get("content-type"), "application/json");
    auto const health = co_await bench.head("/health");
    EXPECT_EQ(health.status, 204);
    auto const unknown = co_await bench.head("/v1/sandboxes/i00000000000000000000");
    EXPECT_EQ(unknown.status, 404);
    auto const post_only = co_await bench.head("/v1/sandboxes/i00000000000000000000/pause");
    EXPECT_EQ(post_only.status, 405);
    // A stream begins and is over: nobody waits for what never comes.
    auto const events = co_await bench.head("/v1/events");
    EXPECT_EQ(events.status, 200);
    EXPECT_EQ(events.headers.get("content-type"), "text/event-stream");
    EXPECT_TRUE(events.body.empty());
  });
}

TEST(Front, HealthNeedsNoKeyAndErrorsHaveBodies) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const health = co_await bench.ask("GET", "/health", "", "");
    EXPECT_EQ(health.status, 204);
    EXPECT_TRUE(health.text.empty());
    auto const none = co_await bench.ask("GET", "/v1/me", "", "");
    EXPECT_EQ(none.status, 401);
    EXPECT_EQ(none.code(), "unauthenticated");
    EXPECT_EQ(none.headers.get("www-authenticate"), "Bearer");
    for (auto const* wrong : {"x", "e2b_0123456789012345678901234567890123456789", "e2b_ABCDEF"}) {
      auto const bad = co_await bench.ask("GET", "/v1/me", "", wrong);
      EXPECT_EQ(bad.status, 401) << wrong;
    }
    auto const path = co_await bench.ask("GET", "/v1/nothing");
    EXPECT_EQ(path.status, 404);
    EXPECT_EQ(path.code(), "not_found");
    auto const method = co_await bench.ask("DELETE", "/v1/me");
    EXPECT_EQ(method.status, 405);
    EXPECT_EQ(method.headers.get("allow"), "GET, HEAD");
    auto const escape = co_await bench.ask("GET", "/v1/sandboxes/%zz");
    EXPECT_EQ(escape.status, 400);
    auto const nul = co_await bench.ask("GET", "/v1/sandboxes/%00");
    EXPECT_EQ(nul.status, 400);
    // What is no UTF-8 is not repeated: the answer is JSON all the same.
    for (auto const* target : {"/v1/sandboxes?state=%ff", "/v1/sandboxes/%fe", "/sandboxes/%ff"}) {
      auto const bytes = co_await bench.ask("GET", target);
      EXPECT_GE(bytes.status, 400) << target;
      EXPECT_LT(bytes.status, 500) << target;
      EXPECT_FALSE(bytes.message().empty()) << target << ": " << bytes.text;
    }
    auto const query = co_await bench.ask("GET", "/v1/sandboxes?stat=running");
    EXPECT_EQ(query.status, 400);
    EXPECT_THAT(query.message(), HasSubstr("\"stat\""));
    Bench::Ask other{"GET", "/v1/me", "", "", {{"x-api-KEY", bench.key}}};
    auto const header = co_await bench.ask(other);
    EXPECT_EQ(header.status, 200);
    EXPECT_EQ(header.str("project"), bench.world.project);
  });
}

TEST(Front, BadBodiesNameTheField) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    struct Case {
      char const* body;
      char const* says;
    };
    for (auto const& one : {Case{"{\"tempate\":\"base\"}", "tempate"},
                            Case{"{\"vcpus\":\"two\"}", "vcpus: expected an integer"},
                            Case{"{\"vcpus\":0}", "vcpus: must be 1 to 32"},
                            Case{"{\"memory_mib\":-1}", "memory_mib"},
                            Case{"{\"disk_mib\":1024}", "disk_mib: at least 4096"},
                            Case{"{\"metadata\":{\"a\":1}}", "metadata.a: expected a string"},
                            Case{"{\"env\":{\"A=B\":\"x\"}}", "env: the name \"A=B\""},
                            Case{"{\"timeout_s\":0}", "timeout_s"},
                            Case{"{\"timeout_s\":-5}", "timeout_s"},
                            Case{"{\"timeout_s\":99999999999}", "timeout_s"},
                            Case{"{\"on_timeout\":\"sleep\"}", "on_timeout: expected"},
                            Case{"{\"idle_timeout_s\":-1}", "idle_timeout_s"},
                            Case{"{\"snapshot\":\"a\",\"template\":\"b\"}", "not both"},
                            Case{"{\"template\":7}", "template: expected a string"},
                            Case{"[]", "expected an object"},
                            Case{"{", "JSON"},
                            Case{"null", "expected an object"}}) {
      auto const answer = co_await bench.ask("POST", "/v1/sandboxes", one.body);
      EXPECT_EQ(answer.status, 400) << one.body << ": " << answer.text;
      EXPECT_EQ(answer.code(), "invalid_argument");
      EXPECT_THAT(answer.message(), HasSubstr(one.says)) << one.body;
    }
    auto const unknown = co_await bench.ask("POST", "/v1/sandboxes", R"({"template":"nope"})");
    EXPECT_EQ(unknown.status, 404);
    auto const large = co_await bench.ask(
        "POST", "/v1/sandboxes", "{\"template\":\"" + std::string(2 << 20, 'x') + "\"}");
    EXPECT_EQ(large.status, 413);
    EXPECT_EQ(large.code(), "too_large");
    auto const deep = co_await bench.ask("POST", "/v1/sandboxes", std::string(5000, '['));
    EXPECT_EQ(deep.status, 400);
    EXPECT_TRUE(bench.worker.starts.empty());
  });
}

TEST(Front, TooManyRequestsAreToldWhenToComeBack) {
  with_api(
      [](Bench& bench) -> asio::awaitable<void> {
        int refused = 0;
        for (int i = 0; i < 30; ++i) {
          auto const answer = co_await bench.ask("GET", "/v1/me");
          if (answer.status != 429) continue;
          ++refused;
          EXPECT_EQ(answer.code(), "exhausted");
          EXPECT_EQ(answer.headers.get("retry-after"), "1");
        }
        EXPECT_GT(refused, 5);
        // Another key has its own bucket.
        auto const other = co_await bench.make_key_of(bench.world.project, store::Role::reader);
        auto const answer = co_await bench.ask("GET", "/v1/me", "", other);
        EXPECT_EQ(answer.status, 200);
      },
      5);
}

TEST(Front, PagesOfOtherOriginsMayCallAndReadTheHeaders) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    Bench::Ask preflight{"OPTIONS",
                         "/v1/sandboxes",
                         "",
                         "",
                         {{"Origin", "https://a.example"},
                          {"Access-Control-Request-Method", "POST"},
                          {"Access-Control-Request-Headers", "authorization,content-type"}}};
    auto const allowed = co_await bench.ask(preflight);
    EXPECT_EQ(allowed.status, 204);
    EXPECT_EQ(allowed.headers.get("access-control-allow-origin"), "*");
    EXPECT_THAT(std::string(allowed.headers.get("access-control-allow-methods")),
                HasSubstr("POST"));
    EXPECT_EQ(allowed.headers.get("access-control-allow-headers"), "authorization,content-type");
    Bench::Ask get{"GET", "/v1/me", "", "own", {{"Origin", "https://a.example"}}};
    auto const got = co_await bench.ask(get);
    EXPECT_THAT(std::string(got.headers.get("access-control-expose-headers")),
                HasSubstr("X-Next-Token"));
    Bench::Ask failed{"GET", "/v1/nothing", "", "own", {{"Origin", "https://a.example"}}};
    auto const error = co_await bench.ask(failed);
    EXPECT_EQ(error.headers.get("access-control-allow-origin"), "*")
        << "a page may read errors too";
  });
}

TEST(Idempotency, ACreateIsCarriedOutOnce) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    Bench::Ask create{"POST",
                      "/v1/sandboxes?wait=20",
                      R"({"metadata":{"n":"1"}})",
                      "own",
                      {{"Idempotency-Key", "abc"}}};
    async::TaskGroup group(co_await asio::this_coro::executor);
    std::set<std::string> ids;
    auto one = [&]() -> asio::awaitable<void> {
      auto const answer = co_await bench.ask(create);
      EXPECT_EQ(answer.status, 201) << answer.text;
      if (answer.status == 201)
        ids.insert(std::string(answer["sandbox"].as_object().at("id").as_string()));
    };
    for (int i = 0; i < 6; ++i)
      group.spawn("create", one());
    co_await group.join();
    EXPECT_EQ(ids.size(), 1u);
    EXPECT_EQ(bench.worker.starts.size(), 1u);
    auto const replay = co_await bench.ask(create);
    EXPECT_EQ(replay.headers.get("idempotency-replayed"), "true");
    EXPECT_TRUE(replay["sandbox"].as_object().contains("access_token"));
    create.body = R"({"metadata":{"n":"2"}})";
    auto const other = co_await bench.ask(create);
    EXPECT_EQ(other.status, 409);
    create.headers = {{"Idempotency-Key", "with space"}};
    auto const bad = co_await bench.ask(create);
    EXPECT_EQ(bad.status, 400);
  });
}

TEST(Idempotency, AReplayShowsNoSecret) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    Bench::Ask create{"POST", "/v1/keys", R"({"name":"ci"})", "own", {{"Idempotency-Key", "k1"}}};
    auto const first = co_await bench.ask(create);
    EXPECT_EQ(first.status, 201) << first.text;
    EXPECT_TRUE(is_key(first.str("key")));
    auto const second = co_await bench.ask(create);
    EXPECT_EQ(second.status, 201);
    EXPECT_EQ(second.str("id"), first.str("id"));
    EXPECT_FALSE(second.body.as_object().contains("key"));
    EXPECT_EQ(second.headers.get("idempotency-replayed"), "true");
    // An error that a repeat cannot cure is replayed, too.
    Bench::Ask wrong{"POST", "/v1/keys", R"({"name":""})", "own", {{"Idempotency-Key", "k2"}}};
    auto const bad = co_await bench.ask(wrong);
    auto const again = co_await bench.ask(wrong);
    EXPECT_EQ(bad.status, 400);
    EXPECT_EQ(again.status, 400);
    EXPECT_EQ(again.headers.get("idempotency-replayed"), "true");
  });
}

}  // namespace
}  // namespace controlplane
