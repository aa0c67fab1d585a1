// Base snapshots and warm machines with played machines.

#include "async/testing.hpp"
#include "worker/testing/fakes.hpp"
#include "worker/worker.hpp"

#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace worker {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using std::chrono::milliseconds;
using testing::FakeAgent;
using testing::Rig;

template <class F> awaitable<bool> eventually(F condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) co_return true;
    co_await async::sleep_for(milliseconds(2));
  }
  co_return condition();
}

/// In the size that a worker makes ahead by itself.
wire::StartSandbox usual() {
  auto request = Rig::request();
  request.disk_mib = wire::StartSandbox().disk_mib;
  return request;
}

class Ahead : public ::testing::Test {
 protected:
  Ahead() {
    rig_.hostd.speak_qmp = true;
    rig_.config.base_snapshots = true;
    rig_.config.disk_mib_per_s_max = 0;
  }

  using Use = std::function<awaitable<void>(Worker*, FakeAgent*)>;

  /// One life of a worker; afterwards all is left as after its death.
  void life(Use use) {
    auto body = [&]() -> awaitable<void> {
      FakeAgent agent(co_await asio::this_coro::executor);
      rig_.hostd.agent_port = agent.port();
      Worker worker(co_await asio::this_coro::executor, rig_.config);
      worker.host().quiet_step = milliseconds(1);
      auto const opened = co_await worker.open();
      EXPECT_TRUE(opened);
      if (opened) co_await use(&worker, &agent);
      co_await worker.close();
      co_await agent.close();
    };
    async::run_test(body);
  }

  static bool usable(Worker const& worker) {
    auto const bases = worker.report().base_snapshots;
    return !bases.empty() && bases.front().usable;
  }

  static std::uint32_t ready(Worker const& worker) {
    std::uint32_t count = 0;
    for (auto const& warm : worker.report().warm)
      count += warm.ready;
    return count;
  }

  static awaitable<bool> wait_base(Worker* worker) {
    co_return co_await eventually([worker] { return usable(*worker); });
  }

  static awaitable<bool> wait_ready(Worker* worker, std::uint32_t count) {
    co_return co_await eventually([=] { return ready(*worker) == count; });
  }

  std::vector<std::string> snapshots(std::string const& prefix) const {
    std::vector<std::string> out;
    for (auto const& item : fs::directory_iterator(rig_.config.pool() + "/snapshots")) {
      if (item.path().filename().string().starts_with(prefix)) out.push_back(item.path());
    }
    return out;
  }

  std::size_t journal_entries() const {
    auto const dir = fs::directory_iterator(rig_.config.data_dir + "/worker/sandboxes");
    return static_cast<std::size_t>(std::distance(begin(dir), end(dir)));
  }

  /// A create that must work, and by what.
  static awaitable<std::string> started_by(Worker* worker, wire::StartSandbox request) {
    auto const started = co_await worker->start(request);
    EXPECT_TRUE(started) << (started ? "" : started.error().message());
    if (!started) co_return "nothing";
    auto const ended = co_await worker->end(request.sandbox, request.epoch);
    EXPECT_TRUE(ended);
    co_return started->started_by;
  }

  Rig rig_;
};

TEST_F(Ahead, ABaseSnapshotIsMadeByItselfAndTheNextCreateGoesOnFromIt) {
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_base(worker));
    EXPECT_EQ(agent->exercises, 1);
    EXPECT_EQ(agent->inits, 1);
    auto const saved_key = agent->last_init->init_key;
    EXPECT_EQ(rig_.hostd.machines(), 0U) << "the recorded machine is gone";
    EXPECT_EQ(rig_.disks(), 0U);
    EXPECT_EQ(journal_entries(), 0U);
    EXPECT_EQ(worker->host().capacity.used(), Amounts());
    auto const request = usual();
    auto const started = co_await worker->start(request);
    EXPECT_EQ(started->started_by, "base snapshot");
    std::vector<std::string> steps;
    for (auto const& step : started->timeline)
      steps.push_back(step.step);
    EXPECT_EQ(
        steps,
        (std::vector<std::string>{
            "admitted", "disk_cloned", "slot_taken", "vmm_started", "restored", "initialised"}));
    EXPECT_EQ(agent->last_init->hostname, request.sandbox);
    EXPECT_EQ(agent->last_init->init_key, saved_key);
    EXPECT_EQ(agent->last_init->next_init_key.size(), 64U);
    EXPECT_NE(agent->last_init->next_init_key, saved_key) << "each clone gets a key of its own";
    EXPECT_GE(agent->last_init->entropy.size(), 64U);
    EXPECT_TRUE(co_await worker->end(request.sandbox, 1));
    auto cold = usual();
    cold.cold = true;
    EXPECT_EQ(co_await started_by(worker, cold), "cold boot");
    auto larger = usual();
    larger.memory_mib = 1024;
    EXPECT_EQ(co_await started_by(worker, larger), "cold boot") << "of another size";
  });
  life([](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    EXPECT_EQ(co_await started_by(worker, usual()), "base snapshot")
        << "the next worker finds it again, and the create waits for that";
    EXPECT_EQ(agent->exercises, 0);
  });
}

TEST_F(Ahead, ASnapshotThatTheMonitorRefusesIsSetAsideAndTheSandboxBootsCold) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_base(worker));
    rig_.hostd.refuse_restore = true;
    auto const request = usual();
    auto const started = co_await worker->start(request);
    EXPECT_TRUE(started);
    EXPECT_EQ(started->started_by, "cold boot");
    EXPECT_EQ(started->timeline.front().step, "admitted");
    EXPECT_EQ(rig_.hostd.machines(), 1U);
    EXPECT_EQ(rig_.disks(), 1U);
    EXPECT_EQ(snapshots("aside-").size(), 1U);
    rig_.hostd.refuse_restore = false;
    EXPECT_TRUE(co_await worker->end(request.sandbox, 1));
    EXPECT_TRUE(co_await wait_base(worker)) << "it is made anew";
  });
}

TEST_F(Ahead, ADamagedSnapshotIsNamedAndMadeAnew) {
  life([](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_base(worker));
  });
  auto const kept = snapshots("base-");
  ASSERT_EQ(kept.size(), 1U);
  fs::permissions(kept[0] + "/state", fs::perms::owner_all);
  std::ofstream(kept[0] + "/state") << "ETATS";
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_EQ(co_await started_by(worker, usual()), "cold boot");
    EXPECT_EQ(snapshots("aside-").size(), 1U);
    EXPECT_TRUE(co_await wait_base(worker));
  });
}

TEST_F(Ahead, AFileChangedUnderTheWorkerIsNoticedByTheCreate) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_base(worker));
    fs::permissions(snapshots("base-")[0] + "/memory", fs::perms::owner_all);
    fs::resize_file(snapshots("base-")[0] + "/memory", 4096);
    EXPECT_EQ(co_await started_by(worker, usual()), "cold boot");
  });
}

TEST_F(Ahead, WarmMachinesAreStoppedClaimedAndReplaced) {
  rig_.config.warm_target = 2;
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 2));
    EXPECT_EQ(rig_.hostd.stops, 3) << "the recorded one, and those that wait";
    EXPECT_EQ(agent->exercises, 9) << "one, and four in the rehearsal of each that waits";
    EXPECT_EQ(agent->inits, 5);
    EXPECT_EQ(agent->connections, 3);
    EXPECT_TRUE(worker->list().empty());
    EXPECT_EQ(worker->report().slots_used, 0U) << "they give way to everybody";
    auto const request = usual();
    auto const started = co_await worker->start(request);
    EXPECT_EQ(started->started_by, "warm machine");
    EXPECT_EQ(started->sandbox, request.sandbox);
    EXPECT_EQ(agent->last_init->hostname, request.sandbox);
    EXPECT_EQ(agent->last_init->accessToken, "token");
    EXPECT_EQ(agent->connections, 3) << "told over the line that its rehearsal left open";
    EXPECT_TRUE(fs::exists(rig_.config.pool() + "/sandboxes/" + request.sandbox + "/disk.img"));
    EXPECT_EQ(worker->list().size(), 1U);
    EXPECT_TRUE(worker->find(request.sandbox));
    auto const again = co_await worker->start(request);
    EXPECT_EQ(again->vmm_pid, started->vmm_pid) << "a repeat is the same";
    EXPECT_TRUE(co_await wait_ready(worker, 2)) << "it is replaced";
    EXPECT_EQ(rig_.hostd.machines(), 3U);
    EXPECT_TRUE(co_await worker->end(request.sandbox, 1));
    EXPECT_EQ(rig_.hostd.machines(), 2U);
    EXPECT_EQ(rig_.disks(), 2U);
  });
}

TEST_F(Ahead, AnAgentThatHungUpIsCalledAnew) {
  rig_.config.warm_target = 1;
  life([](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    agent->hang_up();
    auto const request = usual();
    auto const started = co_await worker->start(request);
    EXPECT_EQ(started->started_by, "warm machine");
    EXPECT_EQ(agent->last_init->hostname, request.sandbox);
    EXPECT_EQ(agent->connections, 3);
  });
}

TEST_F(Ahead, AClaimedMachineIsFoundAgainAndWaitingOnesAreEnded) {
  rig_.config.warm_target = 2;
  auto const request = usual();
  std::int32_t pid = 0;
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 2));
    auto const started = co_await worker->start(request);
    EXPECT_EQ(started->started_by, "warm machine");
    pid = started->vmm_pid;
    EXPECT_TRUE(co_await wait_ready(worker, 2));
  });
  EXPECT_EQ(rig_.hostd.machines(), 3U);
  rig_.config.warm_target = 0;
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await eventually([&] { return rig_.hostd.machines() == 1; }));
    auto const sandbox = worker->find(request.sandbox);
    EXPECT_TRUE(sandbox);
    if (!sandbox) co_return;
    EXPECT_TRUE(co_await eventually([&] { return sandbox->describe().vmm_pid == pid; }));
    EXPECT_EQ(sandbox->describe().started_by, "warm machine");
    EXPECT_TRUE(co_await eventually([&] { return rig_.disks() == 1; }));
    EXPECT_TRUE(co_await worker->end(request.sandbox, 1));
    EXPECT_EQ(rig_.disks(), 0U);
  });
}

TEST_F(Ahead, AWarmMachineThatDiedIsNotHandedOut) {
  rig_.config.warm_target = 1;
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    auto const machine = worker->any_warm();
    EXPECT_TRUE(machine);
    rig_.hostd.kill_machine(machine->slot(), SIGKILL);
    auto const by = co_await started_by(worker, usual());
    EXPECT_TRUE(by == "base snapshot" || by == "warm machine") << by;
    EXPECT_TRUE(co_await wait_ready(worker, 1));
  });
}

TEST_F(Ahead, WarmMachinesMakeRoomForSandboxes) {
  rig_.config.warm_target = 2;
  rig_.config.slots_max = 4;
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 2));
    std::vector<std::string> made;
    for (int i = 0; i < 4; ++i) {
      auto request = usual();
      request.memory_mib = 256;  // none that waits fits
      auto const started = co_await worker->start(request);
      EXPECT_TRUE(started) << (started ? "" : started.error().message());
      made.push_back(request.sandbox);
    }
    EXPECT_EQ(ready(*worker), 0U);
    EXPECT_EQ(rig_.hostd.machines(), 4U);
    auto const fifth = co_await worker->start(usual());
    EXPECT_EQ(fifth.error().code(), base::Code::exhausted);
    for (auto const& sandbox : made)
      EXPECT_TRUE(co_await worker->end(sandbox, 1));
    EXPECT_TRUE(co_await wait_ready(worker, 2));
  });
}

TEST_F(Ahead, WhatIsMadeOfATemplateGoesWithIt) {
  rig_.config.warm_target = 1;
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    fs::rename(rig_.config.pool() + "/templates/b1", rig_.config.pool() + "/templates/b2");
    auto const gone = co_await worker->start(usual());
    EXPECT_EQ(gone.error().code(), base::Code::not_found);
    auto next = usual();
    next.build = "b2";
    EXPECT_EQ(co_await started_by(worker, next), "cold boot") << "never a machine of another build";
    EXPECT_TRUE(co_await eventually([&] {
      auto const warm = worker->any_warm();
      return snapshots("base-").size() == 1 && warm && warm->shape().build == "b2" &&
             rig_.hostd.machines() == 1;
    }));
  });
}

TEST_F(Ahead, WhatIsAtRestOutlivesItsTemplateAndTheMemoryThatItIsBasedOn) {
  rig_.config.warm_target = 1;
  auto request = usual();
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    auto const started = co_await worker->start(request);
    EXPECT_EQ(started ? started->started_by : "nothing", "warm machine");
    EXPECT_TRUE(co_await worker->snapshot(request.sandbox, {1, "before-lunch"}));
    EXPECT_TRUE(
        co_await worker->change(request.sandbox, request.epoch, Sandbox::Change::What::suspend));
  });
  rig_.config.warm_target = 0;
  fs::remove_all(rig_.config.pool() + "/templates/b1");
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await eventually([&] { return snapshots("base-").empty(); }))
        << "what was made of it goes";
    auto child = usual();
    child.from_snapshot = "before-lunch";
    EXPECT_EQ(co_await started_by(worker, child), "snapshot");
    ++request.epoch;
    auto const restored = co_await worker->restore(request.sandbox, request);
    EXPECT_TRUE(restored) << (restored ? "" : restored.error().message());
  });
}

TEST_F(Ahead, AHostThatIsDrainedKeepsNoneWaiting) {
  rig_.config.warm_target = 2;
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 2));
    EXPECT_TRUE(co_await worker->set_drain(true));
    EXPECT_TRUE(co_await eventually([&] { return rig_.hostd.machines() == 0; }));
    EXPECT_TRUE(co_await worker->set_drain(false));
    EXPECT_TRUE(co_await wait_ready(worker, 2));
  });
}

TEST_F(Ahead, TheTargetFollowsTheCreatesWithinBounds) {
  rig_.config.warm_target = 1;
  rig_.config.slots_max = 16;
  rig_.config.memory_mib_max = 64 * 1024;
  life([](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    for (int i = 0; i < 3; ++i)
      co_await started_by(worker, usual());
    EXPECT_TRUE(co_await wait_ready(worker, 3));
    for (int i = 0; i < 6; ++i)
      co_await started_by(worker, usual());
    EXPECT_TRUE(co_await wait_ready(worker, 4)) << "four times what is configured, and no more";
    EXPECT_EQ(worker->report().warm.at(0).target, 4U);
  });
}

TEST_F(Ahead, AClaimThatFailsFallsBackAndLeavesNothing) {
  rig_.config.warm_target = 1;
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    agent->mood = FakeAgent::Mood::wrong_nonce;
    auto const request = usual();
    auto const refused = co_await worker->start(request);
    EXPECT_FALSE(refused);
    EXPECT_TRUE(worker->list().empty());
    EXPECT_FALSE(fs::exists(rig_.config.pool() + "/sandboxes/" + request.sandbox));
    agent->mood = FakeAgent::Mood::honest;
  });
}

wire::Config making_ahead(std::string const& dir) {
  auto config = testing::config_in(dir);
  config.base_snapshots = true;
  config.warm_target = 1;
  return config;
}

/// Not a test: what the walk kills.
TEST(AheadVictim, DISABLED_MakesAheadAndStartsAndEndsOneSandbox) {
  char const* const dir = std::getenv("VICTIM_DIR");  // NOLINT(concurrency-mt-unsafe): one thread
  char const* const request_text =
      std::getenv("VICTIM_REQUEST");  // NOLINT(concurrency-mt-unsafe): one thread
  ASSERT_TRUE(dir && request_text) << "for the fault walk only";
  auto const config = making_ahead(dir);
  auto const request = wire::decode_text<wire::StartSandbox>(request_text).value();
  async::run_test([&]() -> awaitable<void> {
    Worker worker(co_await asio::this_coro::executor, config);
    worker.host().quiet_step = milliseconds(1);
    EXPECT_TRUE(co_await worker.open());
    EXPECT_TRUE(co_await eventually([&] { return worker.any_warm() != nullptr; }));
    EXPECT_TRUE(co_await worker.start(request));
    EXPECT_TRUE(co_await worker.end(request.sandbox, request.epoch));
    co_await worker.close();
  });
}

class AheadWalk : public ::testing::TestWithParam<char const*> {};

/// Killed at each step of what is made ahead and of its use: the next worker leaves nothing of it,
/// makes it again, and has the sandbox running or nothing of it.
TEST_P(AheadWalk, NothingIsLostOrLeft) {
  testing::TempDir dir;
  auto const config = making_ahead(dir.path());
  auto const request = usual();
  testing::FakeHostd hostd(config.hostd_socket());
  hostd.speak_qmp = true;
  async::run_test([&]() -> awaitable<void> {
    FakeAgent agent(co_await asio::this_coro::executor);
    hostd.agent_port = agent.port();
    auto const status =
        co_await testing::run_victim("AheadVictim.*", dir.path(), GetParam(), request);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "the point was never reached: " << status;
    Worker worker(co_await asio::this_coro::executor, config);
    worker.host().quiet_step = milliseconds(1);
    EXPECT_TRUE(co_await worker.open());
    EXPECT_FALSE(worker.find(request.sandbox) &&
                 worker.find(request.sandbox)->state() == Sandbox::State::running)
        << "it was not running yet";
    EXPECT_TRUE(co_await eventually([&] { return worker.list().empty() && worker.any_warm(); }));
    EXPECT_TRUE(co_await eventually([&] { return hostd.machines() == 1; }));
    EXPECT_TRUE(co_await eventually([&] { return worker.host().disks.sandboxes().size() == 1; }));
    for (auto const& item : fs::directory_iterator(config.pool() + "/snapshots"))
      EXPECT_TRUE(item.path().filename().string().starts_with("base-")) << item.path();
    EXPECT_TRUE(
        co_await eventually([&] { return hostd.slots() == worker.host().slots.ready() + 1; }));
    auto next = request;
    next.epoch = 2;
    auto const started = co_await worker.start(next);
    EXPECT_TRUE(started) << "the next life";
    if (started) EXPECT_EQ(started->started_by, "warm machine");
    co_await worker.close();
    co_await agent.close();
  });
}

INSTANTIATE_TEST_SUITE_P(EveryStep,
                         AheadWalk,
                         ::testing::Values("worker.base.exercised",
                                           "vmm.capture.begin",
                                           "vmm.capture.written",
                                           "worker.base.captured",
                                           "worker.base.sealed",
                                           "vmm.restore.begin",
                                           "vmm.restore.loaded",
                                           "worker.base.restored",
                                           "worker.warm.exercised",
                                           "worker.warm.ready",
                                           "worker.warm.journaled",
                                           "worker.warm.renamed",
                                           "worker.warm.claimed"),
                         [](auto const& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace worker
