// The native API as a client sees it: HTTP in, HTTP out, with a real PostgreSQL, a worker and a
// guest without machines. Every answer is compared with api/openapi.yaml on its way.
#include "controlplane/api.hpp"

#include "async/testing.hpp"
#include "base/id.hpp"
#include "controller/testing.hpp"
#include "controlplane/admin_key.hpp"
#include "controlplane/fake_guest.hpp"
#include "controlplane/json_schema.hpp"
#include "controlplane/openapi.hpp"
#include "http/client.hpp"
#include "store/testing.hpp"

#include <filesystem>
#include <fstream>
#include <set>

#include <boost/json/serialize.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using controller::testing::FakeWorker;
using store::testing::Postgres;
using testing::FakeGuest;
using ::testing::HasSubstr;
using testing::Schemas;

namespace fs = std::filesystem;

base::Deadline soon() {
  return base::system_clock().in(30s);
}

template <class T> T taken(base::Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message() + " | " + result.error().detail());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

Schemas const& schemas() {
  static Schemas const all(taken(wire::parse_json(openapi_json(), 8 << 20)));
  return all;
}

struct Answer {
  int status = 0;
  http::Headers headers;
  json::value body;
  std::string text;

  json::value const& operator[](std::string_view name) const { return body.as_object().at(name); }

  std::string str(std::string_view name) const {
    return std::string(body.as_object().at(name).as_string());
  }

  std::string code() const {
    return body.is_object() && body.as_object().contains("code") ? str("code") : std::string();
  }

  std::string message() const {
    return body.is_object() && body.as_object().contains("message") ? str("message")
                                                                    : std::string();
  }
};

/// An API with everything around it, in a directory of its own.
class Bench {
 public:
  Bench(asio::any_io_executor on, std::string dir, std::uint32_t rate)
      : executor_(on),
        directory_(std::move(dir)),
        worker(on, directory_ + "/worker"),
        guest(on, directory_ + "/proxy/proxy.sock"),
        group_(on) {
    for (auto const* below : {"/worker", "/api", "/proxy", "/data"})
      fs::create_directories(directory_ + below);
    config.run_dir = directory_;
    config.data_dir = directory_ + "/data";
    config.requests_per_second_max = rate;
    database.conninfo = Postgres::instance().make_database();
    client_ = std::make_unique<http::Client>(
        on, [path = config.api_socket()] { return net::connect_unix(path); });
  }

  asio::awaitable<void> begin() {
    worker.report.memory_mib_total = 1 << 20;
    worker.report.vcpus_total = 1000;
    worker.report.disk_mib_total = 1 << 24;
    worker.report.slots_total = 1000;
    worker.report.builds = {"b0"};
    worker.start();
    guest.start();
    start_api();
    auto made = co_await store::testing::make_world(api->store());
    world = taken(std::move(made));
    taken(co_await api->store().nodes.upsert("node-1", directory_ + "/worker", soon()));
    co_await api->nodes().refresh();
    key = co_await make_key_of(world.project, store::Role::admin, true);
  }

  void start_api() {
    api = std::make_unique<Api>(
        executor_, config, database, taken(Tokens::load(config.data_dir + "/api/token.key")));
    group_.spawn("api", run_api());
  }

  asio::awaitable<void> run_api() {
    auto ended = co_await api->run();
    if (!ended) ADD_FAILURE() << ended.error().message();
  }

  asio::awaitable<void> stop_api() {
    group_.cancel();
    co_await group_.join();
    api.reset();
  }

  asio::awaitable<void> close() {
    co_await stop_api();
    co_await worker.stop();
    co_await guest.stop();
  }

  asio::awaitable<std::string> make_key_of(std::string project,
                                           store::Role role,
                                           bool installation = false) {
    auto const text = make_key();
    store::NewKey wanted;
    wanted.project_public_id = project;
    wanted.name = "test";
    wanted.role = role;
    wanted.installation = installation;
    wanted.key_sha256 = sha256_hex(text);
    wanted.prefix = text.substr(0, 8);
    auto const made = co_await api->store().keys.create(std::move(wanted), soon());
    if (!made) throw std::runtime_error(made.error().message());
    co_return text;
  }

  struct Ask {
    std::string method, target, body;
    std::string with_key = "own";
    http::Headers headers;
  };

  asio::awaitable<Answer> ask(Ask asked) {
    http::RequestHead head;
    head.method = asked.method;
    head.target = asked.target;
    head.headers = asked.headers;
    head.headers.add("Host", "api");
    if (asked.with_key == "own") asked.with_key = key;
    if (!asked.with_key.empty()) head.headers.add("Authorization", "Bearer " + asked.with_key);
    auto response = co_await client_->request(std::move(head), asked.body, soon());
    auto got = taken(std::move(response));
    Answer answer{got.status, std::move(got.headers), nullptr, std::move(got.body)};
    auto const type = std::string(answer.headers.get("content-type"));
    if (type == "application/json") answer.body = taken(wire::parse_json(answer.text, 8 << 20));
    compare(asked, answer, type);
    co_return answer;
  }

  asio::awaitable<Answer> ask(std::string method,
                              std::string target,
                              std::string body = {},
                              std::string with_key = "own") {
    Ask asked;
    asked.method = std::move(method);
    asked.target = std::move(target);
    asked.body = std::move(body);
    asked.with_key = std::move(with_key);
    return ask(std::move(asked));
  }

  /// A running sandbox.
  asio::awaitable<std::string> sandbox(std::string body = "{}") {
    auto made = co_await ask("POST", "/v1/sandboxes?wait=20", std::move(body));
    if (made.status != 201) throw std::runtime_error(made.text);
    auto const id = std::string(made["sandbox"].as_object().at("id").as_string());
    guest.token = std::string(made["sandbox"].as_object().at("access_token").as_string());
    co_return id;
  }

  http::Client& client() { return *client_; }

 private:
  void compare(Ask const& asked, Answer const& answer, std::string const& type) {
    EXPECT_FALSE(answer.headers.get("x-request-id").empty()) << asked.target;
    auto const matched =
        api->router().match(asked.method, asked.target.substr(0, asked.target.find('?')));
    bool const known = matched && matched->route && !matched->route->operation_id.empty();
    if (answer.status >= 400 && answer.body.is_object() && asked.target.starts_with("/v1/")) {
      auto const& error = schemas().document().at("components").at("schemas").at("Error");
      EXPECT_EQ(schemas().misfit(answer.body, error), "")
          << asked.method << ' ' << asked.target << ": " << answer.text;
      return;
    }
    if (!known || !answer.body.is_object()) return;
    auto const* schema =
        schemas().of_answer(asked.method, matched->route->pattern, answer.status, type);
    EXPECT_NE(schema, nullptr) << asked.method << ' ' << matched->route->pattern
                               << " may not answer " << answer.status;
    if (schema)
      EXPECT_EQ(schemas().misfit(answer.body, *schema), "")
          << asked.method << ' ' << asked.target << ": " << answer.text;
  }

  asio::any_io_executor executor_;
  std::string directory_;

 public:
  wire::Config config;
  store::DatabaseOptions database;
  FakeWorker worker;
  FakeGuest guest;
  std::unique_ptr<Api> api;
  store::testing::World world;
  std::string key;

 private:
  std::unique_ptr<http::Client> client_;
  async::TaskGroup group_;
};

void with_api(std::function<asio::awaitable<void>(Bench&)> body, std::uint32_t rate = 10'000) {
  auto const directory = fmt::format("/tmp/space-api-{}-{}", ::getpid(), base::random_hex(4));
  auto test = [&]() -> asio::awaitable<void> {
    Bench bench(co_await asio::this_coro::executor, directory, rate);
    std::exception_ptr failure;
    try {
      auto beginning = bench.begin();
      co_await std::move(beginning);
      auto running = body(bench);
      co_await std::move(running);
    } catch (...) {
      failure = std::current_exception();
    }
    auto closing = bench.close();
    co_await std::move(closing);
    if (failure) std::rethrow_exception(failure);
  };
  async::run_test(test, 60s);
  std::error_code ignored;
  fs::remove_all(directory, ignored);
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

/// Every "$ref" below `value` leads somewhere.
void check_references(json::value const& value) {
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
    EXPECT_EQ(method.headers.get("allow"), "GET");
    auto const escape = co_await bench.ask("GET", "/v1/sandboxes/%zz");
    EXPECT_EQ(escape.status, 400);
    auto const nul = co_await bench.ask("GET", "/v1/sandboxes/%00");
    EXPECT_EQ(nul.status, 400);
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
                            Case{"{\"env\":{\"A=B\":\"x\"}}", "A=B"},
                            Case{"{\"timeout_s\":0}", "timeout_s"},
                            Case{"{\"timeout_s\":-5}", "timeout_s"},
                            Case{"{\"timeout_s\":99999999999}", "timeout_s"},
                            Case{"{\"on_timeout\":\"suspend\"}", "cannot suspend yet"},
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

TEST(Cors, OnlyListedOrigins) {
  Cors const cors({"https://a.example"});
  EXPECT_EQ(cors.headers({{"Origin", "https://a.example"}}).get("access-control-allow-origin"),
            "https://a.example");
  EXPECT_FALSE(cors.headers({{"Origin", "https://b.example"}})
                   .find("access-control-allow-origin")
                   .has_value());
  EXPECT_EQ(cors.headers({{"Origin", "https://b.example"}}).get("vary"), "Origin");
}

TEST(Sandboxes, CreateListGetDelete) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const made =
        co_await bench.ask("POST",
                           "/v1/sandboxes?wait=20",
                           R"({"metadata":{"a":"b"},"env":{"SECRET":"hush"},"timeout_s":120})");
    EXPECT_EQ(made.status, 201) << made.text;
    auto const& sandbox = made["sandbox"].as_object();
    auto const id = std::string(sandbox.at("id").as_string());
    EXPECT_EQ(sandbox.at("state"), "running");
    EXPECT_EQ(sandbox.at("timeout_s"), 120);
    EXPECT_TRUE(sandbox.contains("deadline_at"));
    EXPECT_EQ(made["operation"].as_object().at("state"), "succeeded");
    EXPECT_THAT(made.text, ::testing::Not(HasSubstr("hush")));
    EXPECT_EQ(bench.worker.starts.size(), 1u);
    auto const& start = bench.worker.starts.front();
    EXPECT_EQ(start.sandbox, id);
    EXPECT_EQ(start.epoch, 1u);
    EXPECT_EQ(start.build, "b0");
    EXPECT_EQ(start.env.at("SECRET"), "hush");
    EXPECT_EQ(start.access_token, std::string(sandbox.at("access_token").as_string()));
    EXPECT_EQ(start.access_token.size(), 64u);
    // Nothing that opens it is stored, and the environment is sealed.
    auto const stored = store::testing::query(bench.database.conninfo,
                                              "select row_to_json(s)::text from sandboxes s");
    EXPECT_THAT(stored.front(), ::testing::Not(HasSubstr(start.access_token)));
    EXPECT_THAT(stored.front(), ::testing::Not(HasSubstr("hush")));

    auto const got = co_await bench.ask("GET", "/v1/sandboxes/" + id + "?timeline=1");
    EXPECT_EQ(got.status, 200);
    std::vector<std::string> steps;
    for (auto const& step : got["timeline"].as_array())
      steps.emplace_back(step.at("step").as_string());
    EXPECT_THAT(steps,
                ::testing::ElementsAre("placed", "committed", "worker.vmm_started", "started"));
    auto const list =
        co_await bench.ask("GET", "/v1/sandboxes?metadata=a%3Db&state=running&template=base");
    EXPECT_EQ(list["sandboxes"].as_array().size(), 1u);
    auto const nothing = co_await bench.ask("GET", "/v1/sandboxes?metadata=a%3Dc");
    EXPECT_TRUE(nothing["sandboxes"].as_array().empty());
    auto const usage = co_await bench.ask("GET", "/v1/usage");
    EXPECT_EQ(usage["used"].as_object().at("sandboxes"), 1);

    auto const deleted = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(deleted.status, 200) << deleted.text;
    EXPECT_EQ(deleted["sandbox"].as_object().at("state"), "deleted");
    EXPECT_EQ(bench.worker.deletes_of(id), 1u);
    auto const ended = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(ended.status, 200) << "an ended sandbox keeps its cause";
    EXPECT_EQ(ended.str("end_reason"), "user");
    EXPECT_FALSE(ended.body.as_object().contains("access_token"));
    auto const again = co_await bench.ask("DELETE", "/v1/sandboxes/" + id);
    EXPECT_EQ(again.status, 404);
    EXPECT_THAT(again.message(), HasSubstr("has ended"));
    auto const history = co_await bench.ask("GET", "/v1/sandboxes?state=deleted,failed");
    EXPECT_EQ(history["sandboxes"].as_array().size(), 1u);
    auto const mixed = co_await bench.ask("GET", "/v1/sandboxes?state=deleted,running");
    EXPECT_EQ(mixed.status, 400);
    auto const after = co_await bench.ask("GET", "/v1/usage");
    EXPECT_EQ(after["used"].as_object().at("sandboxes"), 0);
  });
}

TEST(Sandboxes, WithoutWaitTheOperationTells) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    bench.worker.start_delay = 150ms;
    auto const made = co_await bench.ask("POST", "/v1/sandboxes");
    EXPECT_EQ(made.status, 202) << made.text;
    EXPECT_EQ(made["sandbox"].as_object().at("state"), "creating");
    auto const operation = std::string(made["operation"].as_object().at("id").as_string());
    auto const now = co_await bench.ask("GET", "/v1/operations/" + operation);
    EXPECT_EQ(now.str("state"), "running");
    auto const later = co_await bench.ask("GET", "/v1/operations/" + operation + "?wait=20");
    EXPECT_EQ(later.str("state"), "succeeded");
    auto const list = co_await bench.ask("GET", "/v1/operations?limit=1");
    EXPECT_EQ(list["operations"].as_array().size(), 1u);
    for (auto const* wait : {"-1", "601", "x", "nan", "1e400"}) {
      auto const bad = co_await bench.ask("GET", "/v1/operations/" + operation + "?wait=" + wait);
      EXPECT_EQ(bad.status, 400) << wait;
    }
    auto const none = co_await bench.ask("GET", "/v1/operations/x00000000000000000000");
    EXPECT_EQ(none.status, 404);
  });
}

TEST(Sandboxes, AFullWorkerIsPassedOver) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    // The only node refuses: the create fails with the worker's own word, and nothing is left.
    bench.worker.start_refusal = base::Error(base::Code::exhausted, "no slot is free");
    auto const refused = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
    EXPECT_EQ(refused.status, 429) << refused.text;
    EXPECT_THAT(refused.message(), HasSubstr("no slot is free"));
    auto const usage = co_await bench.ask("GET", "/v1/usage");
    EXPECT_EQ(usage["used"].as_object().at("sandboxes"), 0);
    auto const history = co_await bench.ask("GET", "/v1/sandboxes?state=failed");
    EXPECT_EQ(history["sandboxes"].at(0).at("end_reason"), "start_failed");
    EXPECT_EQ(history["sandboxes"].at(0).at("end_detail"), "no slot is free");
    // With a second node it goes there, one epoch on.
    auto const second_dir = bench.config.run_dir + "/second";
    fs::create_directories(second_dir);
    FakeWorker second(co_await asio::this_coro::executor, second_dir);
    second.report = bench.worker.report;
    second.report.name = "node-2";
    second.start();
    taken(co_await bench.api->store().nodes.upsert("node-2", second_dir, soon()));
    for (int i = 0; i < 100 && bench.api->nodes().all().size() < 2; ++i)
      co_await async::sleep_for(100ms);
    for (int i = 0; i < 6; ++i) {
      auto const made = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
      EXPECT_EQ(made.status, 201) << made.text;
      if (made.status != 201) break;
      EXPECT_EQ(made["sandbox"].as_object().at("node"), "node-2");
    }
    auto const epochs =
        store::testing::query(bench.database.conninfo, "select max(epoch)::text from sandboxes");
    EXPECT_EQ(epochs.front(), "2") << "at least one of six was sent to the full one first";
    co_await second.stop();
  });
}

TEST(Sandboxes, AWorkerThatRestartsIsWaitedFor) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await bench.worker.stop();
    auto const made = co_await bench.ask("POST", "/v1/sandboxes");
    EXPECT_EQ(made.status, 202) << made.text;
    co_await async::sleep_for(300ms);
    bench.worker.start();
    auto const operation = std::string(made["operation"].as_object().at("id").as_string());
    auto const done = co_await bench.ask("GET", "/v1/operations/" + operation + "?wait=20");
    EXPECT_EQ(done.str("state"), "succeeded") << done.text;
  });
}

TEST(Sandboxes, ADeleteInTheMiddleOfACreateWins) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    bench.worker.start_delay = 300ms;
    auto const made = co_await bench.ask("POST", "/v1/sandboxes");
    auto const id = std::string(made["sandbox"].as_object().at("id").as_string());
    auto const operation = std::string(made["operation"].as_object().at("id").as_string());
    auto const deleted = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(deleted.status, 200) << deleted.text;
    auto const create = co_await bench.ask("GET", "/v1/operations/" + operation + "?wait=20");
    EXPECT_EQ(create.str("state"), "failed");
    EXPECT_EQ(create["error"].as_object().at("code"), "conflict");
    co_await async::sleep_for(400ms);
    auto const row = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(row.str("state"), "deleted");
  });
}

TEST(Sandboxes, QuotaIsExhaustedNotOverrun) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const set = co_await bench.ask(
        "PATCH", "/v1/projects/" + bench.world.project, R"({"quota":{"sandboxes":3}})");
    EXPECT_EQ(set.status, 200) << set.text;
    EXPECT_FALSE(set["quota"].as_object().contains("vcpus"));
    async::TaskGroup group(co_await asio::this_coro::executor);
    int made = 0;
    int refused = 0;
    auto one = [&]() -> asio::awaitable<void> {
      auto const answer = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
      if (answer.status == 201) ++made;
      if (answer.status == 429) ++refused;
    };
    for (int i = 0; i < 10; ++i)
      group.spawn("create", one());
    co_await group.join();
    EXPECT_EQ(made, 3);
    EXPECT_EQ(refused, 7);
  });
}

TEST(Sandboxes, TimeoutMetadataAndToken) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const none =
        co_await bench.ask("PATCH", path, R"({"timeout_s":null,"metadata":{"x":"y"}})");
    EXPECT_EQ(none.status, 200) << none.text;
    EXPECT_FALSE(none.body.as_object().contains("deadline_at"));
    EXPECT_EQ(none["metadata"].as_object().at("x"), "y");
    auto const set = co_await bench.ask("PATCH", path, R"({"timeout_s":60})");
    EXPECT_TRUE(set.body.as_object().contains("deadline_at"));
    for (auto const* wrong : {R"({"timeout_s":-1})",
                              R"({"timeout_s":1e9})",
                              R"({"timeout_s":"5"})",
                              R"({"state":"paused"})"}) {
      auto const bad = co_await bench.ask("PATCH", path, wrong);
      EXPECT_EQ(bad.status, 400) << wrong;
    }
    auto const old = bench.guest.token;
    auto const rotated = co_await bench.ask("POST", path + "/token");
    EXPECT_EQ(rotated.status, 200) << rotated.text;
    EXPECT_NE(rotated.str("access_token"), old);
    EXPECT_EQ(bench.worker.tokens[id], rotated.str("access_token"));
    auto const metrics = co_await bench.ask("GET", path + "/metrics");
    EXPECT_EQ(metrics["memory_total_bytes"], 500);
    auto const console = co_await bench.ask("GET", path + "/console");
    EXPECT_THAT(console.text, HasSubstr("booted"));
    EXPECT_EQ(console.headers.get("x-content-type-options"), "nosniff");
  });
}

TEST(Sandboxes, ListsInPages) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    std::set<std::string> made;
    for (int i = 0; i < 5; ++i) {
      auto const id = co_await bench.sandbox();
      made.insert(id);
    }
    std::set<std::string> seen;
    std::string target = "/v1/sandboxes?limit=2";
    int pages = 0;
    for (; pages < 5; ++pages) {
      auto const page = co_await bench.ask("GET", target);
      for (auto const& one : page["sandboxes"].as_array())
        seen.insert(std::string(one.at("id").as_string()));
      if (!page.body.as_object().contains("next_cursor")) break;
      target = "/v1/sandboxes?limit=2&cursor=" + page.str("next_cursor");
    }
    EXPECT_EQ(pages, 2);
    EXPECT_EQ(seen, made);
    for (auto const* wrong : {"cursor=x",
                              "cursor=1-",
                              "cursor=1-iABC",
                              "limit=0",
                              "limit=101",
                              "limit=x",
                              "metadata=a",
                              "metadata=%3D",
                              "state=nope"}) {
      auto const bad = co_await bench.ask("GET", std::string("/v1/sandboxes?") + wrong);
      EXPECT_EQ(bad.status, 400) << wrong;
    }
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

TEST(Keys, RevocationAndExpiryActAtOnce) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const made = co_await bench.ask("POST", "/v1/keys", R"({"name":"short","role":"member"})");
    auto const secret = made.str("key");
    auto const before = co_await bench.ask("GET", "/v1/sandboxes", "", secret);
    EXPECT_EQ(before.status, 200);
    auto const revoked = co_await bench.ask("DELETE", "/v1/keys/" + made.str("id"));
    EXPECT_EQ(revoked.status, 200);
    EXPECT_TRUE(revoked.body.as_object().contains("revoked_at"));
    auto const after = co_await bench.ask("GET", "/v1/sandboxes", "", secret);
    EXPECT_EQ(after.status, 401);
    auto const brief =
        co_await bench.ask("POST", "/v1/keys", R"({"name":"brief","expires_in_s":1})");
    auto const alive = co_await bench.ask("GET", "/v1/me", "", brief.str("key"));
    EXPECT_EQ(alive.status, 200);
    co_await async::sleep_for(1100ms);
    auto const expired = co_await bench.ask("GET", "/v1/me", "", brief.str("key"));
    EXPECT_EQ(expired.status, 401);
    auto const listed = co_await bench.ask("GET", "/v1/keys");
    EXPECT_THAT(listed.text, ::testing::Not(HasSubstr(secret)));
    auto const stored = store::testing::query(bench.database.conninfo,
                                              "select row_to_json(k)::text from api_keys k");
    for (auto const& row : stored)
      EXPECT_THAT(row, ::testing::Not(HasSubstr(secret)));
  });
}

TEST(Keys, RolesDecide) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const reader = co_await bench.make_key_of(bench.world.project, store::Role::reader);
    auto const member = co_await bench.make_key_of(bench.world.project, store::Role::member);
    auto const admin = co_await bench.make_key_of(bench.world.project, store::Role::admin);
    auto const id = co_await bench.sandbox();
    auto const seen = co_await bench.ask("GET", "/v1/sandboxes/" + id, "", reader);
    EXPECT_EQ(seen.status, 200);
    EXPECT_FALSE(seen.body.as_object().contains("access_token")) << "a reader may not enter";
    for (auto const* target :
         {"/v1/sandboxes", "/v1/sandboxes/{}/commands", "/v1/keys", "/v1/projects"}) {
      auto const denied =
          co_await bench.ask("POST", fmt::format(fmt::runtime(target), id), "{}", reader);
      EXPECT_EQ(denied.status, 403) << target;
      EXPECT_EQ(denied.code(), "denied");
    }
    auto const kill = co_await bench.ask("DELETE", "/v1/sandboxes/" + id, "", reader);
    EXPECT_EQ(kill.status, 403);
    auto const key = co_await bench.ask("POST", "/v1/keys", R"({"name":"x"})", member);
    EXPECT_EQ(key.status, 403);
    auto const up =
        co_await bench.ask("POST", "/v1/keys", R"({"name":"x","installation":true})", admin);
    EXPECT_EQ(up.status, 403);
    auto const project = co_await bench.ask("POST", "/v1/projects", R"({"name":"x"})", admin);
    EXPECT_EQ(project.status, 403);
    auto const nodes = co_await bench.ask("GET", "/v1/nodes", "", admin);
    EXPECT_EQ(nodes.status, 403);
    auto const mine = co_await bench.ask("GET", "/v1/nodes");
    EXPECT_EQ(mine["nodes"].at(0).at("name"), "node-1");
    auto const node = co_await bench.ask("GET", "/v1/nodes/node-1");
    EXPECT_EQ(node.str("state"), "ready");
  });
}

// Generated from the route table, so that a new route is covered by itself.
TEST(Tenancy, AStrangerSeesNothingOnAnyRoute) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const operations = co_await bench.ask("GET", "/v1/operations");
    auto const keys = co_await bench.ask("GET", "/v1/keys");
    auto const theirs = co_await bench.ask("POST", "/v1/projects", R"({"name":"stranger"})");
    EXPECT_EQ(theirs.status, 201) << theirs.text;
    auto const stranger = co_await bench.make_key_of(theirs.str("id"), store::Role::admin);
    std::map<std::string, std::string> const ids{
        {"sandbox", id},
        {"command", "77"},
        {"operation", std::string(operations["operations"].at(0).at("id").as_string())},
        {"key", std::string(keys["keys"].at(0).at("id").as_string())},
        {"project", bench.world.project},
        {"organisation", "o00000000000000000000"},
        {"node", "node-1"},
        {"template", "not-mine"}};
    auto const before = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    int tried = 0;
    for (auto const& route : bench.api->router().routes()) {
      if (route.dialect != Dialect::native || route.pattern.find('{') == std::string::npos)
        continue;
      auto target = route.pattern;
      for (auto const& [name, value] : ids) {
        auto const at = target.find("{" + name + "}");
        if (at != std::string::npos) target.replace(at, name.size() + 2, value);
      }
      EXPECT_EQ(target.find('{'), std::string::npos) << "no id for " << target;
      auto const answer =
          co_await bench.ask(route.method,
                             target,
                             route.method == "GET" || route.method == "DELETE" ? "" : "{}",
                             stranger);
      EXPECT_EQ(answer.status, 404) << route.method << ' ' << target << ": " << answer.text;
      EXPECT_FALSE(answer.message().empty());
      ++tried;
    }
    EXPECT_GE(tried, 25);
    auto const after = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(before.text, after.text);
    EXPECT_TRUE(bench.guest.calls.empty());
    auto const list = co_await bench.ask("GET", "/v1/sandboxes", "", stranger);
    EXPECT_TRUE(list["sandboxes"].as_array().empty());
    auto const projects = co_await bench.ask("GET", "/v1/projects", "", stranger);
    EXPECT_EQ(projects["projects"].as_array().size(), 1u);
    auto const foreign =
        co_await bench.ask("POST",
                           "/v1/keys",
                           fmt::format(R"({{"name":"x","project":"{}"}})", bench.world.project),
                           stranger);
    EXPECT_EQ(foreign.status, 404);
  });
}

TEST(Owners, OrganisationsProjectsTemplatesAudit) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const organisation = co_await bench.ask("POST", "/v1/organisations", R"({"name":"acme"})");
    EXPECT_EQ(organisation.status, 201) << organisation.text;
    auto const twice = co_await bench.ask("POST", "/v1/organisations", R"({"name":"acme"})");
    EXPECT_EQ(twice.status, 409);
    auto const got = co_await bench.ask("GET", "/v1/organisations/" + organisation.str("id"));
    EXPECT_EQ(got.str("name"), "acme");
    auto const project = co_await bench.ask(
        "POST",
        "/v1/projects",
        fmt::format(R"({{"name":"p","organisation":"{}","quota":{{"vcpus":4}}}})",
                    organisation.str("id")));
    EXPECT_EQ(project.status, 201) << project.text;
    EXPECT_EQ(project["quota"].as_object().at("vcpus"), 4);
    auto const all = co_await bench.ask("GET", "/v1/organisations");
    EXPECT_EQ(all["organisations"].as_array().size(), 2u);
    auto const templates = co_await bench.ask("GET", "/v1/templates");
    EXPECT_EQ(templates["templates"].at(0).at("name"), "base");
    auto const detail = co_await bench.ask("GET", "/v1/templates/base");
    EXPECT_EQ(detail["tags"].at(0).at("tag"), "default");
    for (auto const* name : {"", " x", "a/b", "x\\u0000"}) {
      auto const bad =
          co_await bench.ask("POST", "/v1/projects", fmt::format(R"({{"name":"{}"}})", name));
      EXPECT_EQ(bad.status, 400) << name;
    }
    co_await async::sleep_for(1200ms);
    auto const audit = co_await bench.ask("GET", "/v1/audit?limit=3");
    EXPECT_EQ(audit["uses"].as_array().size(), 3u) << audit.text;
    EXPECT_TRUE(audit.body.as_object().contains("next_cursor"));
    auto const rest =
        co_await bench.ask("GET", "/v1/audit?limit=100&cursor=" + audit.str("next_cursor"));
    EXPECT_FALSE(rest["uses"].as_array().empty());
    for (auto const& use : rest["uses"].as_array())
      EXPECT_NE(use.at("method"), "GET");
    auto const keys = co_await bench.ask("GET", "/v1/keys");
    EXPECT_TRUE(keys["keys"].at(0).as_object().contains("last_used_at"));
  });
}

/// Reads a stream of server-sent events until `enough` says so or 10 s are over.
asio::awaitable<std::string> read_stream(Bench& bench,
                                         std::string target,
                                         http::Headers headers,
                                         std::function<bool(std::string const&)> enough) {
  http::RequestHead head;
  head.method = "GET";
  head.target = std::move(target);
  head.headers = std::move(headers);
  head.headers.add("Host", "api");
  head.headers.add("Authorization", "Bearer " + bench.key);
  auto exchange = co_await bench.client().stream(std::move(head), {}, soon());
  auto stream = taken(std::move(exchange));
  std::string text;
  std::array<char, 4096> chunk{};
  auto const until = base::system_clock().in(10s);
  while (!enough(text)) {
    auto reading = stream->body().read_some(chunk);
    auto got = co_await async::with_deadline(until, std::move(reading));
    if (!got || *got == 0) break;
    text.append(chunk.data(), *got);
  }
  co_return text;
}

std::size_t count_of(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

std::string last_id(std::string const& text) {
  auto const at = text.rfind("id: ");
  return text.substr(at + 4, text.find('\n', at) - at - 4);
}

TEST(Events, AStreamGoesOnWhereItWasCut) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    std::vector<std::string> made;
    for (int i = 0; i < 3; ++i) {
      auto const id = co_await bench.sandbox();
      made.push_back(id);
    }
    auto const two = [](std::string const& text) { return count_of(text, "\n\n") >= 2; };
    auto const first = co_await read_stream(bench, "/v1/events", {{"Last-Event-ID", "0-0"}}, two);
    EXPECT_THAT(first, HasSubstr("event: sandbox.creating"));
    auto const rest = co_await read_stream(
        bench, "/v1/events", {{"Last-Event-ID", last_id(first)}}, [](std::string const& text) {
          return count_of(text, "event: sandbox.running") >= 2;
        });
    auto const whole = first + rest;
    for (auto const& id : made)
      EXPECT_GE(count_of(whole, id), 2u) << id;
    EXPECT_LE(count_of(whole, "event: sandbox.creating"), 3u) << "nothing comes twice";
    auto const one =
        co_await read_stream(bench,
                             "/v1/sandboxes/" + made[1] + "/events",
                             {{"Last-Event-ID", "0-0"}},
                             [](std::string const& text) { return count_of(text, "\n\n") >= 2; });
    EXPECT_EQ(count_of(one, made[0]), 0u);
    EXPECT_EQ(count_of(one, "event: "), 2u);
    Bench::Ask bad{"GET", "/v1/events", "", "own", {{"Last-Event-ID", "nonsense"}}};
    auto const refused = co_await bench.ask(bad);
    EXPECT_EQ(refused.status, 400);
  });
}

TEST(Events, ArriveWhileOneListens) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    async::TaskGroup group(co_await asio::this_coro::executor);
    std::string seen;
    auto listen = [&]() -> asio::awaitable<void> {
      seen = co_await read_stream(bench, "/v1/events", {}, [](std::string const& text) {
        return text.find("sandbox.deleted") != std::string::npos;
      });
    };
    group.spawn("listen", listen());
    co_await async::sleep_for(200ms);
    auto const id = co_await bench.sandbox();
    auto const deleted = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(deleted.status, 200);
    co_await group.join();
    for (auto const* type :
         {"sandbox.creating", "sandbox.running", "sandbox.deleting", "sandbox.deleted"}) {
      EXPECT_EQ(count_of(seen, std::string("event: ") + type + "\n"), 1u) << type << "\n" << seen;
    }
  });
}

TEST(Internal, RoutesAndChanges) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto connect = [path = bench.config.internal_socket()] { return net::connect_unix(path); };
    http::Client internal(co_await asio::this_coro::executor, connect);
    auto get = [&](std::string target) -> asio::awaitable<http::Response> {
      http::RequestHead head;
      head.method = "GET";
      head.target = std::move(target);
      head.headers.add("Host", "api");
      auto response = co_await internal.request(std::move(head), {}, soon());
      co_return taken(std::move(response));
    };
    auto const by_id = co_await get("/route?sandbox=" + id);
    EXPECT_EQ(by_id.status, 200);
    auto const route = taken(wire::decode_text<wire::Route>(by_id.body));
    EXPECT_EQ(route.sandbox, id);
    EXPECT_EQ(route.state, "running");
    EXPECT_TRUE(route.secure);
    EXPECT_TRUE(route.public_traffic);
    EXPECT_EQ(route.worker, bench.config.run_dir + "/worker");
    EXPECT_EQ(route.access_token_sha256, sha256_hex(bench.guest.token));
    auto const by_token = co_await get("/route?token_sha256=" + sha256_hex(bench.guest.token));
    EXPECT_EQ(by_token.status, 200);
    for (auto const* wrong : {"/route",
                              "/route?sandbox=",
                              "/route?sandbox=i00000000000000000000",
                              "/route?token_sha256=",
                              "/route?token_sha256=zz",
                              "/nope"}) {
      auto const none = co_await get(wrong);
      EXPECT_EQ(none.status, 404) << wrong;
    }
    http::RequestHead head;
    head.method = "GET";
    head.target = "/changes";
    head.headers.add("Host", "api");
    auto changes = taken(co_await internal.stream(std::move(head), {}, soon()));
    auto const rotated = co_await bench.ask("POST", "/v1/sandboxes/" + id + "/token");
    EXPECT_EQ(rotated.status, 200);
    auto const old = co_await get("/route?token_sha256=" + sha256_hex(bench.guest.token));
    EXPECT_EQ(old.status, 404) << "a rotated token is dead with the next request";
    auto const deleted = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(deleted.status, 200);
    std::string text;
    std::array<char, 1024> chunk{};
    while (count_of(text, "\"ended\"") == 0) {
      auto got = taken(co_await async::with_deadline(soon(), changes->body().read_some(chunk)));
      if (got == 0) break;
      text.append(chunk.data(), got);
    }
    EXPECT_EQ(count_of(text, "token_revoked"), 1u);
    auto const gone = co_await get("/route?sandbox=" + id);
    EXPECT_EQ(gone.status, 404);
  });
}

TEST(Commands, StartWaitAndCollect) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands";
    bench.guest.frames = {
        R"({"event":{"data":{"stdout":"NDIK"}}})",
        R"({"event":{"keepalive":{}}})",
        R"({"event":{"data":{"stderr":"//8="}}})",
        R"({"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}})"};
    auto const done = co_await bench.ask(
        "POST",
        path + "?wait=10",
        R"~({"argv":["python3","-c","print(6*7)"],"env":{"A":"b"},"cwd":"/tmp","user":"root","timeout_s":1.5})~");
    EXPECT_EQ(done.status, 201) << done.text;
    EXPECT_EQ(done.str("state"), "ended");
    EXPECT_EQ(done["exit_code"], 3);
    EXPECT_EQ(done.str("stdout"), "42\n");
    EXPECT_EQ(done.str("stderr"), "\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_TRUE(base::is_short_id('c', done.str("id")));
    auto const& [method, message] = bench.guest.calls.back();
    EXPECT_EQ(method, "process.Process/Start");
    EXPECT_EQ(message.at("process").at("cmd"), "python3");
    EXPECT_EQ(message.at("process").at("cwd"), "/tmp");
    EXPECT_EQ(message.at("stdin"), false);
    EXPECT_EQ(message.at("tag"), json::string(done.str("id")));
    EXPECT_EQ(bench.guest.headers.back().get("connect-timeout-ms"), "1500");
    EXPECT_EQ(bench.guest.headers.back().get("authorization"), "Basic cm9vdDo=");
    auto const started = co_await bench.ask("POST", path, R"({"shell":"sleep 9","stdin":true})");
    EXPECT_EQ(started.status, 201);
    EXPECT_EQ(started.str("state"), "running");
    EXPECT_EQ(bench.guest.calls.back().second.at("process").at("args").at(2), "sleep 9");
    auto const pty =
        co_await bench.ask("POST", path, R"({"argv":["/bin/bash"],"pty":{"cols":80,"rows":24}})");
    EXPECT_EQ(pty.status, 201);
    EXPECT_EQ(bench.guest.calls.back().second.at("pty").at("size").at("cols"), 80);
    for (auto const* wrong : {"{}",
                              R"({"argv":[],"shell":"x"})",
                              R"({"argv":[]})",
                              R"({"argv":[""]})",
                              R"({"shell":"a\u0000b"})",
                              R"({"argv":["x"],"timeout_s":-1})",
                              R"({"argv":["x"],"user":"a:b"})",
                              R"({"argv":["x"],"pty":{"cols":0,"rows":1}})",
                              R"({"argv":["x"],"stdin":1})",
                              R"({"argv":["x"],"stdout":1})"}) {
      auto const bad = co_await bench.ask("POST", path, wrong);
      EXPECT_EQ(bad.status, 400) << wrong;
    }
  });
}

TEST(Commands, AGuestMayLie) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands";
    struct Lie {
      char const* what;
      std::string raw;
    };
    using testing::frame;
    auto const start = frame(0, R"({"event":{"start":{"pid":77}}})");
    for (auto const& lie :
         {Lie{"no json", frame(0, "nonsense")},
          Lie{"no start", frame(0, R"({"event":{"end":{}}})")},
          Lie{"pid 0", frame(0, R"({"event":{"start":{"pid":0}}})")},
          Lie{"huge frame", std::string("\0\x7f\xff\xff\xff", 5)},
          Lie{"odd flags", frame(1, "{}")},
          Lie{"no base64", start + frame(0, R"({"event":{"data":{"stdout":"***"}}})")},
          Lie{"an array", frame(0, "[]")},
          Lie{"deep", start + frame(0, std::string(400, '['))}}) {
      bench.guest.raw = lie.raw;
      auto const answer = co_await bench.ask("POST", path + "?wait=5", R"({"argv":["x"]})");
      EXPECT_EQ(answer.status, 503) << lie.what << ": " << answer.text;
    }
    bench.guest.raw.clear();
    bench.guest.end_error =
        R"({"code":"invalid_argument","message":"cwd '/nope' does not exist\u0007<script>"})";
    bench.guest.raw = frame(2, "{\"error\":" + bench.guest.end_error + "}");
    auto const refused = co_await bench.ask("POST", path, R"({"argv":["x"],"cwd":"/nope"})");
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.message(), "cwd '/nope' does not exist <script>");
  });
}

TEST(Commands, OutputAsEventsWithReplay) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands/77/output";
    bench.guest.frames = {R"({"event":{"gap":{"bytes":5}}})",
                          R"({"event":{"data":{"stdout":"aGVsbG8=","offset":5}}})",
                          R"({"event":{"end":{"exited":true,"status":"exit status 0"}}})"};
    auto const text = co_await read_stream(bench, path, {}, [](std::string const& t) {
      return t.find("event: end") != std::string::npos && t.ends_with("\n\n");
    });
    EXPECT_THAT(text, HasSubstr("event: start\ndata: {\"pid\":77}\n"));
    EXPECT_THAT(text, HasSubstr("event: gap\ndata: {\"bytes\":5}\n"));
    EXPECT_THAT(text, HasSubstr("id: 10\nevent: stdout\ndata: {\"data\":\"aGVsbG8=\"}\n"));
    EXPECT_EQ(bench.guest.headers.back().get("x-space-replay"), "0");
    auto const again =
        co_await read_stream(bench, path, {{"Last-Event-ID", "10"}}, [](std::string const& t) {
          return t.find("event: end") != std::string::npos;
        });
    EXPECT_EQ(bench.guest.headers.back().get("x-space-replay"), "10");
    // The sandbox ends under the stream: the reader is told why.
    bench.guest.frames = {R"({"event":{"data":{"stdout":"aGVsbG8=","offset":0}}})"};
    bench.guest.cut = true;
    auto const row = taken(co_await bench.api->store().sandboxes.find_live(id, soon()));
    store::Change change;
    change.id = row->id;
    change.from = domain::SandboxState::running;
    change.event = domain::SandboxEvent::end;
    change.reason = domain::EndReason::deadline;
    async::TaskGroup group(co_await asio::this_coro::executor);
    auto end = [&]() -> asio::awaitable<void> {
      co_await async::sleep_for(300ms);
      auto changed = co_await bench.api->store().sandboxes.apply(change, soon());
      EXPECT_TRUE(changed && changed->applied);
    };
    group.spawn("end", end());
    auto const cut = co_await read_stream(bench, path, {}, [](std::string const& t) {
      return t.find("event: error") != std::string::npos && t.ends_with("\n\n");
    });
    co_await group.join();
    EXPECT_THAT(cut, HasSubstr("the sandbox ended: its timeout was over"));
  });
}

TEST(Commands, InputSignalsAndLists) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/commands";
    auto const tag = base::make_short_id('c');
    auto const command = path + "/" + tag;
    auto const written = co_await bench.ask("POST", command + "/stdin", std::string("x\0\xff", 3));
    EXPECT_EQ(written.status, 204) << written.text;
    EXPECT_EQ(bench.guest.calls.back().second.at("input").at("stdin"), "eAD/");
    EXPECT_EQ(bench.guest.calls.back().second.at("process").at("tag"), json::string(tag));
    bench.guest.terminal = true;
    auto const typed = co_await bench.ask("POST", path + "/77/stdin", "ls\n");
    EXPECT_EQ(typed.status, 204) << typed.text;
    EXPECT_EQ(bench.guest.calls.back().second.at("input").at("pty"), "bHMK");
    EXPECT_EQ(bench.guest.calls.back().second.at("process").at("pid"), 77);
    auto const closed = co_await bench.ask("DELETE", command + "/stdin");
    EXPECT_EQ(closed.status, 204);
    EXPECT_EQ(bench.guest.calls.back().first, "process.Process/CloseStdin");
    auto const killed = co_await bench.ask("POST", command + "/signal", R"({"signal":"KILL"})");
    EXPECT_EQ(killed.status, 204);
    EXPECT_EQ(bench.guest.calls.back().second.at("signal"), "SIGNAL_SIGKILL");
    auto const bad = co_await bench.ask("POST", command + "/signal", R"({"signal":"HUP"})");
    EXPECT_EQ(bad.status, 400);
    auto const resized =
        co_await bench.ask("POST", command + "/resize", R"({"cols":100,"rows":30})");
    EXPECT_EQ(resized.status, 204);
    bench.guest.unary["process.Process/List"] = fmt::format(
        R"({{"processes":[{{"pid":77,"tag":"{}","config":{{"cmd":"sleep","args":["9"]}}}},{{"pid":78,"config":{{"cmd":"x"}}}},{{"pid":"no"}},7]}})",
        tag);
    auto const list = co_await bench.ask("GET", path);
    EXPECT_EQ(list["commands"].as_array().size(), 2u) << list.text;
    auto const one = co_await bench.ask("GET", command);
    EXPECT_EQ(one["pid"], 77);
    bench.guest.frames = {
        R"({"event":{"end":{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}}})"};
    auto const ended = co_await bench.ask("GET", path + "/99");
    EXPECT_EQ(ended.str("state"), "ended");
    EXPECT_EQ(ended["exit_code"], -1);
    auto const unknown = co_await bench.ask("GET", path + "/nope");
    EXPECT_EQ(unknown.status, 404);
    bench.guest.unary["process.Process/SendSignal"] =
        R"({"code":"not_found","message":"process with pid 5 not found"})";
    auto const gone = co_await bench.ask("POST", path + "/5/signal", R"({"signal":"TERM"})");
    EXPECT_EQ(gone.status, 404);
  });
}

TEST(Files, ContentGoesBothWays) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id + "/files";
    std::string big(3 << 20, '\0');
    for (std::size_t i = 0; i < big.size(); ++i)
      big[i] = static_cast<char>(i * 31);
    auto const written = co_await bench.ask("PUT", path + "?path=%2Fhome%2Fuser%2Fa%20b", big);
    EXPECT_EQ(written.status, 200) << written.text;
    EXPECT_EQ(written.str("path"), "/home/user/a b");
    EXPECT_EQ(bench.guest.files["/home/user/a b"], big);
    auto const read = co_await bench.ask("GET", path + "?path=%2Fhome%2Fuser%2Fa%20b");
    EXPECT_EQ(read.status, 200);
    EXPECT_EQ(read.text, big);
    EXPECT_EQ(read.headers.get("content-type"), "application/octet-stream")
        << "never a type that a browser would run";
    EXPECT_EQ(read.headers.get("x-content-type-options"), "nosniff");
    auto const missing = co_await bench.ask("GET", path + "?path=nope");
    EXPECT_EQ(missing.status, 404);
    for (auto const* wrong : {"", "?path=", "?path=%00", "?path=a&user=x%3Ay", "?path=a&other=1"}) {
      auto const bad = co_await bench.ask("GET", path + wrong);
      EXPECT_EQ(bad.status, 400) << wrong;
    }
    bench.guest.unary["filesystem.Filesystem/Stat"] =
        R"({"entry":{"name":"a","path":"/home/user/a","type":"FILE_TYPE_FILE","size":"12","mode":420,"permissions":"-rw-r--r--","owner":"user","group":"user","modifiedTime":"2026-01-01T00:00:00Z"}})";
    auto const stat = co_await bench.ask("GET", path + "/stat?path=a");
    EXPECT_EQ(stat["size"], 12);
    bench.guest.unary["filesystem.Filesystem/ListDir"] =
        R"({"entries":[{"name":"d","path":"/d","type":"FILE_TYPE_DIRECTORY"},{"nonsense":1},"x"]})";
    auto const list = co_await bench.ask("GET", path + "/list?path=.&depth=2");
    EXPECT_EQ(list["entries"].as_array().size(), 1u);
    EXPECT_EQ(bench.guest.calls.back().second.at("depth"), 2);
    bench.guest.unary["filesystem.Filesystem/MakeDir"] =
        R"({"entry":{"name":"d","path":"/d","type":"FILE_TYPE_DIRECTORY"}})";
    auto const made = co_await bench.ask("POST", path + "/mkdir", R"({"path":"/d"})");
    EXPECT_EQ(made.status, 201);
    bench.guest.unary["filesystem.Filesystem/MakeDir"] =
        R"({"code":"already_exists","message":"it exists"})";
    auto const exists = co_await bench.ask("POST", path + "/mkdir", R"({"path":"/d"})");
    EXPECT_EQ(exists.status, 409);
    bench.guest.unary["filesystem.Filesystem/Move"] =
        R"({"entry":{"name":"e","path":"/e","type":"FILE_TYPE_SYMLINK","symlinkTarget":"/x"}})";
    auto const moved =
        co_await bench.ask("POST", path + "/move", R"({"source":"/d","destination":"/e"})");
    EXPECT_EQ(moved.str("symlink_target"), "/x");
    auto const removed = co_await bench.ask("DELETE", path + "?path=%2Fe");
    EXPECT_EQ(removed.status, 204);
    bench.guest.unary["filesystem.Filesystem/Stat"] = R"({"entry":{"name":7}})";
    auto const lie = co_await bench.ask("GET", path + "/stat?path=a");
    EXPECT_EQ(lie.status, 503);
  });
}

TEST(Commands, ASandboxThatDoesNotRunIsAConflict) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    bench.worker.start_delay = 500ms;
    auto const made = co_await bench.ask("POST", "/v1/sandboxes");
    auto const id = std::string(made["sandbox"].as_object().at("id").as_string());
    auto const early =
        co_await bench.ask("POST", "/v1/sandboxes/" + id + "/commands", R"({"argv":["x"]})");
    EXPECT_EQ(early.status, 409);
    EXPECT_THAT(early.message(), HasSubstr("creating"));
    auto const none = co_await bench.ask(
        "POST", "/v1/sandboxes/i00000000000000000000/commands", R"({"argv":["x"]})");
    EXPECT_EQ(none.status, 404);
  });
}

TEST(Restart, WhatIsCommittedStaysAndTokensAreTheSame) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const before = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    // The API dies in the middle of a create; the operation stays, with a lease that ends.
    bench.worker.start_delay = 5s;
    auto const cut = co_await bench.ask("POST", "/v1/sandboxes");
    EXPECT_EQ(cut.status, 202);
    co_await bench.stop_api();
    bench.start_api();
    co_await bench.api->nodes().refresh();
    auto const after = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(after.text, before.text);
    auto const operation = co_await bench.ask(
        "GET", "/v1/operations/" + std::string(cut["operation"].as_object().at("id").as_string()));
    EXPECT_EQ(operation.str("state"), "running");
  });
}

TEST(AdminKey, IsMadeOnceAndReplaced) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    store::DatabaseOptions fresh;
    fresh.conninfo = Postgres::instance().make_database();
    store::Store store(co_await asio::this_coro::executor, fresh);
    auto first = co_await make_admin_key(&store, Replace::no, soon());
    EXPECT_TRUE(first && is_key(*first));
    auto second = co_await make_admin_key(&store, Replace::no, soon());
    EXPECT_TRUE(second && second->empty());
    auto third = co_await make_admin_key(&store, Replace::yes, soon());
    EXPECT_TRUE(third && is_key(*third));
    auto old = co_await store.keys.authenticate(sha256_hex(*first), soon());
    EXPECT_TRUE(old && !*old);
    auto now = co_await store.keys.authenticate(sha256_hex(*third), soon());
    EXPECT_TRUE(now && (*now)->installation);
    co_await store.database.close();
    EXPECT_FALSE(bench.key.empty());
  });
}

TEST(Tokens, SameSecretSameTokensAndSealedEnvironments) {
  auto const path = fmt::format("/tmp/space-token-{}", base::random_hex(6));
  auto const first = taken(Tokens::load(path));
  auto const second = taken(Tokens::load(path));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0600));
  EXPECT_EQ(first.access_token("i1", 1), second.access_token("i1", 1));
  EXPECT_NE(first.access_token("i1", 1), first.access_token("i1", 2));
  EXPECT_NE(first.access_token("i1", 1), first.access_token("i2", 1));
  EXPECT_NE(first.access_token("i1", 1), first.traffic_token("i1", 1));
  std::map<std::string, std::string> const env{{"A", "b"}, {"C", ""}};
  auto sealed = first.seal("i1", env);
  EXPECT_EQ(taken(second.open("i1", sealed)), env);
  EXPECT_FALSE(second.open("i2", sealed).has_value()) << "bound to its sandbox";
  sealed[30] = sealed[30] == '0' ? '1' : '0';
  EXPECT_FALSE(second.open("i1", sealed).has_value());
  EXPECT_FALSE(second.open("i1", "00").has_value());
  EXPECT_FALSE(second.open("i1", "zz").has_value());
  EXPECT_TRUE(taken(second.open("i1", "")).empty());
  std::ofstream(path) << "short";
  EXPECT_FALSE(Tokens::load(path).has_value());
  fs::remove(path);
}

TEST(RateLimit, FillsAgainAndForgetsTheIdle) {
  RateLimit limit({10, 5});
  base::ManualClock clock;
  clock.advance(1h);
  for (int i = 0; i < 5; ++i)
    EXPECT_FALSE(limit.take("k", clock.steady_now()).has_value());
  auto const wait = limit.take("k", clock.steady_now());
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(*wait, 100ms);
  clock.advance(100ms);
  EXPECT_FALSE(limit.take("k", clock.steady_now()).has_value());
  clock.advance(1min);
  EXPECT_FALSE(limit.take("other", clock.steady_now()).has_value());
  EXPECT_EQ(limit.size(), 1u) << "a full bucket is dropped";
}

TEST(Router, LiteralsWinAndGreedySegmentsTakeSlashes) {
  Router router;
  auto const add = [&](std::string method, std::string pattern) {
    Route route;
    route.method = std::move(method);
    route.pattern = std::move(pattern);
    route.handler = [](Call&) -> async::Task<Reply> { co_return empty_reply(); };
    router.add(std::move(route));
  };
  add("DELETE", "/templates/{id*}");
  add("DELETE", "/templates/tags");
  add("GET", "/templates/{id*}/tags");
  add("GET", "/templates/{id}");
  auto const pattern = [&](std::string method, std::string path) {
    auto const match = router.match(method, path);
    return match && match->route ? match->route->pattern : std::string("none");
  };
  EXPECT_EQ(pattern("DELETE", "/templates/tags"), "/templates/tags");
  EXPECT_EQ(pattern("DELETE", "/templates/team/snap:default"), "/templates/{id*}");
  EXPECT_EQ(pattern("GET", "/templates/team/x/tags"), "/templates/{id*}/tags");
  EXPECT_EQ(pattern("GET", "/templates/x"), "/templates/{id}");
  EXPECT_EQ(pattern("GET", "/templates/"), "none");
  EXPECT_EQ(pattern("GET", "/templates"), "none");
  EXPECT_EQ(pattern("GET", "//templates/x"), "none");
  auto const match = router.match("DELETE", "/templates/team%2Fsnap%3Adefault");
  ASSERT_TRUE(match && match->route);
  EXPECT_EQ(match->params.front().second, "team/snap:default");
  auto const slashes = router.match("DELETE", "/templates/team/snap:default");
  EXPECT_EQ(slashes->params.front().second, "team/snap:default");
  auto const wrong = router.match("PATCH", "/templates/x");
  EXPECT_EQ(wrong->route, nullptr);
  EXPECT_THAT(wrong->allowed, ::testing::UnorderedElementsAre("DELETE", "GET"));
}

TEST(GuestText, IsMadeHarmless) {
  EXPECT_EQ(printable("a\x01\x1b[31mb\n", 100), "a  [31mb ");
  EXPECT_EQ(printable("tést", 2), "t");
  EXPECT_EQ(printable("\xff\xfe", 100), "??");
  EXPECT_EQ(printable("abc", 2), "ab");
  EXPECT_EQ(from_base64(to_base64(std::string("\0\xff x", 4))), std::string("\0\xff x", 4));
  for (auto const* wrong : {"a", "====", "YQ=", "Y*==", "=AAA", "A=AA"})
    EXPECT_FALSE(from_base64(wrong).has_value()) << wrong;
  EXPECT_EQ(from_base64(""), "");
}

}  // namespace
}  // namespace controlplane
