// Pause, suspend, restore and snapshots with played machines: what is kept, what is released, and
// that a sandbox is always one of both.

#include "async/testing.hpp"
#include "worker/testing/fakes.hpp"
#include "worker/worker.hpp"

#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <unistd.h>

namespace worker {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using base::Code;
using std::chrono::milliseconds;
using testing::FakeAgent;
using ::testing::HasSubstr;
using testing::Rig;
using What = Sandbox::Change::What;

template <class F> awaitable<bool> eventually(F condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) co_return true;
    co_await async::sleep_for(milliseconds(5));
  }
  co_return condition();
}

/// One for the whole program, which reads its name once; a victim's is given.
std::string const fault_file = [] {
  if (char const* const given = std::getenv("SPACE_FAULT_FILE")) return std::string(given);
  std::string path = "/tmp/space-suspend-faults-XXXXXX";
  ::close(::mkstemp(path.data()));
  ::setenv("SPACE_FAULT_FILE", path.c_str(), 1);
  static struct Remove {
    std::string path;
    ~Remove() { ::unlink(path.c_str()); }
  } const remove{path};
  return path;
}();

class Suspend : public ::testing::Test {
 protected:
  Suspend() { rig_.hostd.speak_qmp = true; }

  ~Suspend() override { std::ofstream(fault_file) << ""; }

  using Use = std::function<awaitable<void>(Worker*, FakeAgent*)>;

  /// One life of a worker; afterwards all is left as after its death.
  void life(Use use) {
    auto body = [&]() -> awaitable<void> {
      FakeAgent agent(co_await asio::this_coro::executor);
      rig_.hostd.agent_port = agent.port();
      Worker worker(co_await asio::this_coro::executor, rig_.config);
      auto const opened = co_await worker.open();
      EXPECT_TRUE(opened) << (opened ? "" : opened.error().message() + opened.error().detail());
      if (opened) co_await use(&worker, &agent);
      co_await worker.close();
      co_await agent.close();
    };
    async::run_test(body);
  }

  /// A running sandbox; its memory holds `text`.
  awaitable<wire::StartSandbox> start(Worker* worker, std::string text = "kept") {
    rig_.hostd.write_memory(4096 * 7, text);
    auto request = Rig::request();
    auto const started = co_await worker->start(request);
    EXPECT_TRUE(started) << (started ? "" : started.error().message());
    co_return request;
  }

  static awaitable<bool> suspended(Worker* worker, wire::StartSandbox request) {
    auto const done = co_await worker->change(request.sandbox, request.epoch, What::suspend);
    EXPECT_TRUE(done) << (done ? "" : done.error().message() + done.error().detail());
    if (done) EXPECT_EQ(done->state, "suspended");
    co_return done.has_value();
  }

  static wire::StartSandbox next_life(wire::StartSandbox request) {
    ++request.epoch;
    request.env.clear();
    request.access_token = "another";
    return request;
  }

  std::string dir(wire::StartSandbox const& request) const {
    return rig_.config.pool() + "/suspended/" + request.sandbox;
  }

  static void arm(std::string const& line) { std::ofstream(fault_file) << line << "\n"; }

  Rig rig_;
};

TEST_F(Suspend, APausedSandboxStandsStillAndIsToldTheTimeWhenItGoesOn) {
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    auto const request = co_await start(worker);
    auto const paused = co_await worker->change(request.sandbox, 1, What::pause);
    EXPECT_EQ(paused->state, "paused");
    EXPECT_EQ(rig_.hostd.halted(), 1U);
    auto const refused = co_await worker->find(request.sandbox)->set_token("x");
    EXPECT_EQ(refused.error().code(), Code::conflict);
    auto const other = co_await worker->change(request.sandbox, 2, What::resume);
    EXPECT_EQ(other.error().code(), Code::conflict) << "another life";
    auto const before = agent->inits;
    auto const resumed = co_await worker->change(request.sandbox, 1, What::resume);
    EXPECT_EQ(resumed->state, "running");
    EXPECT_EQ(rig_.hostd.halted(), 0U);
    EXPECT_EQ(agent->inits, before + 1);
    EXPECT_NE(agent->last_init->timestamp, "");
    EXPECT_GE(agent->last_init->entropy.size(), 64U);
    EXPECT_FALSE(agent->last_init->accessToken);
    EXPECT_TRUE(co_await worker->end(request.sandbox, 1));
  });
}

TEST_F(Suspend, APausedSandboxIsStillPausedUnderTheNextWorkerAndCanBeEnded) {
  wire::StartSandbox request;
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    request = co_await start(worker);
    EXPECT_TRUE(co_await worker->change(request.sandbox, 1, What::pause));
  });
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_EQ(worker->find(request.sandbox)->describe().state, "paused");
    auto const ended = co_await worker->end(request.sandbox, 1);
    EXPECT_EQ(ended->cause, "deleted");
    EXPECT_EQ(rig_.hostd.machines(), 0U);
  });
}

TEST_F(Suspend, ASuspendedSandboxHoldsNothingButItsFilesAndGoesOnAsItself) {
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    auto const request = co_await start(worker);
    auto const key = agent->last_init->init_key;
    if (!co_await suspended(worker, request)) co_return;
    EXPECT_EQ(rig_.hostd.machines(), 0U);
    EXPECT_EQ(rig_.disks(), 0U);
    EXPECT_EQ(worker->host().capacity.used(), (Amounts{.disk_mib = 4 + 1}));
    EXPECT_TRUE(fs::exists(dir(request) + "/manifest.json"));
    auto const listed = worker->list();
    EXPECT_EQ(listed.size(), 1U);
    EXPECT_EQ(listed[0].state, "suspended");
    EXPECT_EQ(listed[0].vmm_pid, 0);
    EXPECT_GT(listed[0].suspended_bytes, 4096U);
    EXPECT_LT(listed[0].suspended_bytes, 64U * 1024) << "only what was written";

    auto const older = co_await worker->restore(request.sandbox, request);
    EXPECT_EQ(older.error().code(), Code::conflict) << "a new life has a new number";
    auto const next = next_life(request);
    worker->host().capacity.set_disk_total(1);  // the pool shrank: what it has is its own
    auto const restored = co_await worker->restore(request.sandbox, next);
    EXPECT_TRUE(restored) << (restored ? "" : restored.error().message());
    if (!restored) co_return;
    EXPECT_EQ(restored->state, "running");
    EXPECT_EQ(restored->epoch, 2U);
    EXPECT_EQ(restored->started_by, "suspended state");
    auto const& init = *agent->last_init;
    EXPECT_EQ(init.init_key, key);
    EXPECT_EQ(init.accessToken, "another");
    EXPECT_FALSE(init.envVars) << "an empty one changes none";
    EXPECT_EQ(init.machine_id, "");
    EXPECT_NE(init.timestamp, "");
    EXPECT_FALSE(fs::exists(dir(request)));
    EXPECT_EQ(worker->host().capacity.used().slots, 1U);
    auto const again = co_await worker->restore(request.sandbox, next);
    EXPECT_TRUE(again) << "a repeat of the same";
    EXPECT_TRUE(co_await worker->end(request.sandbox, 2));
    EXPECT_EQ(worker->host().capacity.used(), Amounts());
    EXPECT_EQ(rig_.disks(), 0U);
  });
}

TEST_F(Suspend, WhoWaitedToTellTheGuestDoesNotTellTheNextOneInItsSlot) {
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    auto const request = co_await start(worker);
    auto const sandbox = worker->find(request.sandbox);
    agent->mood = FakeAgent::Mood::silent;
    auto const connections = agent->connections;
    std::vector<Code> ends;
    auto const tell = [&ends](std::shared_ptr<Sandbox> to, std::string token) -> awaitable<void> {
      auto const told = co_await to->set_token(std::move(token));
      ends.push_back(told ? Code::internal : told.error().code());
    };
    async::TaskGroup group(co_await asio::this_coro::executor);
    group.spawn("talks", tell(sandbox, "first"));
    EXPECT_TRUE(co_await eventually([&] { return agent->connections > connections; }));
    group.spawn("waits", tell(sandbox, "second"));
    EXPECT_TRUE(co_await suspended(worker, request));
    // From here on, whoever answers in that slot is another sandbox's guest.
    agent->mood = FakeAgent::Mood::honest;
    auto const inits = agent->inits;
    agent->hang_up();
    co_await group.join();
    EXPECT_EQ(ends, (std::vector<Code>{Code::unavailable, Code::conflict}));
    EXPECT_EQ(agent->inits, inits);
  });
}

TEST_F(Suspend, NobodyWaitsForTheSlotOfASuspendedSandboxAndItIsRemovedAllTheSame) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const request = co_await start(worker);
    rig_.hostd.fail_remove = 2;
    EXPECT_TRUE(co_await suspended(worker, request));
    EXPECT_GT(rig_.hostd.fail_remove, 0) << "it was waited for";
    // None is left but those that wait for others.
    EXPECT_TRUE(co_await eventually([&] {
      return rig_.hostd.fail_remove == 0 && rig_.hostd.slots() == worker->host().slots.ready();
    }));
  });
}

TEST_F(Suspend, TheNextWorkerFindsItSuspendedAndCyclesGoOn) {
  wire::StartSandbox request;
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    request = co_await start(worker);
    EXPECT_TRUE(co_await suspended(worker, request));
  });
  for (int i = 0; i < 3; ++i) {
    life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
      EXPECT_EQ(worker->find(request.sandbox)->describe().state, "suspended");
      EXPECT_EQ(worker->host().capacity.used(), (Amounts{.disk_mib = 4 + 1}));
      request = next_life(request);
      auto const restored = co_await worker->restore(request.sandbox, request);
      EXPECT_TRUE(restored) << (restored ? "" : restored.error().message());
      EXPECT_TRUE(co_await suspended(worker, request));
    });
  }
  // The journal is gone with the host's power: what was kept of it says all.
  fs::remove_all(rig_.config.data_dir + "/worker/sandboxes");
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const here = worker->find(request.sandbox);
    EXPECT_TRUE(here);
    if (!here) co_return;
    EXPECT_EQ(here->epoch(), request.epoch);
    auto const ended = co_await worker->end(request.sandbox, request.epoch);
    EXPECT_EQ(ended->cause, "deleted");
    EXPECT_FALSE(fs::exists(dir(request)));
    EXPECT_EQ(worker->host().capacity.used(), Amounts());
  });
}

TEST_F(Suspend, AfterAPowerCutSuspendedOnesAreWholeAndRunningOnesToldLost) {
  wire::StartSandbox asleep, awake;
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    asleep = co_await start(worker);
    EXPECT_TRUE(co_await suspended(worker, asleep));
    awake = co_await start(worker);
  });
  rig_.hostd.forget_all();
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await eventually([&] { return !worker->find(awake.sandbox); }));
    auto const* over = worker->host().ended.find(awake.sandbox);
    EXPECT_TRUE(over);
    if (!over) co_return;
    EXPECT_EQ(over->cause, "host_stopped");
    EXPECT_THAT(over->detail, HasSubstr("power cut"));
    EXPECT_TRUE(co_await worker->restore(asleep.sandbox, next_life(asleep)));
  });
}

/// hostd knows a claimed machine by another name: until it is suspended, and no longer.
TEST_F(Suspend, AWarmMachineIsSuspendedOnItsBaseAndFoundAgainAfterwards) {
  rig_.config.base_snapshots = true;
  rig_.config.warm_target = 1;
  auto request = Rig::request();
  request.disk_mib = wire::StartSandbox().disk_mib;
  auto const ready = [](Worker* worker) {
    return eventually([worker] { return worker->any_warm() != nullptr; });
  };
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await ready(worker));
    auto const started = co_await worker->start(request);
    EXPECT_EQ(started->started_by, "warm machine");
    EXPECT_TRUE(co_await suspended(worker, request));
    EXPECT_TRUE(fs::exists(dir(request) + "/base"));
  });
  auto const base = fs::hard_link_count(dir(request) + "/base");
  EXPECT_GE(base, 2U) << "the same file: one copy in the page cache";
  rig_.config.warm_target = 0;
  request = next_life(request);
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const restored = co_await worker->restore(request.sandbox, request);
    EXPECT_TRUE(restored) << (restored ? "" : restored.error().message());
  });
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const here = worker->find(request.sandbox);
    EXPECT_TRUE(co_await eventually([&] { return here->describe().vmm_pid != 0; }));
    EXPECT_EQ(here->describe().state, "running") << "its machine is no orphan";
    EXPECT_TRUE(co_await suspended(worker, request));
    EXPECT_TRUE(fs::exists(dir(request) + "/base"));
    EXPECT_TRUE(co_await worker->restore(request.sandbox, next_life(request)));
    EXPECT_TRUE(co_await worker->end(request.sandbox, request.epoch + 1));
  });
}

TEST_F(Suspend, OfTwoRestoresAtOnceOneWins) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const request = co_await start(worker);
    if (!co_await suspended(worker, request)) co_return;
    auto one = next_life(request);
    auto two = next_life(one);
    std::vector<base::Result<wire::WorkerSandbox>> ends;
    auto restore = [&](wire::StartSandbox life) -> awaitable<void> {
      ends.push_back(co_await worker->restore(life.sandbox, life));
    };
    async::TaskGroup both(co_await asio::this_coro::executor);
    both.spawn("one", restore(one));
    both.spawn("two", restore(two));
    co_await both.join();
    EXPECT_EQ(ends.size(), 2U);
    EXPECT_EQ(std::ranges::count_if(ends, [](auto const& e) { return e.has_value(); }), 1);
    EXPECT_EQ(rig_.hostd.machines(), 1U);
  });
}

TEST_F(Suspend, AStateThatIsNotWhatWeWroteIsRefusedByNameAndKept) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const request = co_await start(worker);
    if (!co_await suspended(worker, request)) co_return;
    struct Damage {
      char const* file;
      char const* says;
      bool cut;
    };
    auto const started = rig_.hostd.starts.load();
    for (auto const& damage : {Damage{"pages", "memory is damaged", false},
                               Damage{"pages", "memory is cut off", true},
                               Damage{"state", "device state is damaged", false},
                               Damage{"state", "device state is cut off", true},
                               Damage{"disk.img", "disk was changed", true},
                               Damage{"manifest.json", "manifest", false}}) {
      auto const path = dir(request) + "/" + damage.file;
      auto const time = fs::last_write_time(path);
      fs::copy_file(path, path + ".good", fs::copy_options::overwrite_existing);
      auto const size = fs::file_size(path);
      if (damage.cut) {
        fs::resize_file(path, size - 1);
      } else {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(size / 2));
        auto const byte = static_cast<char>(file.get() ^ 1);
        file.seekp(static_cast<std::streamoff>(size / 2));
        file.put(byte);
      }
      auto const refused = co_await worker->restore(request.sandbox, next_life(request));
      EXPECT_FALSE(refused) << damage.file;
      auto const now = worker->find(request.sandbox)->describe();
      EXPECT_EQ(now.state, "suspended");
      EXPECT_EQ(now.epoch, 1U);
      EXPECT_THAT(now.lost_reason, HasSubstr(damage.says)) << damage.file;
      fs::copy_file(path + ".good", path, fs::copy_options::overwrite_existing);
      fs::remove(path + ".good");
      fs::last_write_time(path, time);
    }
    EXPECT_EQ(rig_.hostd.starts, started) << "no machine ever saw one of them";
    auto const restored = co_await worker->restore(request.sandbox, next_life(request));
    EXPECT_TRUE(restored) << (restored ? "" : restored.error().message());
    EXPECT_EQ(worker->find(request.sandbox)->describe().lost_reason, "");
  });
}

TEST_F(Suspend, AStateOfAnotherHostIsRefused) {
  wire::StartSandbox request;
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    request = co_await start(worker);
    EXPECT_TRUE(co_await suspended(worker, request));
  });
  std::ofstream(rig_.config.data_dir + "/guest/vmlinux") << "another kernel";
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const refused = co_await worker->restore(request.sandbox, next_life(request));
    EXPECT_THAT(refused.error().message(), HasSubstr("guest kernel"));
    EXPECT_EQ(worker->find(request.sandbox)->describe().state, "suspended");
  });
}

TEST_F(Suspend, AFailedSuspendIsUndone) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const request = co_await start(worker);
    for (char const* point : {"worker.suspend.begun",
                              "worker.suspend.noted",
                              "worker.suspend.stopped",
                              "vmm.save.begin",
                              "vmm.save.written",
                              "worker.suspend.saved",
                              "worker.suspend.kept"}) {
      arm(fmt::format("{} fail", point));
      auto const failed = co_await worker->change(request.sandbox, 1, What::suspend);
      EXPECT_FALSE(failed) << point;
      EXPECT_EQ(worker->find(request.sandbox)->describe().state, "running") << point;
      EXPECT_EQ(rig_.hostd.machines(), 1U) << point;
      EXPECT_FALSE(fs::exists(dir(request))) << point;
      EXPECT_TRUE(co_await worker->find(request.sandbox)->set_token("t")) << point;
    }
    for (char const* point : {"worker.suspend.journal", "worker.suspend.release"}) {
      arm(fmt::format("{} fail", point));
      EXPECT_TRUE(co_await suspended(worker, request)) << point << ": it is gone through with";
    }
  });
}

TEST_F(Suspend, AFailedRestoreLeavesItSuspended) {
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    auto const request = co_await start(worker);
    if (!co_await suspended(worker, request)) co_return;
    for (char const* point : {"worker.restore.begun",
                              "worker.restore.journaled",
                              "worker.restore.disk_cloned",
                              "worker.restore.vmm_started",
                              "vmm.restore.begin",
                              "vmm.restore.loaded",
                              "worker.restore.restored",
                              "worker.restore.initialised"}) {
      arm(fmt::format("{} fail", point));
      auto const failed = co_await worker->restore(request.sandbox, next_life(request));
      EXPECT_FALSE(failed) << point;
      EXPECT_EQ(worker->find(request.sandbox)->describe().state, "suspended") << point;
      EXPECT_EQ(worker->find(request.sandbox)->epoch(), 1U) << point;
      EXPECT_EQ(rig_.hostd.machines(), 0U) << point;
      EXPECT_EQ(rig_.disks(), 0U) << point;
      EXPECT_EQ(worker->host().capacity.used(), (Amounts{.disk_mib = 4 + 1})) << point;
    }
    agent->mood = FakeAgent::Mood::wrong_nonce;
    EXPECT_FALSE(co_await worker->restore(request.sandbox, next_life(request)))
        << "an agent that cannot answer a fresh nonce is none";
    agent->mood = FakeAgent::Mood::honest;
    EXPECT_TRUE(co_await worker->restore(request.sandbox, next_life(request)));
  });
}

/// Not a test: what a victim runs, killed at the fault point that its environment names.
TEST(SuspendVictim, DISABLED_PassesThroughAllStates) {
  char const* const dir = std::getenv("VICTIM_DIR");  // NOLINT(concurrency-mt-unsafe): one thread
  char const* const text = std::getenv("VICTIM_REQUEST");  // NOLINT(concurrency-mt-unsafe)
  ASSERT_TRUE(dir && text) << "for the fault walk only";
  auto const config = testing::config_in(dir);
  auto const request = wire::decode_text<wire::StartSandbox>(text).value();
  auto const& id = request.sandbox;
  auto body = [&]() -> awaitable<void> {
    Worker worker(co_await asio::this_coro::executor, config);
    EXPECT_TRUE(co_await worker.open());
    EXPECT_TRUE(co_await worker.start(request));
    EXPECT_TRUE(co_await worker.change(id, 1, What::pause));
    EXPECT_TRUE(co_await worker.change(id, 1, What::resume));
    EXPECT_TRUE(co_await worker.snapshot(id, {1, "kept"}));
    EXPECT_TRUE(co_await worker.change(id, 1, What::suspend));
    auto next = request;
    next.epoch = 2;
    EXPECT_TRUE(co_await worker.restore(id, next));
    EXPECT_TRUE(co_await worker.end(id, 2));
    co_await worker.close();
  };
  async::run_test(body);
}

class SuspendWalk : public ::testing::TestWithParam<char const*> {};

/// Killed at each step: the next worker finds the running sandbox or the suspended one, never
/// neither, never both; and it can be ended without a trace.
TEST_P(SuspendWalk, NothingIsLostOrDoubled) {
  testing::TempDir dir;
  auto const config = testing::config_in(dir.path());
  auto const request = Rig::request();
  auto const saved = config.pool() + "/suspended/" + request.sandbox;
  testing::FakeHostd hostd(config.hostd_socket());
  hostd.speak_qmp = true;
  auto test = [&]() -> awaitable<void> {
    FakeAgent agent(co_await asio::this_coro::executor);
    hostd.agent_port = agent.port();
    auto const status =
        co_await testing::run_victim("SuspendVictim.*", dir.path(), GetParam(), request);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "the point was never reached: " << status;
    Worker worker(co_await asio::this_coro::executor, config);
    EXPECT_TRUE(co_await worker.open());
    auto const here = worker.find(request.sandbox);
    EXPECT_TRUE(here);
    if (here) {
      auto const settled = co_await eventually([&] {
        auto const now = here->describe();
        bool const runs = now.state == "running" && now.vmm_pid != 0;
        bool const one = hostd.machines() == (runs ? 1U : 0U) && hostd.halted() == 0 &&
                         fs::exists(saved) == !runs;
        return one && (runs || now.state == "suspended");
      });
      EXPECT_TRUE(settled) << here->describe().state << " machines " << hostd.machines()
                           << " halted " << hostd.halted() << " saved " << fs::exists(saved);
      if (here->describe().state == "suspended") {
        auto next = request;
        next.epoch = here->epoch() + 5;
        auto const restored = co_await worker.restore(request.sandbox, next);
        EXPECT_TRUE(restored) << (restored ? "" : restored.error().message());
      }
      EXPECT_TRUE(co_await worker.end(request.sandbox, here->epoch()));
    }
    EXPECT_EQ(hostd.machines(), 0U);
    EXPECT_FALSE(fs::exists(saved));
    EXPECT_EQ(worker.host().capacity.used(), Amounts());
    EXPECT_TRUE(worker.host().disks.sandboxes().empty());
    co_await worker.close();
    co_await agent.close();
  };
  async::run_test(test);
}

INSTANTIATE_TEST_SUITE_P(EveryStep,
                         SuspendWalk,
                         ::testing::Values("worker.pause.stopped",
                                           "worker.resume.noted",
                                           "worker.snapshot.begun",
                                           "worker.snapshot.room",
                                           "worker.snapshot.stopped",
                                           "worker.snapshot.saved",
                                           "worker.snapshot.kept",
                                           "worker.suspend.begun",
                                           "worker.suspend.noted",
                                           "worker.suspend.stopped",
                                           "vmm.save.begin",
                                           "vmm.save.written",
                                           "worker.suspend.saved",
                                           "worker.suspend.kept",
                                           "worker.suspend.journal",
                                           "worker.suspend.release",
                                           "worker.restore.begun",
                                           "worker.restore.journaled",
                                           "worker.restore.disk_cloned",
                                           "worker.restore.vmm_started",
                                           "vmm.restore.begin",
                                           "vmm.restore.loaded",
                                           "worker.restore.restored",
                                           "worker.restore.initialised",
                                           "worker.restore.noted",
                                           "worker.end.saved"),
                         [](auto const& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST_F(Suspend, ASnapshotIsTakenInPassingAndWhatComesOfItOutlivesIt) {
  life([this](Worker* worker, FakeAgent* agent) -> awaitable<void> {
    auto const request = co_await start(worker);
    auto const taken = co_await worker->snapshot(request.sandbox, {1, "before-lunch"});
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().message());
    if (!taken) co_return;
    EXPECT_EQ(worker->find(request.sandbox)->describe().state, "running");
    EXPECT_EQ(rig_.hostd.halted(), 0U);
    EXPECT_EQ(taken->build, "b1");
    EXPECT_GT(taken->bytes, 4096U);
    EXPECT_GT(taken->paused_ms, 0);
    auto const repeat = co_await worker->snapshot(request.sandbox, {1, "before-lunch"});
    EXPECT_EQ(repeat->bytes, taken->bytes);
    auto const bad = co_await worker->snapshot(request.sandbox, {1, "../up"});
    EXPECT_EQ(bad.error().code(), Code::invalid_argument);
    auto const all = co_await worker->snapshots();
    EXPECT_EQ(all->size(), 1U);

    auto child = Rig::request();
    child.from_snapshot = "before-lunch";
    auto const started = co_await worker->start(child);
    EXPECT_TRUE(started) << (started ? "" : started.error().message());
    EXPECT_EQ(started->started_by, "snapshot");
    EXPECT_EQ(agent->last_init->hostname, child.sandbox);
    EXPECT_NE(agent->last_init->machine_id, "");
    EXPECT_NE(agent->last_init->next_init_key, "") << "its parent's key no longer opens it";
    EXPECT_NE(agent->last_init->next_init_key, agent->last_init->init_key);
    EXPECT_TRUE(co_await worker->remove_snapshot("before-lunch"));
    EXPECT_TRUE(co_await worker->remove_snapshot("before-lunch")) << "idempotent";
    EXPECT_TRUE(co_await suspended(worker, child));
    EXPECT_TRUE(co_await worker->restore(child.sandbox, next_life(child)));
    auto orphan = Rig::request();
    orphan.from_snapshot = "before-lunch";
    auto const none = co_await worker->start(orphan);
    EXPECT_EQ(none.error().code(), Code::not_found);
    for (char const* point :
         {"worker.snapshot.begun", "worker.snapshot.stopped", "worker.snapshot.saved"}) {
      arm(fmt::format("{} fail", point));
      EXPECT_FALSE(co_await worker->snapshot(request.sandbox, {1, "faulty"})) << point;
      EXPECT_EQ(worker->find(request.sandbox)->describe().state, "running") << point;
      EXPECT_EQ(rig_.hostd.halted(), 0U) << point;
    }
    EXPECT_TRUE((co_await worker->snapshots())->empty());
  });
}

TEST_F(Suspend, ASnapshotIsTheSameWhereTheHostHasNoMemoryForACopy) {
  life([this](Worker* worker, FakeAgent*) -> awaitable<void> {
    auto const request = co_await start(worker, "text of the guest's");
    EXPECT_TRUE(co_await worker->snapshot(request.sandbox, {1, "held"}));
    arm("worker.snapshot.room fail");
    EXPECT_TRUE(co_await worker->snapshot(request.sandbox, {1, "written"}));
    auto const pages = [this](char const* name) {
      std::ifstream file(rig_.config.pool() + "/snapshots/" + name + "/pages", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_THAT(pages("held"), HasSubstr("text of the guest's"));
    EXPECT_EQ(pages("held"), pages("written"));
    for (char const* name : {"held", "written"}) {
      auto child = Rig::request();
      child.from_snapshot = name;
      auto const started = co_await worker->start(child);
      EXPECT_TRUE(started) << name << (started ? "" : started.error().message());
    }
  });
}

TEST_F(Suspend, ADrainedHostTakesNobodyAndStaysDrained) {
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(co_await worker->set_drain(true));
    auto const refused = co_await worker->start(Rig::request());
    EXPECT_EQ(refused.error().code(), Code::unavailable);
  });
  life([&](Worker* worker, FakeAgent*) -> awaitable<void> {
    EXPECT_TRUE(worker->report().draining);
    EXPECT_TRUE(co_await worker->set_drain(false));
    auto const request = co_await start(worker);
    EXPECT_TRUE(co_await worker->end(request.sandbox, 1));
  });
}

}  // namespace
}  // namespace worker
