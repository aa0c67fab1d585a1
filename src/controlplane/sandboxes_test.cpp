// The life of a sandbox through the native routes.
#include "controlplane/testing.hpp"

#include <set>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

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
    EXPECT_EQ(start.env.at("E2B_SANDBOX_ID"), id);
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
    EXPECT_EQ(got["timeline"].as_array().back().at("by"), "cold boot");
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

TEST(Restart, ACreateWaitsForAWorkerThatIsComingBack) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await bench.stop_api();
    co_await bench.worker.stop();
    bench.start_api();
    co_await bench.api->nodes().refresh();
    EXPECT_FALSE(bench.api->nodes().all().at("node-1").ready);
    async::TaskGroup group(co_await asio::this_coro::executor);
    group.spawn("worker is back", [](Bench& bench) -> asio::awaitable<void> {
      co_await async::sleep_for(200ms);
      EXPECT_TRUE(bench.worker.starts.empty());
      bench.worker.start();
    }(bench));
    auto const made = co_await bench.ask("POST", "/v1/sandboxes?wait=20");
    EXPECT_EQ(made.status, 201) << made.text;
    co_await group.join();
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

}  // namespace
}  // namespace controlplane
