// The wrapper as a client sees it: HTTP in, HTTP out, over a real PostgreSQL and a worker without
// machines.
#include "controlplane/testing/e2b_over_http.hpp"

namespace controlplane::e2b {
namespace {

using namespace std::chrono_literals;
using namespace over_http;
using domain::SandboxState;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> ids_of(json::value const& list) {
  std::vector<std::string> ids;
  for (auto const& one : list.as_array())
    ids.emplace_back(one.at("sandboxID").as_string());
  return ids;
}

TEST(E2bCreate, TheCapturedBodyOfTheOldClientMakesASandbox) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const made = co_await bench.call(
        "POST",
        "/sandboxes",
        R"({"templateID":"base","allow_internet_access":true,"autoPause":false,"envVars":{"A":"b"},"metadata":{"k":"v"},"secure":true,"timeout":60})");
    EXPECT_EQ(made.status, 201) << made.text;
    EXPECT_EQ(made.body.at("domain"), "sbx.test:7443");
    EXPECT_EQ(made.body.at("clientID"), "6532622b");
    EXPECT_EQ(made.body.at("envdVersion"), "0.6.4");
    EXPECT_EQ(made.body.at("envdAccessToken").as_string().size(), 64U);
    EXPECT_FALSE(made.body.as_object().contains("trafficAccessToken"));
    auto const id = std::string(made.body.at("sandboxID").as_string());
    EXPECT_TRUE(base::is_short_id('i', id));
    EXPECT_EQ(bench.worker.starts.size(), 1U);
    auto const& start = bench.worker.starts.at(0);
    EXPECT_EQ(start.sandbox, id);
    EXPECT_EQ(start.access_token, made.body.at("envdAccessToken").as_string());
    EXPECT_EQ(start.env.at("A"), "b");
    EXPECT_EQ(start.env.at("E2B_SANDBOX"), "true");
    EXPECT_EQ(start.env.at("E2B_SANDBOX_ID"), id);
    EXPECT_EQ(start.env.at("E2B_TEMPLATE_ID"), made.body.at("templateID").as_string());
    auto const shown = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_EQ(shown.status, 200);
    EXPECT_EQ(shown.body.at("state"), "running");
    EXPECT_EQ(shown.body.at("metadata").at("k"), "v");
    EXPECT_EQ(shown.body.at("envdAccessToken"), made.body.at("envdAccessToken"));
    EXPECT_EQ(shown.body.at("allowInternetAccess"), true);
    EXPECT_EQ(shown.body.at("lifecycle").at("onTimeout"), "kill");
    auto const lasts = *parse_rfc3339(shown.body.at("endAt").as_string()) -
                       *parse_rfc3339(shown.body.at("startedAt").as_string());
    EXPECT_EQ(lasts, 60s);
  };
  with_bench(body);
}

TEST(E2bCreate, DefaultsOfBothVersions) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const lasts = [&](json::value const& shown) {
      return *parse_rfc3339(shown.at("endAt").as_string()) -
             *parse_rfc3339(shown.at("startedAt").as_string());
    };
    auto const old = co_await bench.create(R"({"templateID":"base"})");
    auto const old_shown = co_await bench.call("GET", "/sandboxes/" + old);
    EXPECT_EQ(lasts(old_shown.body), 15s);
    auto const made =
        co_await bench.call("POST", "/v2/sandboxes", R"({"templateID":"base","secure":false})");
    EXPECT_EQ(made.status, 201);
    EXPECT_TRUE(made.body.as_object().contains("envdAccessToken")) << "v2 is always secured";
    auto const new_shown = co_await bench.call(
        "GET", "/sandboxes/" + std::string(made.body.at("sandboxID").as_string()));
    EXPECT_EQ(lasts(new_shown.body), 300s);
  };
  with_bench(body);
}

TEST(E2bCreate, InsecureAndPrivateSandboxesHaveTheTokensTheyShould) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const open = co_await bench.call(
        "POST", "/sandboxes", R"({"templateID":"base","timeout":60,"secure":false})");
    EXPECT_EQ(open.status, 201);
    EXPECT_FALSE(open.body.as_object().contains("envdAccessToken"));
    EXPECT_EQ(bench.worker.starts.at(0).access_token, "");
    auto const closed = co_await bench.call(
        "POST",
        "/sandboxes",
        R"({"templateID":"base","timeout":60,"secure":true,"network":{"allowPublicTraffic":false,"maskRequestHost":"localhost:${PORT}"}})");
    EXPECT_EQ(closed.status, 201) << closed.text;
    EXPECT_EQ(closed.body.at("trafficAccessToken").as_string().size(), 64U);
    EXPECT_NE(closed.body.at("trafficAccessToken"), closed.body.at("envdAccessToken"));
    auto const id = std::string(closed.body.at("sandboxID").as_string());
    auto const shown = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_EQ(shown.body.at("network").at("maskRequestHost"), "localhost:${PORT}");
    auto const again =
        co_await bench.call("POST", "/sandboxes/" + id + "/connect", R"({"timeout":1})");
    EXPECT_EQ(again.body.at("trafficAccessToken"), closed.body.at("trafficAccessToken"));
  };
  with_bench(body);
}

TEST(E2bCreate, WhatIsWrongIsRefusedWithAReasonAndMakesNothing) {
  struct Case {
    char const* body;
    int status;
    char const* message;
  };

  static constexpr Case cases[] = {
      {R"({"templateID":"no-such-template","timeout":60})",
       404,
       "template 'no-such-template' not found"},
      {R"({"templateID":"base:no-such-tag","timeout":60})",
       404,
       "template 'base:no-such-tag' not found"},
      {R"({"templateID":"team/snap:default","timeout":60})", 404, "not found"},
      {R"({"templateID":"a b","timeout":60})", 400, "may hold"},
      {R"({"timeout":60})", 400, "templateID: required"},
      {R"({"templateID":"base","timeout":0})", 400, "greater than 0"},
      {R"({"templateID":"base","timeout":-1})", 400, "negative"},
      {R"({"templateID":"base","timeout":1000000000})",
       400,
       "Timeout cannot be greater than 720 hours"},
      {R"({"templateID":"base","timeout":9223372036854775808})", 400, "timeout"},
      {R"({"templateID":"base","timeout":"60"})", 400, "timeout: expected an integer"},
      {R"({"templateID":"base","timeout":60,"metadata":{"a":1}})",
       400,
       "metadata.a: expected a string"},
      {R"({"templateID":"base","timeout":60,"metadata":{"a":"\u0000"}})", 400, "NUL"},
      {R"({"templateID":"base","timeout":60,"envVars":{"a=b":"c"}})", 400, "envVars"},
      {R"({"templateID":"base","timeout":60,"autoPause":true,"autoPauseMemory":false})",
       501,
       "autoPauseMemory"},
      {R"({"templateID":"base","timeout":60,"volumeMounts":[{"name":"v","path":"/v"}]})",
       501,
       "volumes"},
      {R"({"templateID":"base","timeout":60,"network":{"rules":{"*.x.com":[{}]}}})",
       400,
       "exact host names"},
      {R"({"templateID":"base","timeout":60,"network":{"egressProxy":{"address":"a:1"}}})",
       501,
       "egressProxy"},
      {R"({"templateID":"base","timeout":60,"network":{"denyOut":["x.com"]}})",
       400,
       "invalid denied CIDR x.com"},
      {R"({"templateID":"base","timeout":60,"secure":false,"network":{"allowPublicTraffic":false}})",
       400,
       "secure"},
      {R"({"templateID":)", 400, ""},
      {R"([])", 400, "expected an object"},
  };
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    for (auto const& one : cases) {
      for (auto const* path : {"/sandboxes", "/v2/sandboxes"}) {
        // v2 has no `secure`: it is always on.
        if (std::string_view(one.message) == "secure" && std::string_view(path) == "/v2/sandboxes")
          continue;
        auto const answer = co_await bench.call("POST", path, one.body);
        EXPECT_EQ(answer.status, one.status) << path << " " << one.body << " " << answer.text;
        EXPECT_THAT(answer.text, HasSubstr(one.message)) << path << " " << one.body;
      }
    }
    EXPECT_TRUE(bench.worker.starts.empty());
    EXPECT_THAT(store::testing::query(bench.conninfo, "select public_id from sandboxes"),
                ::testing::IsEmpty());
  };
  with_bench(body);
}

TEST(E2bCreate, AWorkersRefusalIsToldAndNothingIsLeft) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    bench.worker.start_refusal.emplace(base::Code::exhausted,
                                       "no memory is left for another sandbox");
    auto const full =
        co_await bench.call("POST", "/sandboxes", R"({"templateID":"base","timeout":60})");
    EXPECT_EQ(full.status, 429) << full.text;
    EXPECT_THAT(full.text, HasSubstr("no memory is left"));
    EXPECT_TRUE(full.headers.find("Retry-After"));
    auto const list = co_await bench.call("GET", "/v2/sandboxes");
    EXPECT_EQ(list.text, "[]");
  };
  with_bench(body);
}

TEST(E2bCreate, TheSameIdempotencyKeyMakesOne) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    std::vector<std::string> ids;
    for (int i = 0; i < 2; ++i) {
      http::RequestHead head;
      head.method = "POST";
      head.target = "/v2/sandboxes";
      head.headers = {{"X-API-KEY", bench.key},
                      {"Idempotency-Key", "once-1"},
                      {"Content-Type", "application/json"}};
      auto answer =
          co_await bench.client.request(std::move(head), R"({"templateID":"base"})", soon());
      EXPECT_EQ(taken(answer).status, 201) << answer->body;
      ids.emplace_back(wire::parse_json(answer->body)->at("sandboxID").as_string());
    }
    EXPECT_EQ(ids[0], ids[1]);
    EXPECT_EQ(bench.worker.starts.size(), 1U);
  };
  with_bench(body);
}

TEST(E2bList, NewestFirstInPagesWithoutATokenOnTheLast) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const first = co_await bench.create();
    auto const second = co_await bench.create();
    auto const third = co_await bench.create();
    auto const one = co_await bench.call("GET", "/v2/sandboxes?limit=2");
    EXPECT_THAT(ids_of(one.body), ::testing::ElementsAre(third, second));
    EXPECT_EQ(one.headers.get("X-Total-Running"), "3");
    auto const token = std::string(one.headers.get("X-Next-Token"));
    EXPECT_FALSE(token.empty());
    auto const two = co_await bench.call("GET", "/v2/sandboxes?limit=2&nextToken=" + token);
    EXPECT_THAT(ids_of(two.body), ::testing::ElementsAre(first));
    EXPECT_FALSE(two.headers.find("X-Next-Token"));
    auto const exact = co_await bench.call("GET", "/v2/sandboxes?limit=3&state=running%2Cpaused");
    EXPECT_EQ(exact.body.as_array().size(), 3U);
    EXPECT_FALSE(exact.headers.find("X-Next-Token"));
    auto const oldest = co_await bench.call("GET", "/v2/sandboxes?order=asc&limit=1");
    EXPECT_THAT(ids_of(oldest.body), ::testing::ElementsAre(first));
    auto const paused = co_await bench.call("GET", "/v2/sandboxes?state=paused");
    EXPECT_EQ(paused.text, "[]");
    auto const old_list = co_await bench.call("GET", "/sandboxes");
    EXPECT_EQ(ids_of(old_list.body).size(), 3U);
  };
  with_bench(body);
}

TEST(E2bList, TheClientsTripleEscapedFilterFindsAndOthersDoNot) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id =
        co_await bench.create(R"({"templateID":"base","timeout":60,"metadata":{"k 1":"v&="}})");
    co_await bench.create();
    auto const found =
        co_await bench.call("GET", "/v2/sandboxes?metadata=k%2525201%3Dv%252526%25253D");
    EXPECT_THAT(ids_of(found.body), ::testing::ElementsAre(id));
    auto const none = co_await bench.call("GET", "/v2/sandboxes?metadata=k%3Dother");
    EXPECT_EQ(none.text, "[]");
    auto const by_template = co_await bench.call("GET", "/v2/sandboxes?template=base");
    EXPECT_EQ(ids_of(by_template.body).size(), 2U);
    auto const later =
        co_await bench.call("GET", "/v2/sandboxes?startedAfter=2999-01-01T00:00:00Z");
    EXPECT_EQ(later.text, "[]");
  };
  with_bench(body);
}

TEST(E2bList, AMalformedFilterIsNeverEverything) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    co_await bench.create();
    for (auto const* query : {"limit=0",
                              "limit=101",
                              "limit=x",
                              "state=gone",
                              "state=",
                              "order=up",
                              "nextToken=x",
                              "metadata=x",
                              "metadata=%25",
                              "startedAfter=yesterday",
                              "unknown=1",
                              "metadata=a%3Db&unknown=1"}) {
      auto const answer = co_await bench.call("GET", std::string("/v2/sandboxes?") + query);
      EXPECT_EQ(answer.status, 400) << query << " " << answer.text;
    }
  };
  with_bench(body);
}

TEST(E2bKill, TwiceIsTrueThenNotFoundAndItVanishes) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    auto const killed = co_await bench.call("DELETE", "/sandboxes/" + id);
    EXPECT_EQ(killed.status, 204);
    EXPECT_EQ(killed.text, "");
    EXPECT_FALSE(bench.worker.machines.contains(id)) << "the answer comes when nothing is left";
    for (auto const* method : {"DELETE", "GET"}) {
      auto const gone = co_await bench.call(method, "/sandboxes/" + id);
      EXPECT_EQ(gone.status, 404);
      EXPECT_EQ(gone.body.at("message").as_string(),
                "Sandbox \"" + id + "\" doesn't exist or you don't have access to it");
    }
    auto const list = co_await bench.call("GET", "/v2/sandboxes");
    EXPECT_EQ(list.text, "[]");
    auto const legacy = co_await bench.create();
    auto const with_client = co_await bench.call("DELETE", "/sandboxes/" + legacy + "-6532622b");
    EXPECT_EQ(with_client.status, 204);
  };
  with_bench(body);
}

TEST(E2bTimeout, IsFromNowMayShortenAndZeroEndsIt) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    auto const set =
        co_await bench.call("POST", "/sandboxes/" + id + "/timeout", R"({"timeout":10})");
    EXPECT_EQ(set.status, 204);
    auto const shown = co_await bench.call("GET", "/sandboxes/" + id);
    auto const left =
        *parse_rfc3339(shown.body.at("endAt").as_string()) - base::system_clock().wall_now();
    EXPECT_GT(left, 5s);
    EXPECT_LE(left, 10s);
    for (auto const* wrong :
         {R"({"timeout":-1})", R"({"timeout":99999999})", R"({})", R"({"timeout":"1"})", "x"}) {
      auto const refused = co_await bench.call("POST", "/sandboxes/" + id + "/timeout", wrong);
      EXPECT_EQ(refused.status, 400) << wrong;
    }
    auto const zero =
        co_await bench.call("POST", "/sandboxes/" + id + "/timeout", R"({"timeout":0})");
    EXPECT_EQ(zero.status, 204);
    auto const due = co_await bench.store.sandboxes.claim_due("test", 10s, 10, soon());
    EXPECT_EQ(taken(due).size(), 1U);
    auto const late =
        co_await bench.call("POST", "/sandboxes/" + id + "/timeout", R"({"timeout":10})");
    EXPECT_EQ(late.status, 404);
  };
  with_bench(body);
}

TEST(E2bTimeout, RefreshesNeverShorten) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    auto const before = co_await bench.call("GET", "/sandboxes/" + id);
    auto const short_one =
        co_await bench.call("POST", "/sandboxes/" + id + "/refreshes", R"({"duration":1})");
    EXPECT_EQ(short_one.status, 204);
    auto const empty = co_await bench.call("POST", "/sandboxes/" + id + "/refreshes");
    EXPECT_EQ(empty.status, 204);
    auto const after = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_EQ(after.body.at("endAt"), before.body.at("endAt"));
    auto const long_one =
        co_await bench.call("POST", "/sandboxes/" + id + "/refreshes", R"({"duration":3600})");
    EXPECT_EQ(long_one.status, 204);
    auto const extended = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_NE(extended.body.at("endAt"), before.body.at("endAt"));
    auto const wrong =
        co_await bench.call("POST", "/sandboxes/" + id + "/refreshes", R"({"duration":3601})");
    EXPECT_EQ(wrong.status, 400);
  };
  with_bench(body);
}

TEST(E2bConnect, ExtendsButNeverShortensAndKeepsTheTokens) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const made =
        co_await bench.call("POST", "/sandboxes", R"({"templateID":"base","timeout":200})");
    auto const id = std::string(made.body.at("sandboxID").as_string());
    auto const before = co_await bench.call("GET", "/sandboxes/" + id);
    for (auto const* path : {"/sandboxes/", "/v2/sandboxes/"}) {
      auto const again = co_await bench.call("POST", path + id + "/connect", R"({"timeout":10})");
      EXPECT_EQ(again.status, 200) << again.text;
      EXPECT_EQ(again.body, made.body);
    }
    auto const same = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_EQ(same.body.at("endAt"), before.body.at("endAt")) << "byte for byte";
    auto const defaulted = co_await bench.call("POST", "/v2/sandboxes/" + id + "/connect", "{}");
    EXPECT_EQ(defaulted.status, 200);
    auto const extended = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_NE(extended.body.at("endAt"), before.body.at("endAt")) << "300 s is later than 200 s";
    auto const zero =
        co_await bench.call("POST", "/sandboxes/" + id + "/connect", R"({"timeout":0})");
    EXPECT_EQ(zero.status, 400);
    auto const nobody = co_await bench.call(
        "POST", "/sandboxes/i00000000000000000000/connect", R"({"timeout":10})");
    EXPECT_EQ(nobody.status, 404);
    store::testing::query(
        bench.conninfo,
        "update sandboxes set state = 'deleting', end_reason = 'user' where public_id = '" + id +
            "'");
    auto const dying =
        co_await bench.call("POST", "/sandboxes/" + id + "/connect", R"({"timeout":10})");
    EXPECT_EQ(dying.status, 409);
  };
  with_bench(body);
}

TEST(E2bPause, KeepsTheSandboxItsTokensAndItsTimeout) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const made = co_await bench.call(
        "POST",
        "/sandboxes",
        R"({"templateID":"base","timeout":200,"autoPause":true,"autoResume":{"enabled":true}})");
    EXPECT_EQ(made.status, 201) << made.text;
    auto const path = "/sandboxes/" + std::string(made.body.at("sandboxID").as_string());
    auto const paused = co_await bench.call("POST", path + "/pause");
    EXPECT_EQ(paused.status, 204) << paused.text;
    auto const again = co_await bench.call("POST", path + "/pause", "{}");
    EXPECT_EQ(again.status, 409) << again.text;
    auto const shown = co_await bench.call("GET", path);
    EXPECT_EQ(shown.body.at("state"), "paused");
    EXPECT_TRUE(shown.body.at("domain").is_null());
    EXPECT_EQ(shown.body.at("lifecycle").at("onTimeout"), "pause");
    EXPECT_EQ(shown.body.at("lifecycle").at("autoResume"), true);
    auto const list = co_await bench.call("GET", "/v2/sandboxes?state=paused");
    EXPECT_EQ(list.body.as_array().size(), 1u);
    auto const late = co_await bench.call("POST", path + "/timeout", R"({"timeout":50})");
    EXPECT_EQ(late.status, 404);
    auto const back = co_await bench.call("POST", path + "/connect", R"({"timeout":400})");
    EXPECT_EQ(back.status, 201) << back.text;
    EXPECT_EQ(back.body, made.body) << "the same id and tokens";
    auto const running = co_await bench.call("GET", path);
    EXPECT_EQ(running.body.at("state"), "running");
    auto const left = store::testing::query(
        bench.conninfo,
        "select (deadline_at > now() + interval '390 seconds')::text from sandboxes");
    EXPECT_EQ(left.front(), "true");
    auto const twice = co_await bench.call("POST", path + "/resume", R"({"timeout":100})");
    EXPECT_EQ(twice.status, 409);
    auto const asleep = co_await bench.call("POST", path + "/pause");
    EXPECT_EQ(asleep.status, 204);
    auto const resumed = co_await bench.call("POST", path + "/resume", R"({"timeout":100})");
    EXPECT_EQ(resumed.status, 201) << resumed.text;
    auto const last = co_await bench.call("POST", path + "/pause");
    EXPECT_EQ(last.status, 204);
    auto const killed = co_await bench.call("DELETE", path);
    EXPECT_EQ(killed.status, 204);
    EXPECT_TRUE(bench.worker.machines.empty());
  };
  with_bench(body);
}

/// Its machine dies while the worker captures it, and a controller writes that down.
asio::awaitable<void> dies_while_pausing(Bench* bench, std::string id) {
  auto const pausing = [bench] {
    return store::testing::query(bench->conninfo,
                                 "select public_id from sandboxes where state = 'suspending'");
  };
  while (pausing().empty())
    co_await async::sleep_for(5ms);
  bench->worker.machines.erase(id);
  co_await async::sleep_for(200ms);
  auto row = co_await bench->store.sandboxes.find_live(id, soon());
  store::End end;
  end.id = (**row).id;
  end.event = domain::SandboxEvent::machine_failed;
  end.actor = "worker";
  end.reason = domain::EndReason::guest_panic;
  auto const ended = co_await bench->store.sandboxes.end(std::move(end), soon());
  EXPECT_TRUE(ended.has_value() && *ended);
}

TEST(E2bPause, OfAMachineThatDiesUnderItIsNotFoundAndSaysWhy) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    bench.worker.move_delay = 100ms;
    async::TaskGroup group(co_await asio::this_coro::executor);
    group.spawn("death", dies_while_pausing(&bench, id));
    auto const answer = co_await bench.call("POST", "/sandboxes/" + id + "/pause");
    // Not 409: to clients that is "already paused".
    EXPECT_EQ(answer.status, 404) << answer.text;
    EXPECT_THAT(answer.text, HasSubstr("kernel panicked"));
    co_await group.join();
  };
  with_bench(body);
}

TEST(E2bSnapshots, AreTakenListedStartedFromAndDeletedAsTemplates) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    auto const taken = co_await bench.call("POST", "/sandboxes/" + id + "/snapshots", "{}");
    EXPECT_EQ(taken.status, 201) << taken.text;
    auto const snapshot = std::string(taken.body.at("snapshotID").as_string());
    EXPECT_TRUE(snapshot.ends_with(":default"));
    auto const list = co_await bench.call("GET", "/snapshots?sandboxID=" + id + "&limit=1");
    EXPECT_EQ(list.body.as_array().size(), 1u);
    auto const copy = co_await bench.call(
        "POST", "/sandboxes", R"({"timeout":60,"templateID":")" + snapshot + R"("})");
    EXPECT_EQ(copy.status, 201) << copy.text;
    EXPECT_EQ(bench.worker.starts.back().from_snapshot + ":default", snapshot);
    auto const gone = co_await bench.call("DELETE", "/templates/" + snapshot);
    EXPECT_EQ(gone.status, 204) << gone.text;
    auto const again = co_await bench.call("DELETE", "/templates/" + snapshot);
    EXPECT_EQ(again.status, 404) << again.text;
    auto const forked =
        co_await bench.call("POST", "/sandboxes/" + id + "/fork", R"({"count":2,"timeout":30})");
    EXPECT_EQ(forked.status, 201) << forked.text;
    EXPECT_EQ(forked.body.as_array().size(), 2u);
    for (auto const& one : forked.body.as_array())
      EXPECT_NE(one.at("sandbox").at("sandboxID").as_string(), id);
  };
  with_bench(body);
}

TEST(E2bMetrics, AreSelectedByWholeSeconds) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    auto const none = co_await bench.call("GET", "/sandboxes/" + id + "/metrics");
    EXPECT_EQ(none.text, "[]");
    std::vector<store::MetricRow> samples(3);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      samples[i].sandbox = id;
      samples[i].at = *parse_rfc3339(fmt::format("2030-01-01T00:00:0{}.7Z", i));
      samples[i].cpu_count = 1;
      samples[i].cpu_used_pct = 12.5;
      samples[i].memory_used = i;
    }
    auto const added = co_await bench.store.metrics.add(samples, soon());
    EXPECT_TRUE(added);
    auto const all = co_await bench.call("GET", "/sandboxes/" + id + "/metrics");
    EXPECT_EQ(all.body.as_array().size(), 3U);
    EXPECT_EQ(all.body.as_array()[0].at("memUsed"), 0) << "oldest first";
    auto const some =
        co_await bench.call("GET", "/sandboxes/" + id + "/metrics?start=1893456001&end=1893456002");
    EXPECT_EQ(some.body.as_array().size(), 2U);
    auto const many = co_await bench.call(
        "GET", "/sandboxes/metrics?sandbox_ids=" + id + ",i00000000000000000000");
    EXPECT_EQ(many.body.at("sandboxes").as_object().size(), 1U);
    EXPECT_EQ(many.body.at("sandboxes").at(id).at("memUsed"), 2);
    for (auto const* wrong : {"start=x", "start=-1", "start=2&end=1", "end=1e3"}) {
      auto const refused = co_await bench.call("GET", "/sandboxes/" + id + "/metrics?" + wrong);
      EXPECT_EQ(refused.status, 400) << wrong;
    }
  };
  with_bench(body);
}

TEST(E2bLogs, TellWhatHappened) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    co_await async::sleep_for(100ms);
    auto const logs = co_await bench.call("GET", "/sandboxes/" + id + "/logs");
    EXPECT_EQ(logs.status, 200) << logs.text;
    EXPECT_EQ(logs.body.at("logs").as_array().size(), 2U);
    EXPECT_EQ(logs.body.at("logEntries").as_array()[1].at("message"), "sandbox.running");
    EXPECT_EQ(logs.body.at("logEntries").as_array()[1].at("level"), "info");
    auto const newest =
        co_await bench.call("GET", "/v2/sandboxes/" + id + "/logs?direction=backward&limit=1");
    EXPECT_EQ(newest.body.at("logs").as_array()[0].at("message"), "sandbox.running");
    auto const found = co_await bench.call("GET", "/v2/sandboxes/" + id + "/logs?search=creating");
    EXPECT_EQ(found.body.at("logs").as_array().size(), 1U);
    auto const errors = co_await bench.call("GET", "/v2/sandboxes/" + id + "/logs?level=error");
    EXPECT_EQ(errors.body.at("logs").as_array().size(), 0U);
    for (auto const* wrong : {"direction=up", "level=loud", "limit=0", "cursor=x"}) {
      auto const refused = co_await bench.call("GET", "/v2/sandboxes/" + id + "/logs?" + wrong);
      EXPECT_EQ(refused.status, 400) << wrong;
    }
  };
  with_bench(body);
}

TEST(E2bTemplates, AreListedFoundByNameIdAndTag) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const list = co_await bench.call("GET", "/templates?teamID=x");
    EXPECT_EQ(list.status, 200);
    EXPECT_EQ(list.body.as_array().size(), 1U);
    auto const id = std::string(list.body.as_array()[0].at("templateID").as_string());
    auto const alias = co_await bench.call("GET", "/templates/aliases/base");
    EXPECT_EQ(alias.status, 200);
    EXPECT_EQ(alias.body.at("templateID").as_string(), id);
    for (auto const& name :
         {id, std::string("base"), std::string("base:default"), std::string("base%3Adefault")}) {
      auto const found = co_await bench.call("GET", "/templates/" + name);
      EXPECT_EQ(found.status, 200) << name << found.text;
      EXPECT_EQ(found.body.at("templateID").as_string(), id);
      EXPECT_EQ(found.body.at("builds").as_array().size(), 1U);
    }
    auto const tags = co_await bench.call("GET", "/templates/base/tags");
    EXPECT_EQ(tags.status, 200);
    EXPECT_EQ(tags.body.as_array()[0].at("tag"), "default");
    for (auto const* path : {"/templates/aliases/nope",
                             "/templates/team/snap:default",
                             "/templates/team%2Fsnap%3Adefault",
                             "/templates/aliases/a/b",
                             "/templates/nope/tags",
                             "/templates/.."}) {
      auto const missing = co_await bench.call("GET", path);
      EXPECT_EQ(missing.status, 404) << path << missing.text;
    }
    // Deleting a snapshot that does not exist is False for clients, not an exception.
    auto const snapshot = co_await bench.call("DELETE", "/templates/team/snap:default");
    EXPECT_EQ(snapshot.status, 404);
    auto const made =
        co_await bench.call("POST", "/sandboxes", R"({"templateID":")" + id + R"(","timeout":60})");
    EXPECT_EQ(made.status, 201) << made.text;
  };
  with_bench(body);
}

TEST(E2bLater, WhatIsNotThereSaysSoAndStrangersLearnNothing) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    for (auto const* what : {"pause", "resume", "snapshots", "fork"}) {
      auto const unknown =
          co_await bench.call("POST", fmt::format("/sandboxes/i00000000000000000000/{}", what));
      EXPECT_EQ(unknown.status, 404) << what;
    }
    for (auto const* what : {"pause", "snapshots"}) {
      auto const own = co_await bench.call(
          "POST", fmt::format("/sandboxes/{}/{}", id, what), R"({"memory":false})");
      EXPECT_EQ(own.status, 501) << what << own.text;
      EXPECT_THAT(own.text, HasSubstr("in this version"));
    }
    std::vector<std::pair<std::string, std::string>> const others{
        {"POST", "/v3/templates"},
        {"POST", "/v2/templates"},
        {"POST", "/templates/tags"},
        {"DELETE", "/templates/tags"},
        {"GET", "/volumes"},
        {"POST", "/volumes"},
        {"DELETE", "/volumes/x"},
        {"GET", "/secrets"},
        {"DELETE", "/templates/base"},
        {"PATCH", "/v2/templates/base"},
        {"GET", "/templates/base/files/abc"}};
    for (auto const& [method, path] : others) {
      auto const answer = co_await bench.call(method, path, method == "GET" ? "" : "{}");
      EXPECT_EQ(answer.status, 501) << method << path << answer.text;
    }
  };
  with_bench(body);
}

TEST(E2bTenancy, AnotherProjectsKeyFindsNothingAnywhere) {
  auto body = [](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.create();
    auto const project =
        co_await bench.store.projects.create(bench.world.organisation, "other", {}, soon());
    auto const stranger = co_await bench.make_key_of(taken(project).public_id);
    for (auto const& route : bench.router.routes()) {
      auto path = route.pattern;
      auto const place = path.find("/sandboxes/{id}");
      if (place == std::string::npos) continue;
      path.replace(path.find("{id}"), 4, id);
      auto const body_text = route.method == "GET" ? "" : R"({"timeout":60})";
      auto const answer = co_await bench.call(route.method, path, body_text, stranger);
      EXPECT_EQ(answer.status, 404) << route.method << " " << path << " " << answer.text;
    }
    auto const list = co_await bench.call("GET", "/v2/sandboxes", "", stranger);
    EXPECT_EQ(list.text, "[]");
    auto const many =
        co_await bench.call("GET", "/sandboxes/metrics?sandbox_ids=" + id, "", stranger);
    EXPECT_EQ(many.text, R"({"sandboxes":{}})");
    auto const untouched = co_await bench.call("GET", "/sandboxes/" + id);
    EXPECT_EQ(untouched.status, 200);
    for (auto const* key : {"", "nonsense", "e2b_0000000000000000000000000000000000000000"}) {
      auto const refused = co_await bench.call("GET", "/v2/sandboxes", "", key);
      EXPECT_EQ(refused.status, 401) << key;
    }
  };
  with_bench(body);
}

}  // namespace
}  // namespace controlplane::e2b
