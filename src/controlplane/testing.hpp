#pragma once

#include "async/testing.hpp"
#include "base/id.hpp"
#include "controller/testing.hpp"
#include "controlplane/api.hpp"
#include "controlplane/fake_guest.hpp"
#include "controlplane/json_schema.hpp"
#include "controlplane/openapi.hpp"
#include "http/client.hpp"
#include "store/testing.hpp"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// For the tests of the API: the whole of it over HTTP, with a real PostgreSQL, a worker and a
/// guest without machines. Every answer is compared with api/openapi.yaml on its way.
namespace controlplane::testing {

using namespace std::chrono_literals;
using controller::testing::FakeWorker;
using store::testing::Postgres;
using testing::FakeGuest;
using ::testing::HasSubstr;
using testing::Schemas;

namespace fs = std::filesystem;

inline base::Deadline soon() {
  return base::system_clock().in(30s);
}

template <class T> T taken(base::Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message() + " | " + result.error().detail());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

inline Schemas const& schemas() {
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

  asio::awaitable<http::Response> head(std::string target) {
    http::RequestHead head;
    head.method = "HEAD";
    head.target = std::move(target);
    head.headers.add("Host", "api");
    head.headers.add("Authorization", "Bearer " + key);
    auto response = co_await client_->request(std::move(head), {}, soon());
    co_return taken(std::move(response));
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

/// As the broker answers, without its secrets.
class FakeBroker final : public http::Handler {
 public:
  FakeBroker(asio::any_io_executor executor, std::string const& socket) : server_(executor, *this) {
    auto listener = net::listen_unix(executor, socket);
    server_.listen(std::move(*listener));
  }

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override {
    auto const body = co_await request.body.read_all(1 << 20);
    auto const seal = wire::decode_text<wire::Seal>(body.value_or(""));
    if (!seal) throw std::runtime_error("the broker was asked " + body.value_or(""));
    seals.push_back(*seal);
    wire::Sealed const sealed{
        seal->credential, seal->version, seal->binding, "key-1", "aa", sha256_hex(seal->value)};
    auto sent = co_await response.send({200, {}, wire::encode_text(sealed)});
    static_cast<void>(sent);
  }

  asio::awaitable<void> close() { return server_.close(100ms); }

  std::vector<wire::Seal> seals;

 private:
  http::Server server_;
};

inline void with_api(std::function<asio::awaitable<void>(Bench&)> body,
                     std::uint32_t rate = 10'000) {
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

/// One request on the socket that the proxy and the supervisor use.
inline asio::awaitable<http::Response> internally(Bench& bench,
                                                  std::string method,
                                                  std::string target,
                                                  std::string body = {}) {
  http::Client client(co_await asio::this_coro::executor,
                      [path = bench.config.internal_socket()] { return net::connect_unix(path); });
  http::RequestHead head;
  head.method = std::move(method);
  head.target = std::move(target);
  head.headers.add("Host", "internal");
  auto response = co_await client.request(std::move(head), std::move(body), soon());
  co_return taken(std::move(response));
}

/// Reads a stream of server-sent events until `enough` says so or 10 s are over.
inline asio::awaitable<std::string> read_stream(Bench& bench,
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

inline std::size_t count_of(std::string_view text, std::string_view what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1))
    ++count;
  return count;
}

inline std::string last_id(std::string const& text) {
  auto const at = text.rfind("id: ");
  return text.substr(at + 4, text.find('\n', at) - at - 4);
}

}  // namespace controlplane::testing
