// Pause, suspend, resume, fork and snapshots through the native routes.
#include "controlplane/testing.hpp"

#include <set>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;

std::string state_of(Answer const& answer) {
  return std::string(answer["sandbox"].as_object().at("state").as_string());
}

TEST(Lives, SuspendAndResumeKeepTheSandboxAndItsTokens) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox(R"({"timeout_s":600})");
    auto const path = "/v1/sandboxes/" + id;
    auto const before = co_await bench.ask("GET", path);
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200) << asleep.text;
    EXPECT_EQ(state_of(asleep), "suspended");
    EXPECT_EQ(asleep["operation"].as_object().at("kind"), "sandbox.suspend");
    auto const& row = asleep["sandbox"].as_object();
    EXPECT_TRUE(row.contains("suspended_at"));
    EXPECT_EQ(row.at("suspended_bytes"), 1 << 20);
    EXPECT_FALSE(row.contains("deadline_at"));
    EXPECT_EQ(bench.worker.moves.back(), "suspend " + id + " 1");
    auto const usage = co_await bench.ask("GET", "/v1/usage");
    EXPECT_EQ(usage["used"].as_object().at("memory_mib"), 0);
    EXPECT_EQ(usage["used"].as_object().at("sandboxes"), 1);
    auto const twice = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(twice.status, 409) << twice.text;
    auto const awake = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(awake.status, 200) << awake.text;
    EXPECT_EQ(state_of(awake), "running");
    EXPECT_EQ(awake["sandbox"].as_object().at("epoch"), 2);
    EXPECT_EQ(awake["sandbox"].as_object().at("access_token"), before["access_token"]);
    EXPECT_TRUE(awake["sandbox"].as_object().contains("deadline_at"));
    EXPECT_EQ(bench.worker.restores.size(), 1u);
    if (bench.worker.restores.empty()) co_return;
    auto const& restore = bench.worker.restores.front();
    EXPECT_EQ(restore.epoch, 2u);
    EXPECT_EQ(restore.build, "b0");
    EXPECT_EQ(restore.access_token, before.str("access_token"));
    EXPECT_TRUE(restore.env.empty());
    EXPECT_TRUE(restore.policy.has_value()) << "never from the captured memory";
    auto const running = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(running.status, 409);
    auto const wrong = co_await bench.ask("POST", path + "/resume", R"({"timeout_s":0})");
    EXPECT_EQ(wrong.status, 400);
    auto const gone = co_await bench.ask("DELETE", path + "?wait=20");
    EXPECT_EQ(gone.status, 200) << gone.text;
  });
}

TEST(Lives, ATagThatMovesTakesNoSandboxAlong) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const taken = co_await bench.ask("POST", path + "/snapshots?wait=20", R"({"name":"one"})");
    EXPECT_EQ(taken.status, 201) << taken.text;
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200) << asleep.text;
    store::NewBuild newer;
    newer.name = "base";
    newer.build = "b9";
    auto const moved = co_await bench.api->store().templates.register_build(newer, soon());
    EXPECT_TRUE(moved.has_value());
    auto const awake = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(awake.status, 200) << awake.text;
    EXPECT_EQ(bench.worker.restores.back().build, "b0");
    auto const copy = co_await bench.ask("POST", "/v1/sandboxes?wait=20", R"({"snapshot":"one"})");
    EXPECT_EQ(copy.status, 201) << copy.text;
    EXPECT_EQ(bench.worker.starts.back().build, "b0");
  });
}

TEST(Lives, PauseStandsStillAndAnythingAllowedFollows) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const paused = co_await bench.ask("POST", path + "/pause?wait=20");
    EXPECT_EQ(paused.status, 200) << paused.text;
    EXPECT_EQ(state_of(paused), "paused");
    auto const resumed = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(state_of(resumed), "running");
    EXPECT_EQ(resumed["sandbox"].as_object().at("epoch"), 1) << "the same machine";
    auto const again = co_await bench.ask("POST", path + "/pause?wait=20");
    EXPECT_EQ(again.status, 200);
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(state_of(asleep), "suspended");
    auto const pause = co_await bench.ask("POST", path + "/pause");
    EXPECT_EQ(pause.status, 409);
    EXPECT_THAT(pause.message(), HasSubstr("suspended"));
  });
}

TEST(Lives, TwoResumesAtOnceAreOne) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200);
    bench.worker.move_delay = 200ms;
    async::TaskGroup group(co_await asio::this_coro::executor);
    std::set<std::string> operations;
    auto one = [&]() -> asio::awaitable<void> {
      auto const answer = co_await bench.ask("POST", path + "/resume?wait=20");
      EXPECT_EQ(answer.status, 200) << answer.text;
      if (answer.status == 200)
        operations.insert(std::string(answer["operation"].as_object().at("id").as_string()));
    };
    for (int i = 0; i < 5; ++i)
      group.spawn("resume", one());
    co_await group.join();
    EXPECT_EQ(operations.size(), 1u);
    EXPECT_EQ(bench.worker.restores.size(), 1u);
  });
}

TEST(Lives, AFailedSuspendGoesOnAndAFailedRestoreKeepsItsState) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    bench.worker.move_refusal = base::Error(base::Code::exhausted, "the pool is full");
    auto const refused = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(refused.status, 429) << refused.text;
    EXPECT_THAT(refused.message(), HasSubstr("the pool is full"));
    auto row = co_await bench.ask("GET", path);
    EXPECT_EQ(row.str("state"), "running");
    bench.worker.move_refusal.reset();
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200) << asleep.text;
    bench.worker.move_refusal = base::Error(base::Code::conflict, "its memory file is damaged");
    auto const damaged = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(damaged.status, 409) << damaged.text;
    row = co_await bench.ask("GET", path);
    EXPECT_EQ(row.str("state"), "suspended");
    EXPECT_EQ(row.str("problem"), "its memory file is damaged");
    auto const usage = co_await bench.ask("GET", "/v1/usage");
    EXPECT_EQ(usage["used"].as_object().at("memory_mib"), 0);
    bench.worker.move_refusal.reset();
    auto const awake = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(awake.status, 200) << awake.text;
    EXPECT_FALSE(awake["sandbox"].as_object().contains("problem"));
    EXPECT_EQ(awake["sandbox"].as_object().at("epoch"), 3);
  });
}

TEST(Lives, AResumeNeedsRoomInTheQuota) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200);
    auto const set = co_await bench.ask(
        "PATCH", "/v1/projects/" + bench.world.project, R"({"quota":{"memory_mib":512}})");
    EXPECT_EQ(set.status, 200);
    auto const other = co_await bench.sandbox();
    auto const refused = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_EQ(refused.status, 429) << refused.text;
    auto const row = co_await bench.ask("GET", path);
    EXPECT_EQ(row.str("state"), "suspended");
    EXPECT_EQ(row["epoch"], 1);
  });
}

TEST(Lives, ADeleteInTheMiddleOfASuspendWins) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    bench.worker.move_delay = 300ms;
    auto const suspending = co_await bench.ask("POST", path + "/suspend");
    EXPECT_EQ(suspending.status, 202) << suspending.text;
    EXPECT_EQ(state_of(suspending), "suspending");
    auto const operation = std::string(suspending["operation"].as_object().at("id").as_string());
    auto const deleted = co_await bench.ask("DELETE", path + "?wait=20");
    EXPECT_EQ(deleted.status, 200) << deleted.text;
    auto const suspend = co_await bench.ask("GET", "/v1/operations/" + operation + "?wait=20");
    EXPECT_EQ(suspend.str("state"), "failed");
    co_await async::sleep_for(400ms);
    EXPECT_FALSE(bench.worker.machines.contains(id));
  });
}

/// Its machine dies while the worker is at something, and a controller writes that down.
asio::awaitable<void> dies_in_between(Bench* bench, std::string id) {
  auto const moves = [bench, id] {
    return store::testing::query(bench->database.conninfo,
                                 "select state from sandboxes where public_id = '" + id +
                                     "' and state in ('pausing', 'suspending')");
  };
  while (moves().empty())
    co_await async::sleep_for(5ms);
  bench->worker.machines.erase(id);
  co_await async::sleep_for(250ms);
  auto row = co_await bench->api->store().sandboxes.find_live(id, soon());
  store::End end;
  end.id = (**row).id;
  end.event = domain::SandboxEvent::machine_failed;
  end.actor = "worker";
  end.reason = domain::EndReason::guest_panic;
  auto const ended = co_await bench->api->store().sandboxes.end(std::move(end), soon());
  EXPECT_TRUE(ended.has_value() && *ended);
}

TEST(Lives, AMachineThatDiesUnderAChangeIsToldAsItsEnd) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    for (std::string const verb : {"/pause", "/suspend"}) {
      auto const id = co_await bench.sandbox();
      bench.worker.move_delay = 100ms;
      async::TaskGroup group(co_await asio::this_coro::executor);
      group.spawn("death", dies_in_between(&bench, id));
      auto const path = "/v1/sandboxes/" + id;
      auto const answer = co_await bench.ask("POST", path + verb + "?wait=20");
      EXPECT_EQ(answer.status, 409) << answer.text;
      EXPECT_THAT(answer.message(),
                  HasSubstr("the sandbox has ended: the guest's kernel panicked"));
      auto const row = co_await bench.ask("GET", path);
      EXPECT_EQ(row.str("end_reason"), "guest_panic");
      auto const again = co_await bench.ask("POST", path + verb);
      EXPECT_EQ(again.status, 404) << again.text;
      co_await group.join();
    }
  });
}

TEST(Lives, AProjectSaysHowLongItKeepsSuspendedSandboxes) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const project = "/v1/projects/" + bench.world.project;
    for (std::string const bad : {"0", "3599", "-1", "99999999999"}) {
      auto const refused =
          co_await bench.ask("PATCH", project, R"({"suspended_keep_s":)" + bad + "}");
      EXPECT_EQ(refused.status, 400) << refused.text;
      EXPECT_THAT(refused.message(), HasSubstr("suspended_keep_s: expected"));
    }
    auto const set = co_await bench.ask("PATCH", project, R"({"suspended_keep_s":7200})");
    EXPECT_EQ(set["suspended_keep_s"], 7200);
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const asleep = co_await bench.ask("POST", path + "/suspend?wait=20");
    EXPECT_TRUE(asleep["sandbox"].as_object().contains("expires_at")) << asleep.text;
    auto const awake = co_await bench.ask("POST", path + "/resume?wait=20");
    EXPECT_FALSE(awake["sandbox"].as_object().contains("expires_at")) << awake.text;
    auto const none = co_await bench.ask("PATCH", project, R"({"suspended_keep_s":null})");
    EXPECT_FALSE(none.body.as_object().contains("suspended_keep_s"));
  });
}

TEST(Lives, ACommandWakesASandboxThatWantsIt) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const asleep = co_await bench.ask("POST", "/v1/sandboxes/" + id + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200);
    auto const listed = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/commands");
    EXPECT_EQ(listed.status, 200) << listed.text;
    auto const row = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(row.str("state"), "running");
    auto const not_mine = co_await bench.sandbox(R"({"auto_resume":false})");
    auto const off = co_await bench.ask("POST", "/v1/sandboxes/" + not_mine + "/suspend?wait=20");
    EXPECT_EQ(off.status, 200);
    auto const refused = co_await bench.ask("GET", "/v1/sandboxes/" + not_mine + "/commands");
    EXPECT_EQ(refused.status, 409) << refused.text;
  });
}

TEST(Lives, ACommandWaitsForTheEndOfAChangeThatIsUnderWay) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox(R"({"auto_resume":false})");
    auto const path = "/v1/sandboxes/" + id;
    bench.worker.move_delay = 200ms;
    bench.worker.move_refusal = base::Error(base::Code::exhausted, "the pool is full");
    auto const refused = co_await bench.ask("POST", path + "/suspend");
    EXPECT_EQ(state_of(refused), "suspending");
    auto const goes_on = co_await bench.ask("GET", path + "/commands");
    EXPECT_EQ(goes_on.status, 200) << goes_on.text;
    bench.worker.move_refusal.reset();
    auto const asleep = co_await bench.ask("POST", path + "/suspend");
    EXPECT_EQ(state_of(asleep), "suspending");
    auto const sleeps = co_await bench.ask("GET", path + "/commands");
    EXPECT_EQ(sleeps.status, 409) << sleeps.text;
    EXPECT_THAT(sleeps.message(), HasSubstr("is suspended"));
    auto const coming = co_await bench.ask("POST", path + "/resume");
    EXPECT_EQ(state_of(coming), "restoring");
    auto const awake = co_await bench.ask("GET", path + "/commands");
    EXPECT_EQ(awake.status, 200) << awake.text;
  });
}

TEST(Lives, ARestartedWorkerIsWaitedFor) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    co_await bench.worker.stop();
    auto const begun = co_await bench.ask("POST", "/v1/sandboxes/" + id + "/suspend");
    EXPECT_EQ(begun.status, 202) << begun.text;
    co_await async::sleep_for(300ms);
    bench.worker.start();
    auto const operation = std::string(begun["operation"].as_object().at("id").as_string());
    auto const done = co_await bench.ask("GET", "/v1/operations/" + operation + "?wait=20");
    EXPECT_EQ(done.str("state"), "succeeded") << done.text;
  });
}

TEST(Snapshots, AreTakenListedStartedFromAndRemoved) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const path = "/v1/sandboxes/" + id;
    auto const taken = co_await bench.ask("POST", path + "/snapshots?wait=20", R"({"name":"one"})");
    EXPECT_EQ(taken.status, 201) << taken.text;
    auto const snapshot = std::string(taken["snapshot"].as_object().at("id").as_string());
    EXPECT_TRUE(bench.worker.snapshots.contains(snapshot));
    auto const list = co_await bench.ask("GET", "/v1/snapshots?sandbox=" + id);
    EXPECT_EQ(list["snapshots"].as_array().size(), 1u);
    auto const made = co_await bench.ask("POST", "/v1/sandboxes?wait=20", R"({"snapshot":"one"})");
    EXPECT_EQ(made.status, 201) << made.text;
    EXPECT_EQ(made["sandbox"].as_object().at("snapshot").as_string(), snapshot);
    EXPECT_EQ(bench.worker.starts.back().from_snapshot, snapshot);
    auto const bigger = co_await bench.ask(
        "POST", "/v1/sandboxes?wait=20", R"({"snapshot":"one","memory_mib":2048})");
    EXPECT_EQ(bigger.status, 400) << bigger.text;
    auto const removed = co_await bench.ask("DELETE", "/v1/snapshots/" + snapshot);
    EXPECT_EQ(removed.status, 204) << removed.text;
    EXPECT_FALSE(bench.worker.snapshots.contains(snapshot));
    auto const again = co_await bench.ask("DELETE", "/v1/snapshots/" + snapshot);
    EXPECT_EQ(again.status, 404);
    auto const none = co_await bench.ask("POST", "/v1/sandboxes", R"({"snapshot":"one"})");
    EXPECT_EQ(none.status, 404);
    bench.worker.move_refusal = base::Error(base::Code::exhausted, "the pool is full");
    auto const full = co_await bench.ask("POST", path + "/snapshots?wait=20");
    EXPECT_EQ(full.status, 429) << full.text;
    auto const rows =
        store::testing::query(bench.database.conninfo, "select count(*)::text from snapshots");
    EXPECT_EQ(rows.front(), "0");
  });
}

TEST(Lives, IdleTimeComesFromTheSandboxItsTemplateItsProjectOrTheInstallation) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const project = "/v1/projects/" + bench.world.project;
    auto const idle_of = [&](std::string id) -> asio::awaitable<std::int64_t> {
      auto const row = co_await bench.ask("GET", "/v1/sandboxes/" + id);
      auto const* idle = row.body.as_object().if_contains("idle_timeout_s");
      co_return idle ? idle->to_number<std::int64_t>() : 0;
    };
    auto const first = co_await bench.sandbox();
    auto const installation = co_await idle_of(first);
    EXPECT_EQ(installation, 21'600);
    auto const set = co_await bench.ask("PATCH", project, R"({"idle_timeout_s":600})");
    EXPECT_EQ(set.status, 200) << set.text;
    EXPECT_EQ(set["idle_timeout_s"], 600);
    auto const second = co_await bench.sandbox();
    auto const of_project = co_await idle_of(second);
    EXPECT_EQ(of_project, 600);
    store::testing::query(
        bench.database.conninfo,
        "update template_builds set manifest = '{\"idle_timeout_s\": 900}' returning id");
    auto const from_template = co_await bench.sandbox();
    auto const of_template = co_await idle_of(from_template);
    EXPECT_EQ(of_template, 900);
    auto const third = co_await bench.sandbox(R"({"idle_timeout_s":0})");
    auto const own = co_await idle_of(third);
    EXPECT_EQ(own, 0) << "never";
    auto const none = co_await bench.ask("PATCH", project, R"({"idle_timeout_s":null})");
    EXPECT_FALSE(none.body.as_object().contains("idle_timeout_s"));
    auto const bad = co_await bench.ask("PATCH", project, R"({"idle_timeout_s":-1})");
    EXPECT_EQ(bad.status, 400);
    auto const empty = co_await bench.ask("PATCH", project, "{}");
    EXPECT_EQ(empty.status, 400);
    auto const quota = co_await bench.ask("PATCH", project, R"({"quota":{"snapshots":0}})");
    EXPECT_EQ(quota["quota"].as_object().at("snapshots"), 0);
    auto const refused = co_await bench.ask("POST", "/v1/sandboxes/" + first + "/snapshots");
    EXPECT_EQ(refused.status, 429) << refused.text;
  });
}

TEST(Forks, HaveNamesAndTokensOfTheirOwnAndLeaveNoSnapshot) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id =
        co_await bench.sandbox(R"({"metadata":{"a":"b"},"env":{"X":"y"},"timeout_s":600})");
    auto const before = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    auto const forked =
        co_await bench.ask("POST", "/v1/sandboxes/" + id + "/fork", R"({"count":3})");
    EXPECT_EQ(forked.status, 201) << forked.text;
    std::set<std::string> ids{id};
    std::set<std::string> tokens{bench.guest.token};
    for (auto const& one : forked["forks"].as_array()) {
      auto const& sandbox = one.at("sandbox").as_object();
      EXPECT_EQ(sandbox.at("parent").as_string(), id);
      EXPECT_EQ(sandbox.at("state"), "running");
      EXPECT_EQ(sandbox.at("metadata").at("a"), "b");
      ids.insert(std::string(sandbox.at("id").as_string()));
      tokens.insert(std::string(sandbox.at("access_token").as_string()));
    }
    EXPECT_EQ(ids.size(), 4u);
    EXPECT_EQ(tokens.size(), 4u);
    auto const after = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(after["deadline_at"], before["deadline_at"])
        << "standing still for it is not more time";
    EXPECT_EQ(bench.worker.starts.back().env.at("X"), "y");
    EXPECT_EQ(bench.worker.starts.back().env.at("E2B_SANDBOX_ID"),
              bench.worker.starts.back().sandbox);
    EXPECT_TRUE(bench.worker.snapshots.empty());
    auto const list = co_await bench.ask("GET", "/v1/snapshots");
    EXPECT_TRUE(list["snapshots"].as_array().empty());
    auto const rows =
        store::testing::query(bench.database.conninfo, "select count(*)::text from snapshots");
    EXPECT_EQ(rows.front(), "0");
    auto const none = co_await bench.ask("POST", "/v1/sandboxes/" + id + "/fork", R"({"count":0})");
    EXPECT_EQ(none.status, 400);
  });
}

TEST(Wake, IsForThoseWhoWantItAndTouchKeepsAwake) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const asleep = co_await bench.ask("POST", "/v1/sandboxes/" + id + "/suspend?wait=20");
    EXPECT_EQ(asleep.status, 200);
    auto const woken = co_await internally(bench, "POST", "/wake?sandbox=" + id);
    EXPECT_EQ(woken.status, 200) << woken.body;
    EXPECT_THAT(woken.body, HasSubstr(R"("state":"running")"));
    EXPECT_THAT(woken.body, HasSubstr(R"("epoch":2)"));
    auto const other = co_await bench.sandbox(R"({"auto_resume":false})");
    auto const off = co_await bench.ask("POST", "/v1/sandboxes/" + other + "/suspend?wait=20");
    EXPECT_EQ(off.status, 200);
    auto const refused = co_await internally(bench, "POST", "/wake?sandbox=" + other);
    EXPECT_EQ(refused.status, 409) << refused.body;
    auto const nobody = co_await internally(bench, "POST", "/wake?sandbox=nobody");
    EXPECT_EQ(nobody.status, 404);
    auto const old = store::testing::query(
        bench.database.conninfo,
        "update sandboxes set used_at = now() - interval '1 hour' returning public_id");
    EXPECT_EQ(old.size(), 2u);
    auto const used = co_await internally(
        bench, "POST", "/activity", R"({"sandboxes":["nonsense",")" + id + R"("]})");
    EXPECT_EQ(used.status, 204) << used.body;
    auto const fresh = store::testing::query(
        bench.database.conninfo,
        "select public_id from sandboxes where used_at > now() - interval '1 minute'");
    EXPECT_THAT(fresh, ::testing::ElementsAre(id));
  });
}

TEST(SuspendAll, PutsAHostToSleepAndSaysWhoWouldNot) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    std::set<std::string> ids;
    for (int i = 0; i < 6; ++i) {
      auto const id = co_await bench.sandbox(R"({"timeout_s":900})");
      ids.insert(id);
    }
    auto const done = co_await internally(bench, "POST", "/suspend?node=node-1");
    EXPECT_EQ(done.status, 200);
    EXPECT_EQ(done.body, R"({"suspended":6,"failed":[]})");
    for (auto const& id : ids) {
      EXPECT_EQ(bench.worker.machines[id].state, "suspended");
      auto const row = co_await bench.ask("GET", "/v1/sandboxes/" + id);
      EXPECT_EQ(row.str("state"), "suspended");
      EXPECT_TRUE(row.body.as_object().contains("deadline_at")) << "its owner's timeout stays";
    }
    auto const id = co_await bench.sandbox();
    bench.worker.move_refusal = base::Error(base::Code::exhausted, "the pool is full");
    auto const failed = co_await internally(bench, "POST", "/suspend?node=node-1");
    EXPECT_THAT(failed.body, HasSubstr(R"("suspended":0)"));
    EXPECT_THAT(failed.body, HasSubstr("the pool is full"));
    EXPECT_THAT(failed.body, HasSubstr(id));
    auto const row = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(row.str("state"), "running");
  });
}

TEST(Drain, IsSaidOfANode) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const on = co_await bench.ask("POST", "/v1/nodes/node-1/drain");
    EXPECT_EQ(on.status, 200) << on.text;
    EXPECT_EQ(on["draining"], true);
    EXPECT_TRUE(bench.worker.draining);
    auto const refused = co_await bench.ask("POST", "/v1/sandboxes");
    EXPECT_EQ(refused.status, 503) << refused.text;
    auto const off = co_await bench.ask("POST", "/v1/nodes/node-1/drain", R"({"on":false})");
    EXPECT_EQ(off["draining"], false);
    EXPECT_FALSE(bench.worker.draining);
    auto const id = co_await bench.sandbox();
    EXPECT_FALSE(id.empty());
    auto const none = co_await bench.ask("POST", "/v1/nodes/nowhere/drain");
    EXPECT_EQ(none.status, 404);
  });
}

}  // namespace
}  // namespace controlplane
