#pragma once

#include "async/testing.hpp"
#include "base/id.hpp"
#include "controller/testing.hpp"
#include "controlplane/e2b_routes.hpp"
#include "controlplane/front.hpp"
#include "http/client.hpp"
#include "store/testing.hpp"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// For the tests of the wrapper as a client sees it: HTTP in, HTTP out, over a real PostgreSQL and
/// a worker without machines.
namespace controlplane::e2b::over_http {

using namespace std::chrono_literals;
using controller::testing::FakeWorker;
using store::testing::Postgres;

namespace fs = std::filesystem;

inline base::Deadline soon() {
  return base::system_clock().in(20s);
}

template <class T> T taken(base::Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message() + " | " + result.error().detail());
  return std::move(*result);
}

struct Answer {
  int status = 0;
  http::Headers headers;
  json::value body;
  std::string text;
};

struct Bench {
  Bench(asio::any_io_executor on, std::string dir)
      : executor(on),
        directory(std::move(dir)),
        conninfo(Postgres::instance().make_database()),
        store(on, options()),
        worker(on, directory + "/worker") {
    fs::create_directories(directory + "/worker");
    fs::create_directories(directory + "/api");
  }

  store::DatabaseOptions options() const {
    store::DatabaseOptions database;
    database.conninfo = conninfo;
    return database;
  }

  asio::awaitable<void> prepare() {
    auto made = co_await store::testing::make_world(store);
    world = taken(std::move(made));
    auto const moved = co_await store.nodes.upsert("node-1", directory + "/worker", soon());
    if (!moved) throw std::runtime_error(moved.error().message());
    auto const build = co_await store.templates.find(world.project_id, "base", soon());
    worker.report.memory_mib_total = 1 << 20;
    worker.report.vcpus_total = 1000;
    worker.report.disk_mib_total = 1 << 24;
    worker.report.slots_total = 1000;
    worker.report.builds = {taken(build)->latest->build};
    worker.start();
    key = co_await make_key_of(world.project);
    e2b.add_routes(router);
    co_await nodes.refresh();
    group.spawn("hub", hub.run());
    listen();
  }

  asio::awaitable<std::string> make_key_of(std::string project) {
    auto const text = controlplane::make_key();
    store::NewKey wanted;
    wanted.project_public_id = project;
    wanted.name = "test";
    wanted.role = store::Role::member;
    wanted.key_sha256 = sha256_hex(text);
    wanted.prefix = text.substr(0, 8);
    auto const made = co_await store.keys.create(std::move(wanted), soon());
    if (!made) throw std::runtime_error(made.error().message());
    co_return text;
  }

  void listen() {
    auto listener = net::listen_unix(executor, directory + "/api/api.sock");
    if (!listener) throw std::runtime_error(listener.error().message());
    server.listen(std::move(*listener));
  }

  asio::awaitable<void> close() {
    group.cancel();
    co_await group.join();
    co_await server.close(0ms);
    co_await service.close();
    co_await worker.stop();
    co_await store.database.close();
  }

  asio::awaitable<Answer> call(std::string method,
                               std::string target,
                               std::string body = "",
                               std::string with_key = "own") {
    http::RequestHead head;
    head.method = std::move(method);
    head.target = std::move(target);
    if (with_key == "own") with_key = key;
    if (!with_key.empty()) head.headers.add("X-API-KEY", with_key);
    if (!body.empty()) head.headers.add("Content-Type", "application/json");
    auto asked = co_await client.request(std::move(head), std::move(body), soon());
    auto response = taken(std::move(asked));
    Answer answer;
    answer.status = response.status;
    answer.headers = std::move(response.headers);
    answer.text = std::move(response.body);
    if (!answer.text.empty()) {
      auto parsed = wire::parse_json(answer.text);
      answer.body = taken(std::move(parsed));
    }
    // The rule that keeps clients from crashing: every error has both keys, the code as a number.
    if (answer.status >= 400) {
      EXPECT_EQ(answer.body.at("code"), answer.status) << answer.text;
      EXPECT_TRUE(answer.body.at("message").is_string()) << answer.text;
    }
    co_return answer;
  }

  asio::awaitable<std::string> create(std::string body = R"({"templateID":"base","timeout":60})") {
    auto const made = co_await call("POST", "/sandboxes", std::move(body));
    if (made.status != 201) throw std::runtime_error(made.text);
    co_return std::string(made.body.at("sandboxID").as_string());
  }

  asio::any_io_executor executor;
  std::string directory;
  std::string conninfo;
  store::Store store;
  FakeWorker worker;
  store::testing::World world;
  std::string key;
  WorkerClient workers{executor};
  Nodes nodes{store, workers};
  EventHub hub{executor, store.events};
  Tokens tokens{base::Secret(std::string(32, 's'))};
  NetworkService network{executor, store, workers, {}};
  SandboxService service{
      executor, store, nodes, workers, hub, tokens, network, {.instance = "api-test"}};
  E2b e2b{service, store, executor, directory + "/no-broker.sock", {.domain = "sbx.test:7443"}};
  Router router;
  Audit audit{store.keys};
  Front front{router, store, audit, {}};
  http::Server server{executor, front};
  http::Client client{executor, [this] { return net::connect_unix(directory + "/api/api.sock"); }};
  async::TaskGroup group{executor};
};

inline void with_bench(std::function<asio::awaitable<void>(Bench&)> body) {
  char name[] = "/tmp/space-e2b-XXXXXX";
  std::string const directory = ::mkdtemp(name);
  auto test = [&]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    Bench bench(executor, directory);
    co_await bench.prepare();
    auto running = body(bench);
    std::exception_ptr thrown;
    try {
      co_await std::move(running);
    } catch (...) {
      thrown = std::current_exception();
    }
    co_await bench.close();
    if (thrown) std::rethrow_exception(thrown);
  };
  async::run_test(test, 60s);
  fs::remove_all(directory);
}

}  // namespace controlplane::e2b::over_http
