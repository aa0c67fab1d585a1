// The whole controller against a real PostgreSQL and a worker without machines.
#include "controller/testing/controller_bench.hpp"

namespace controller {
namespace {

TEST(ControllerDeadlines, FireOnceAndOnTimeWithTwoControllers) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    bench.start_controller("one");
    bench.start_controller("two");
    std::vector<store::SandboxRow> rows;
    for (int i = 0; i < 12; ++i) {
      auto row = co_await bench.running(1);
      rows.push_back(std::move(row));
    }
    for (auto const& row : rows) {
      auto const ended = co_await bench.wait_for(row.public_id, SandboxState::deleted);
      EXPECT_EQ(ended.end_reason, "deadline");
      EXPECT_LT(*ended.ended_at - *row.deadline_at, 1s);
      EXPECT_GE(*ended.ended_at, *row.deadline_at);
      EXPECT_EQ(bench.worker.deletes_of(row.public_id), 1U);
      EXPECT_THAT(
          bench.events_of(row.public_id),
          ::testing::ElementsAre(
              "sandbox.creating", "sandbox.running", "sandbox.deleting", "sandbox.deleted"));
    }
    auto const unfinished = store::testing::query(
        bench.conninfo, "select public_id from operations where finished_at is null");
    EXPECT_THAT(unfinished, ::testing::IsEmpty());
  };
  with_bench(body);
}

TEST(ControllerDeadlines, AShortenedTimeoutIsNoticedWithoutAMessage) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    bench.start_controller("one");
    auto const row = co_await bench.running(3600);
    co_await async::sleep_for(300ms);
    EXPECT_EQ(bench.worker.deletes_of(row.public_id), 0U);
    auto const changed =
        co_await bench.store.sandboxes.set_timeout(row.id, 1, false, "test", soon());
    EXPECT_TRUE(changed && changed->applied);
    auto const ended = co_await bench.wait_for(row.public_id, SandboxState::deleted);
    EXPECT_LT(*ended.ended_at - *changed->now->deadline_at, 1s);
  };
  with_bench(body);
}

TEST(ControllerDeadlines, ASlowWorkerDoesNotDelayOthers) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    bench.worker.delete_delay = 1500ms;
    auto const first = co_await bench.running(1);
    auto const second = co_await bench.running(1);
    bench.start_controller("one");
    auto const a = co_await bench.wait_for(first.public_id, SandboxState::deleted);
    auto const b = co_await bench.wait_for(second.public_id, SandboxState::deleted);
    EXPECT_LT(std::chrono::abs(*a.ended_at - *b.ended_at), 1s);
  };
  with_bench(body);
}

TEST(ControllerTakesOver, ACreateWhoseMachineRunsIsFinished) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.abandoned(100);
    bench.worker.add(row.public_id, 1, "starting");
    bench.start_controller("one");
    co_await async::sleep_for(800ms);
    auto const waiting = co_await bench.row_of(row.public_id);
    EXPECT_EQ(waiting.state, SandboxState::creating) << "the worker is still at it";
    bench.worker.add(row.public_id, 1, "running");
    auto const now = co_await bench.wait_for(row.public_id, SandboxState::running);
    EXPECT_TRUE(now.deadline_at.has_value());
    EXPECT_EQ(bench.worker.deletes_of(row.public_id), 0U);
    auto const operations = store::testing::query(
        bench.conninfo, "select state from operations where sandbox = '" + row.public_id + "'");
    EXPECT_THAT(operations, ::testing::ElementsAre("succeeded"));
  };
  with_bench(body);
}

TEST(ControllerTakesOver, ACreateThatNeverReachedTheWorkerFailsAndTheWorkerIsToldFirst) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.abandoned();
    bench.start_controller("one");
    auto const ended = co_await bench.wait_for(row.public_id, SandboxState::failed);
    EXPECT_EQ(ended.end_reason, "start_failed");
    EXPECT_GE(bench.worker.deletes_of(row.public_id), 1U);
    auto const operations = store::testing::query(
        bench.conninfo, "select state from operations where sandbox = '" + row.public_id + "'");
    EXPECT_THAT(operations, ::testing::ElementsAre("failed"));
  };
  with_bench(body);
}

TEST(ControllerTakesOver, ACreateInProgressIsLeftAlone) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto wanted = store::testing::new_sandbox(bench.world);
    wanted.lease = 60s;
    auto made = co_await bench.store.sandboxes.create(std::move(wanted), soon());
    auto const row = taken(std::move(made));
    bench.start_controller("one");
    co_await async::sleep_for(1500ms);
    auto const now = co_await bench.row_of(row.public_id);
    EXPECT_EQ(now.state, SandboxState::creating);
    EXPECT_EQ(bench.worker.deletes_of(row.public_id), 0U);
  };
  with_bench(body);
}

TEST(ControllerTakesOver, ADeleteLeftHalfWayIsFinished) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    store::NewOperation operation;
    operation.public_id = base::make_short_id('x');
    operation.project_id = bench.world.project_id;
    operation.kind = "sandbox.delete";
    operation.sandbox = row.public_id;
    operation.lease_owner = "a dead API";
    operation.lease = 0s;
    operation.actor = "key";
    auto const made = co_await bench.store.operations.create(operation, soon());
    EXPECT_TRUE(made);
    store::Change change;
    change.id = row.id;
    change.from = SandboxState::running;
    change.event = SandboxEvent::end;
    change.reason = domain::EndReason::user;
    auto const changed = co_await bench.store.sandboxes.apply(std::move(change), soon());
    EXPECT_TRUE(changed && changed->applied);
    bench.start_controller("one");
    auto const ended = co_await bench.wait_for(row.public_id, SandboxState::deleted);
    EXPECT_EQ(ended.end_reason, "user");
    EXPECT_FALSE(bench.worker.machines.contains(row.public_id));
    auto const states = store::testing::query(
        bench.conninfo,
        "select state from operations where public_id = '" + operation.public_id + "'");
    EXPECT_THAT(states, ::testing::ElementsAre("succeeded"));
  };
  with_bench(body);
}

TEST(ControllerTakesOver, ADeadControllersDeadlineIsFinishedByAnother) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running(1);
    co_await async::sleep_for(1100ms);
    auto const claimed =
        co_await bench.store.sandboxes.claim_due("a dead controller", 0s, 10, soon());
    EXPECT_EQ(taken(claimed).size(), 1U);
    bench.start_controller("another");
    auto const ended = co_await bench.wait_for(row.public_id, SandboxState::deleted);
    EXPECT_EQ(ended.end_reason, "deadline");
  };
  with_bench(body);
}

TEST(ControllerEnds, AMachinesEndReachesItsRowWithCauseAndEvent) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    bench.start_controller("one");
    auto const panicked = co_await bench.running();
    auto const halted = co_await bench.running();
    co_await async::sleep_for(300ms);
    auto const before = base::system_clock().steady_now();
    bench.worker.end(panicked.public_id, "guest_panic");
    auto const failed = co_await bench.wait_for(panicked.public_id, SandboxState::failed);
    auto const took = std::chrono::duration_cast<std::chrono::milliseconds>(
        base::system_clock().steady_now() - before);
    RecordProperty("end_to_row_ms", static_cast<int>(took.count()));
    EXPECT_EQ(failed.end_reason, "guest_panic");
    EXPECT_EQ(failed.end_detail, "as the test wanted");
    EXPECT_EQ(failed.console_tail, "[    1.0] last words\n");
    bench.worker.end(halted.public_id, "guest_shutdown");
    auto const deleted = co_await bench.wait_for(halted.public_id, SandboxState::deleted);
    EXPECT_EQ(deleted.end_reason, "guest_shutdown");
    EXPECT_THAT(bench.events_of(panicked.public_id),
                ::testing::ElementsAre("sandbox.creating", "sandbox.running", "sandbox.failed"));
  };
  with_bench(body);
}

TEST(ControllerEnds, WhatEndedWhileNoControllerRanIsToldAfterwards) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    bench.worker.end(row.public_id, "vmm_out_of_memory");
    bench.start_controller("late");
    auto const failed = co_await bench.wait_for(row.public_id, SandboxState::failed);
    EXPECT_EQ(failed.end_reason, "out_of_memory");
  };
  with_bench(body);
}

TEST(ControllerReconciles, AMachineWithoutARowIsRemoved) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const kept = co_await bench.running();
    auto const stray = base::SandboxId::make().str();
    bench.worker.add(stray, 7);
    bench.start_controller("one");
    auto const until = soon();
    while (bench.worker.machines.contains(stray) && base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_THAT(bench.worker.deletes,
                ::testing::ElementsAre(std::pair<std::string, std::uint64_t>(stray, 7)));
    EXPECT_TRUE(bench.worker.machines.contains(kept.public_id));
  };
  with_bench(body);
}

TEST(ControllerReconciles, NothingIsKilledWhileTheDatabaseIsDown) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running(1);
    auto const stray = base::SandboxId::make().str();
    Postgres::instance().stop();
    bench.worker.add(stray);
    bench.start_controller("one");
    co_await async::sleep_for(2s);
    EXPECT_THAT(bench.worker.deletes, ::testing::IsEmpty());
    Postgres::instance().start();
    // And afterwards everything is made up for.
    auto const ended = co_await bench.wait_for(row.public_id, SandboxState::deleted);
    EXPECT_EQ(ended.end_reason, "deadline");
    auto const until = soon();
    while (bench.worker.machines.contains(stray) && base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_FALSE(bench.worker.machines.contains(stray));
  };
  with_bench(body);
}

TEST(ControllerReconciles, ADatabaseThatDiesInBetweenKillsNothingEither) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    bench.start_controller("one");
    co_await async::sleep_for(400ms);
    Postgres::instance().crash_and_restart();
    co_await async::sleep_for(1500ms);
    auto const now = co_await bench.row_of(row.public_id);
    EXPECT_EQ(now.state, SandboxState::running);
    EXPECT_TRUE(bench.worker.machines.contains(row.public_id));
    EXPECT_THAT(bench.worker.deletes, ::testing::IsEmpty());
  };
  with_bench(body);
}

TEST(ControllerReconciles, AFormerLifeIsRemovedAndTheRowStays) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    store::testing::query(
        bench.conninfo, "update sandboxes set epoch = 2 where public_id = '" + row.public_id + "'");
    bench.start_controller("one");
    auto const until = soon();
    while (bench.worker.machines.contains(row.public_id) &&
           base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_FALSE(bench.worker.machines.contains(row.public_id));
    EXPECT_EQ(bench.worker.deletes.at(0).second, 2U);
  };
  with_bench(body);
}

TEST(ControllerReconciles, ARowWhoseMachineIsGoneEndsAsUnknown) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    bench.start_controller("one");
    co_await async::sleep_for(300ms);  // it was seen to run
    bench.worker.machines.clear();
    auto const ended = co_await bench.wait_for(row.public_id, SandboxState::failed);
    EXPECT_EQ(ended.end_reason, "unknown");
    EXPECT_NE(ended.end_detail.find("restarted"), std::string::npos);
  };
  with_bench(body);
}

TEST(ControllerReconciles, ASilentWorkerEndsNothingAndDeletesWaitForIt) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const kept = co_await bench.running();
    auto const due = co_await bench.running(1);
    co_await bench.worker.stop();
    bench.start_controller("one");
    auto const waiting = co_await bench.wait_for(due.public_id, SandboxState::deleting);
    EXPECT_EQ(waiting.end_reason, "deadline");
    co_await async::sleep_for(1s);
    auto const now = co_await bench.row_of(kept.public_id);
    EXPECT_EQ(now.state, SandboxState::running);
    bench.worker.start();
    co_await bench.wait_for(due.public_id, SandboxState::deleted);
    auto const later = co_await bench.row_of(kept.public_id);
    EXPECT_EQ(later.state, SandboxState::running);
  };
  with_bench(body);
}

TEST(ControllerNodes, OnlyAnOperatorsWordGivesUpASilentNode) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    auto const leaving = co_await bench.running(1);
    co_await bench.worker.stop();
    store::testing::query(bench.conninfo,
                          "update nodes set heartbeat_at = now() - interval '1 day'");
    bench.start_controller("one");
    co_await bench.wait_for(leaving.public_id, SandboxState::deleting);
    co_await async::sleep_for(500ms);
    auto const still = co_await bench.row_of(row.public_id);
    EXPECT_EQ(still.state, SandboxState::running);
    auto const declared = co_await bench.store.nodes.declare_lost("node-1", soon());
    EXPECT_TRUE(declared);
    auto const lost = co_await bench.wait_for(row.public_id, SandboxState::failed);
    EXPECT_EQ(lost.end_reason, "host_lost");
    auto const left = co_await bench.wait_for(leaving.public_id, SandboxState::deleted);
    EXPECT_EQ(left.end_reason, "deadline") << "what was decided before stays the reason";
    // It returns with its machines all the same: they are nobody's now.
    bench.worker.start();
    auto const until = soon();
    while (!bench.worker.machines.empty() && base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_THAT(bench.worker.machines, ::testing::IsEmpty());
    // Its next report takes the word back.
    bool lost_still = true;
    while (lost_still && base::system_clock().steady_now() < until) {
      auto nodes = co_await bench.store.nodes.list(soon());
      lost_still = taken(std::move(nodes)).at(0).lost_at.has_value();
      co_await async::sleep_for(10ms);
    }
    EXPECT_FALSE(lost_still);
    auto const nobody = co_await bench.store.nodes.declare_lost("nobody", soon());
    EXPECT_EQ(nobody.error().code(), base::Code::not_found);
  };
  with_bench(body);
}

TEST(ControllerNodes, ReportsAndSamplesAreWritten) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    bench.start_controller("one");
    auto const until = soon();
    std::vector<store::MetricRow> samples;
    while (samples.empty() && base::system_clock().steady_now() < until) {
      auto found = co_await bench.store.metrics.latest({row.public_id}, soon());
      samples = taken(std::move(found));
      co_await async::sleep_for(20ms);
    }
    EXPECT_EQ(samples.size(), 1U);
    if (samples.empty()) co_return;
    EXPECT_EQ(samples[0].cpu_used_pct, 2.5);
    EXPECT_EQ(samples[0].memory_total, 500U);
    auto const nodes = co_await bench.store.nodes.list(soon());
    EXPECT_EQ(taken(nodes).size(), 1U);
    EXPECT_TRUE(nodes->at(0).heartbeat_at.has_value());
    EXPECT_EQ(nodes->at(0).report.memory_mib_total, 1024U);
    EXPECT_EQ(nodes->at(0).address, bench.config.run_dir + "/worker");
  };
  with_bench(body);
}

void put_build(Bench const& bench,
               std::string const& build,
               std::string const& name,
               std::string const& created_at) {
  auto const folder = bench.config.pool() + "/templates/" + build;
  fs::create_directories(folder);
  std::ofstream(folder + "/manifest.json")
      << R"({"name":")" << name << R"(","build":")" << build << R"(","created_at":")" << created_at
      << R"(","vcpus":2,"memory_mib":256})";
}

TEST(ControllerNodes, BuildsInThePoolBecomeTemplatesAndTheNewestIsTheDefault) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    put_build(bench, "0b", "tools", "2030-01-02T00:00:00Z");
    put_build(bench, "0a", "tools", "2030-01-01T00:00:00Z");
    bench.worker.report.builds = {"0b", "0a", "not-there", "../../etc"};
    bench.start_controller("one");
    auto const until = soon();
    std::optional<store::TemplateRow> found;
    while ((!found || found->build_count < 2) && base::system_clock().steady_now() < until) {
      auto row = co_await bench.store.templates.find(bench.world.project_id, "tools", soon());
      found = taken(std::move(row));
      co_await async::sleep_for(20ms);
    }
    EXPECT_TRUE(found && found->latest);
    if (!found || !found->latest) co_return;
    EXPECT_EQ(found->latest->build, "0b");
    EXPECT_EQ(found->latest->vcpus, 2U);
    // One that is older than the default gets a tag of its own, whenever it is found.
    put_build(bench, "0c", "tools", "2029-01-01T00:00:00Z");
    bench.worker.report.builds.push_back("0c");
    while (found->build_count < 3 && base::system_clock().steady_now() < until) {
      auto row = co_await bench.store.templates.find(bench.world.project_id, "tools", soon());
      found = taken(std::move(row));
      co_await async::sleep_for(20ms);
    }
    EXPECT_EQ(found->build_count, 3U);
    EXPECT_EQ(found->latest->build, "0b");
  };
  with_bench(body);
}

TEST(ControllerRetention, OldHistoryGoesAndYoungStays) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    bench.start_controller("one");
    auto const old = co_await bench.running();
    auto const young = co_await bench.running();
    bench.worker.end(old.public_id, "guest_shutdown");
    bench.worker.end(young.public_id, "guest_shutdown");
    co_await bench.wait_for(old.public_id, SandboxState::deleted);
    co_await bench.wait_for(young.public_id, SandboxState::deleted);
    store::testing::query(
        bench.conninfo,
        "update ended_sandboxes set ended_at = now() - interval '31 days' where public_id = '" +
            old.public_id + "'");
    WorkerLinks links(bench.executor);
    Retention retention(bench.restricted, links, {});
    co_await retention.round();
    EXPECT_THAT(store::testing::query(bench.conninfo, "select public_id from ended_sandboxes"),
                ::testing::ElementsAre(young.public_id));
  };
  with_bench(body);
}

}  // namespace
}  // namespace controller
