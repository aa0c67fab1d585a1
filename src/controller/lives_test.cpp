// What a controller makes of suspends, restores, snapshots and drains that somebody left, or that
// are due.
#include "controller/testing/controller_bench.hpp"

namespace controller {
namespace {

store::Begin begin_of(store::SandboxRow const& row, SandboxEvent event, std::string kind) {
  store::Begin begin;
  begin.id = row.id;
  begin.project_id = row.project_id;
  begin.from = row.state;
  begin.event = event;
  begin.kind = std::move(kind);
  begin.operation = base::make_short_id('x');
  begin.lease_owner = "dead";
  begin.lease = 0s;
  begin.actor = "test";
  return begin;
}

/// As an API process leaves it that died right after its commit.
store::asio::awaitable<store::SandboxRow> left(Bench& bench,
                                               store::SandboxRow row,
                                               SandboxEvent event,
                                               std::string kind) {
  auto begun = co_await bench.store.sandboxes.begin(begin_of(row, event, std::move(kind)), soon());
  co_return *taken(std::move(begun)).now;
}

store::asio::awaitable<store::SandboxRow> suspended(Bench& bench) {
  auto row = co_await bench.running();
  auto suspending = co_await left(bench, row, SandboxEvent::suspend, "sandbox.suspend");
  auto const operation =
      store::testing::query(bench.conninfo,
                            "select public_id from operations where sandbox = '" + row.public_id +
                                "' and finished_at is null");
  store::Change change;
  change.id = row.id;
  change.from = SandboxState::suspending;
  change.event = SandboxEvent::suspend_done;
  change.operation = operation.at(0);
  auto done = co_await bench.store.sandboxes.apply(std::move(change), soon());
  bench.worker.machines[row.public_id].state = "suspended";
  co_return *taken(std::move(done)).now;
}

std::vector<std::string> unfinished(Bench& bench) {
  return store::testing::query(bench.conninfo,
                               "select public_id from operations where finished_at is null");
}

TEST(ControllerLives, ASuspendThatWasLeftIsFinished) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const asked = co_await bench.running();
    co_await left(bench, asked, SandboxEvent::suspend, "sandbox.suspend");
    auto const done = co_await bench.running();
    co_await left(bench, done, SandboxEvent::suspend, "sandbox.suspend");
    bench.worker.machines[done.public_id].state = "suspended";
    bench.worker.machines[done.public_id].suspended_bytes = 77;
    bench.start_controller("one");
    co_await bench.wait_for(asked.public_id, SandboxState::suspended);
    auto const row = co_await bench.wait_for(done.public_id, SandboxState::suspended);
    EXPECT_EQ(row.suspended_bytes, 77u);
    EXPECT_EQ(bench.worker.moves.size(), 1u) << "what is done is not asked for again";
    EXPECT_THAT(unfinished(bench), ::testing::IsEmpty());
  };
  with_bench(body);
}

TEST(ControllerLives, ASuspendThatTheWorkerRefusesGoesOn) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    auto const suspending = co_await left(bench, row, SandboxEvent::suspend, "sandbox.suspend");
    bench.worker.move_refusal = base::Error(base::Code::exhausted, "the pool is full");
    bench.start_controller("one");
    co_await bench.wait_for(row.public_id, SandboxState::running);
    auto const errors = store::testing::query(
        bench.conninfo, "select error_message from operations where kind = 'sandbox.suspend'");
    EXPECT_THAT(errors, ::testing::ElementsAre("the pool is full"));
  };
  with_bench(body);
}

TEST(ControllerLives, ARestoreThatWasLeftIsFinishedOrUndone) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const came = co_await suspended(bench);
    auto const restoring = co_await left(bench, came, SandboxEvent::restore, "sandbox.resume");
    bench.worker.add(came.public_id, restoring.epoch);
    auto const stayed = co_await suspended(bench);
    co_await left(bench, stayed, SandboxEvent::restore, "sandbox.resume");
    bench.start_controller("one");
    co_await bench.wait_for(came.public_id, SandboxState::running);
    auto const back = co_await bench.wait_for(stayed.public_id, SandboxState::suspended);
    EXPECT_THAT(back.problem, ::testing::HasSubstr("resume it again"));
    EXPECT_THAT(unfinished(bench), ::testing::IsEmpty());
    EXPECT_TRUE(bench.worker.machines.contains(stayed.public_id));
  };
  with_bench(body);
}

TEST(ControllerLives, PausesAndResumesThatWereLeftAreFinished) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    co_await left(bench, row, SandboxEvent::pause, "sandbox.pause");
    bench.start_controller("one");
    auto const paused = co_await bench.wait_for(row.public_id, SandboxState::paused);
    EXPECT_EQ(bench.worker.machines[row.public_id].state, "paused");
    co_await left(bench, paused, SandboxEvent::resume, "sandbox.resume");
    co_await bench.wait_for(row.public_id, SandboxState::running);
    EXPECT_EQ(bench.worker.machines[row.public_id].state, "running");
  };
  with_bench(body);
}

TEST(ControllerLives, DeadlinesAndIdleTimeSuspendThoseWhoWantIt) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const deadline = co_await bench.running(1);
    auto const idle = co_await bench.running(3600);
    auto const busy = co_await bench.running(3600);
    store::testing::query(bench.conninfo,
                          "update sandboxes set on_timeout = 'suspend' where public_id = '" +
                              deadline.public_id + "' returning id");
    store::testing::query(bench.conninfo,
                          "update sandboxes set idle_timeout_s = 60, started_at = now() - interval "
                          "'1 hour', used_at = "
                          "now() - interval '1 hour' where public_id = '" +
                              idle.public_id + "' returning id");
    bench.start_controller("one");
    bench.start_controller("two");
    auto const slept = co_await bench.wait_for(idle.public_id, SandboxState::suspended);
    EXPECT_TRUE(slept.deadline_at.has_value()) << "its end still comes";
    auto const over = co_await bench.wait_for(deadline.public_id, SandboxState::suspended);
    EXPECT_FALSE(over.deadline_at.has_value());
    EXPECT_LT(*over.suspended_at - *deadline.deadline_at, 2s);
    auto const awake = co_await bench.row_of(busy.public_id);
    EXPECT_EQ(awake.state, SandboxState::running);
    EXPECT_EQ(bench.worker.moves.size(), 2u);
    EXPECT_THAT(unfinished(bench), ::testing::IsEmpty());
  };
  with_bench(body);
}

TEST(ControllerLives, ARunningCommandIsUseAlsoWhenNobodyIsConnected) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running(3600);
    bench.worker.metrics =
        R"({"cpu_count":1,"cpu_used_pct":1,"mem_used":1,"mem_total":5,"mem_cache":1,"disk_used":7,"disk_total":9,"commands":1})";
    store::testing::query(bench.conninfo,
                          "update sandboxes set used_at = now() - interval '1 hour' returning id");
    bench.start_controller("one");
    auto const until = soon();
    std::vector<std::string> fresh;
    while (fresh.empty() && base::system_clock().steady_now() < until) {
      co_await async::sleep_for(20ms);
      fresh = store::testing::query(
          bench.conninfo,
          "select public_id from sandboxes where used_at > now() - interval '1 minute'");
    }
    EXPECT_THAT(fresh, ::testing::ElementsAre(row.public_id));
  };
  with_bench(body);
}

TEST(ControllerLives, RowAndWorkerThatDisagreeAreMadeToAgree) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const follows = co_await bench.running();
    bench.worker.machines[follows.public_id].state = "suspended";
    auto const awake = co_await suspended(bench);
    bench.worker.machines[awake.public_id].state = "running";
    auto const asleep = co_await suspended(bench);
    store::testing::query(
        bench.conninfo,
        "update sandboxes set epoch = 3 where public_id = '" + asleep.public_id + "' returning id");
    bench.start_controller("one");
    co_await bench.wait_for(follows.public_id, SandboxState::suspended);
    auto const until = base::system_clock().in(8s);
    while (bench.worker.machines[awake.public_id].state != "suspended" &&
           base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_EQ(bench.worker.machines[awake.public_id].state, "suspended");
    co_await async::sleep_for(1s);
    EXPECT_EQ(bench.worker.deletes_of(asleep.public_id), 0u)
        << "a suspended one has the epoch of the life before";
    auto const row = co_await bench.row_of(asleep.public_id);
    EXPECT_EQ(row.state, SandboxState::suspended);
  };
  with_bench(body);
}

TEST(ControllerLives, WhatTheWorkerKnowsAgainstAStateIsSaidAndItStaysSuspended) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await suspended(bench);
    bench.worker.machines[row.public_id].lost_reason = "its memory file is \x01 cut short";
    bench.start_controller("one");
    auto const until = soon();
    auto now = row;
    while (now.problem.empty() && base::system_clock().steady_now() < until) {
      co_await async::sleep_for(20ms);
      now = co_await bench.row_of(row.public_id);
    }
    EXPECT_EQ(now.problem, "its memory file is ? cut short");
    EXPECT_EQ(now.state, SandboxState::suspended);
    EXPECT_EQ(bench.worker.deletes_of(row.public_id), 0u);
  };
  with_bench(body);
}

TEST(ControllerLives, ALostStateAndAPowerCutAreReportedAsThat) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const lost = co_await suspended(bench);
    auto const cut = co_await bench.running();
    auto const kept = co_await suspended(bench);
    bench.worker.machines.erase(lost.public_id);
    bench.worker.machines.erase(cut.public_id);
    bench.start_controller("one");
    auto row = co_await bench.wait_for(cut.public_id, SandboxState::failed);
    EXPECT_EQ(row.end_reason, "host_lost");
    EXPECT_THAT(row.end_detail, ::testing::HasSubstr("power cut"));
    row = co_await bench.wait_for(lost.public_id, SandboxState::failed);
    EXPECT_EQ(row.end_reason, "host_lost");
    row = co_await bench.row_of(kept.public_id);
    EXPECT_EQ(row.state, SandboxState::suspended);
  };
  with_bench(body);
}

TEST(ControllerLives, ADrainedNodeIsToldAndPutToSleep) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    bench.start_controller("one");
    std::vector<store::SandboxRow> rows;
    for (int i = 0; i < 4; ++i) {
      auto row = co_await bench.running(3600);
      rows.push_back(std::move(row));
    }
    auto const set = co_await bench.store.nodes.set_draining("node-1", true, soon());
    EXPECT_TRUE(set.has_value());
    for (auto const& row : rows) {
      auto const now = co_await bench.wait_for(row.public_id, SandboxState::suspended);
      EXPECT_TRUE(now.deadline_at.has_value());
    }
    auto const until = base::system_clock().in(5s);
    while (!bench.worker.draining && base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_TRUE(bench.worker.draining);
    auto const off = co_await bench.store.nodes.set_draining("node-1", false, soon());
    EXPECT_TRUE(off.has_value());
    while (bench.worker.draining && base::system_clock().steady_now() < until)
      co_await async::sleep_for(10ms);
    EXPECT_FALSE(bench.worker.draining);
  };
  with_bench(body);
}

wire::SnapshotReport snapshot_of(std::string id, std::string sandbox) {
  wire::SnapshotReport report;
  report.snapshot = std::move(id);
  report.build = "b0";
  report.vcpus = 1;
  report.memory_mib = 512;
  report.disk_mib = 4096;
  report.bytes = 5;
  report.sandbox = std::move(sandbox);
  return report;
}

template <class Condition> store::asio::awaitable<bool> eventually(Condition condition) {
  auto const until = soon();
  while (!condition() && base::system_clock().steady_now() < until)
    co_await async::sleep_for(20ms);
  co_return condition();
}

// As on a host whose pool was kept, with a database that is new, somebody else's, or a restored
// backup from before these were made.
TEST(ControllerLives, WhatIsAtRestAndNotOfThisDatabaseIsKeptAndToldUntilItIsReleased) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const kept = co_await suspended(bench);
    auto const ended = co_await suspended(bench);
    store::End end;
    end.id = ended.id;
    end.event = SandboxEvent::machine_failed;
    end.epoch = ended.epoch;
    end.actor = "test";
    auto const done = co_await bench.store.sandboxes.end(std::move(end), soon());
    EXPECT_TRUE(done && *done);
    auto const unknown = base::SandboxId::make().str();
    bench.worker.add(unknown, 7);
    bench.worker.machines[unknown].state = "suspended";
    // Of a sandbox that the database knows: its backup is older than the snapshot.
    bench.worker.snapshots["snapunknown"] = snapshot_of("snapunknown", kept.public_id);
    bench.start_controller("one");
    auto const report = [&] {
      return store::testing::query(
          bench.conninfo,
          "select report->>'unclaimed' from nodes where report->>'unclaimed_total' = '2'");
    };
    EXPECT_TRUE(co_await eventually([&] { return report().size() == 1; }));
    auto const told = report();
    EXPECT_THAT(told,
                ::testing::ElementsAre(::testing::AllOf(::testing::HasSubstr(unknown),
                                                        ::testing::HasSubstr("snapunknown"))));
    EXPECT_TRUE(
        co_await eventually([&] { return !bench.worker.machines.contains(ended.public_id); }));
    EXPECT_TRUE(bench.worker.machines.contains(unknown));
    EXPECT_TRUE(bench.worker.snapshots.contains("snapunknown"));

    bench.worker.report.release_unclaimed = true;
    EXPECT_TRUE(co_await eventually([&] {
      return !bench.worker.machines.contains(unknown) && bench.worker.snapshots.empty();
    }));
    EXPECT_TRUE(bench.worker.machines.contains(kept.public_id));
  };
  with_bench(body);
}

TEST(ControllerLives, SnapshotsThatWereLeftExpiredOrHaveNoRowGo) {
  auto body = [](Bench& bench) -> store::asio::awaitable<void> {
    auto const row = co_await bench.running();
    auto wanted = [&](std::string name) {
      store::NewSnapshot one;
      one.public_id = base::make_short_id('s');
      one.sandbox_id = row.id;
      one.name = std::move(name);
      one.operation = base::make_short_id('x');
      one.lease_owner = "dead";
      one.lease = 0s;
      return one;
    };
    auto const taken_one = taken(co_await bench.store.snapshots.create(wanted("taken"), soon()));
    auto const never = taken(co_await bench.store.snapshots.create(wanted("never"), soon()));
    auto expires = wanted("old");
    expires.expires_in_s = 3600;
    auto const old = taken(co_await bench.store.snapshots.create(std::move(expires), soon()));
    // Its program died, its row is gone, and then the worker was ready.
    auto const orphan = taken(co_await bench.store.snapshots.create(wanted("orphan"), soon()));
    auto const failed_one = co_await bench.store.snapshots.fail(orphan.id, "e", "why", soon());
    EXPECT_TRUE(failed_one.has_value());
    for (auto const& id : {taken_one.public_id, old.public_id, orphan.public_id})
      bench.worker.snapshots[id] = snapshot_of(id, row.public_id);
    auto const settled = co_await bench.store.snapshots.settle(old.id, 5, soon());
    EXPECT_TRUE(settled.has_value());
    store::testing::query(
        bench.conninfo, "update snapshots set expires_at = now() where name = 'old' returning id");
    bench.start_controller("one");
    auto const until = base::system_clock().in(10s);
    while ((bench.worker.snapshots.size() != 1 || !unfinished(bench).empty()) &&
           base::system_clock().steady_now() < until)
      co_await async::sleep_for(20ms);
    EXPECT_THAT(store::testing::query(bench.conninfo, "select name || ' ' || state from snapshots"),
                ::testing::ElementsAre("taken ready"));
    EXPECT_TRUE(bench.worker.snapshots.contains(taken_one.public_id));
    EXPECT_EQ(bench.worker.snapshots.size(), 1u);
    auto const failed =
        co_await bench.store.operations.find(bench.world.project_id, never.operation, soon());
    EXPECT_EQ(taken(failed)->state, "failed");
  };
  with_bench(body);
}

}  // namespace
}  // namespace controller
