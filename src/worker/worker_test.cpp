#include "worker/worker.hpp"

#include "async/testing.hpp"
#include "worker/testing/fakes.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace worker {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using base::Code;
using std::chrono::milliseconds;
using testing::FakeAgent;
using testing::Rig;

/// One life of a worker over the rig, with a guest's agent.
struct Life {
  Life(asio::any_io_executor executor, Rig& rig) : agent(executor), worker(executor, rig.config) {
    rig.hostd.agent_port = agent.port();
    worker.host().health_interval = milliseconds(50);
    worker.host().health_repeat = milliseconds(10);
  }

  awaitable<void> close() {
    co_await worker.close();
    co_await agent.close();
  }

  FakeAgent agent;
  Worker worker;
};

template <class F> awaitable<bool> eventually(F condition) {
  for (int i = 0; i < 600; ++i) {
    if (condition()) co_return true;
    co_await async::sleep_for(milliseconds(5));
  }
  co_return condition();
}

void with_worker(std::function<awaitable<void>(Rig*, Life*)> test) {
  Rig rig;
  async::run_test([&rig, test = std::move(test)]() -> awaitable<void> {
    Life life(co_await asio::this_coro::executor, rig);
    auto const opened = co_await life.worker.open();
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message() + opened.error().detail());
    if (opened) co_await test(&rig, &life);
    co_await life.close();
  });
}

/// Nothing is left but the pool of slots that wait.
awaitable<void> expect_empty(Rig* rig, Life* life) {
  EXPECT_EQ(rig->hostd.machines(), 0U);
  EXPECT_EQ(rig->disks(), 0U);
  EXPECT_EQ(life->worker.host().capacity.used(), Amounts());
  EXPECT_TRUE(life->worker.list().empty());
  auto const refilled =
      co_await eventually([&] { return rig->hostd.slots() == life->worker.host().slots.ready(); });
  EXPECT_TRUE(refilled);
}

TEST(Worker, AnAdministratorsWordToReleaseWhatIsUnclaimedHoldsForTenMinutes) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    namespace fs = std::filesystem;
    fs::path const word = rig->config.data_dir + "/worker/release-unclaimed";
    EXPECT_FALSE(life->worker.report().release_unclaimed);
    std::ofstream(word).put('x');
    EXPECT_TRUE(life->worker.report().release_unclaimed);
    fs::last_write_time(word, fs::file_time_type::clock::now() - std::chrono::minutes(11));
    EXPECT_FALSE(life->worker.report().release_unclaimed) << "it was forgotten there";
    fs::remove(word);
    fs::create_directory(word);
    EXPECT_FALSE(life->worker.report().release_unclaimed) << "not a file";
    co_return;
  });
}

TEST(Worker, StartsASandboxTellsItWhoItIsAndEndsItWithoutATrace) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    auto const started = co_await life->worker.start(request);
    EXPECT_TRUE(started) << started.error().message();
    if (!started) co_return;
    EXPECT_EQ(started->state, "running");
    std::vector<std::string> steps;
    for (auto const& step : started->timeline)
      steps.push_back(step.step);
    EXPECT_EQ(steps,
              (std::vector<std::string>{"admitted",
                                        "disk_cloned",
                                        "slot_taken",
                                        "vmm_started",
                                        "agent_answered",
                                        "initialised"}));
    auto const& init = *life->agent.last_init;
    EXPECT_EQ(init.hostname, request.sandbox);
    EXPECT_EQ(init.accessToken, "token");
    EXPECT_EQ(init.envVars->at("A"), "1");
    EXPECT_EQ(init.init_key.size(), 64U);
    EXPECT_GE(init.entropy.size(), 64U);
    EXPECT_EQ(std::filesystem::file_size(rig->config.pool() + "/sandboxes/" + request.sandbox +
                                         "/disk.img"),
              4U << 20U);
    EXPECT_EQ(rig->hostd.machines(), 1U);
    EXPECT_EQ(life->worker.report().slots_used, 1U);

    auto const ended = co_await life->worker.end(request.sandbox, 1);
    EXPECT_EQ(ended->cause, "deleted");
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, AnEndBecauseTheHostStopsSaysSo) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    EXPECT_TRUE(co_await life->worker.start(request));
    auto const ended = co_await life->worker.end(request.sandbox, request.epoch, "host_stopped");
    EXPECT_EQ(ended->cause, "host_stopped");
    EXPECT_EQ(ended->detail, "the platform was stopped on its host");
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, EachSlotThatWaitsHasItsGateway) {
  Rig rig;
  rig.config.uplink = "host";
  async::run_test([&]() -> awaitable<void> {
    Life life(co_await asio::this_coro::executor, rig);
    EXPECT_TRUE(co_await life.worker.open());
    auto const ready = [&] { return life.worker.host().slots.ready(); };
    EXPECT_TRUE(co_await eventually([&] { return ready() == 4; }));
    EXPECT_EQ(rig.hostd.gateways, ready());
    co_await life.close();
  });
}

TEST(Worker, ChangedRulesOfTheWayOutAreInTheAudit) {
  Rig rig;
  rig.config.uplink = "host";
  async::run_test([&]() -> awaitable<void> {
    Life life(co_await asio::this_coro::executor, rig);
    EXPECT_TRUE(co_await life.worker.open());
    auto const said = [&] { return life.worker.host().audit.after(0, ""); };
    rig.hostd.uplink_trouble = 1;
    co_await life.worker.check_rules();
    EXPECT_TRUE(said().empty()) << "hostd could not look";
    rig.hostd.altered_uplink = true;
    co_await life.worker.check_rules();
    co_await life.worker.check_rules();
    EXPECT_EQ(said().size(), 1U);
    EXPECT_NE(said().back().record.find("way out"), std::string::npos);
    co_await life.close();
  });
}

TEST(Worker, WhatTheGuardsOfSlotsDropIsCountedForOperators) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const counted = [] {
      double sum = 0;
      for (auto const& sample : base::metrics().all())
        if (sample.name == base::metric::guard_drops.name && sample.labels.front() == "sender")
          sum += sample.value;
      return sum;
    };
    auto const before = counted();
    EXPECT_TRUE(co_await life->worker.start(Rig::request()));
    rig->hostd.drops = 5;
    co_await life->worker.count_drops();
    EXPECT_EQ(counted() - before, 5);
    rig->hostd.drops = 7;
    co_await life->worker.count_drops();
    co_await life->worker.count_drops();
    EXPECT_EQ(counted() - before, 7);
  });
}

TEST(Worker, ASlotThatWaitsAndWhoseRulesSomebodyChangedIsThrownAway) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const ready = [&] { return life->worker.host().slots.ready(); };
    EXPECT_TRUE(co_await eventually([&] { return ready() > 0 && rig->hostd.slots() == ready(); }));
    auto const before = ready();
    rig->hostd.altered_slot = 0;
    co_await life->worker.check_rules();
    EXPECT_EQ(rig->hostd.altered_slot, -1) << "it was removed";
    EXPECT_TRUE(co_await eventually([&] { return ready() == before; })) << "and made anew";
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, ASandboxWhoseSlotsRulesSomebodyChangedGoesOnAndTheAuditSaysSo) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    EXPECT_TRUE(co_await life->worker.start(request));
    co_await life->worker.check_rules();
    auto const said = [&] { return life->worker.host().audit.after(0, request.sandbox).size(); };
    EXPECT_EQ(said(), 0U);
    rig->hostd.altered_slot = static_cast<int>(life->worker.find(request.sandbox)->slot());
    co_await life->worker.check_rules();
    EXPECT_EQ(said(), 1U);
    EXPECT_EQ(rig->hostd.machines(), 1U) << "it had no network that could be switched off";
    EXPECT_TRUE(co_await life->worker.end(request.sandbox, 1));
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, ARepeatedStartGetsTheFirstOnesResultAndAnOlderLifeIsRefused) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto request = Rig::request();
    request.epoch = 5;
    EXPECT_TRUE(co_await life->worker.start(request));
    EXPECT_TRUE(co_await life->worker.start(request));
    EXPECT_EQ(rig->hostd.starts, 1);
    auto older = request;
    older.epoch = 4;
    auto const refused = co_await life->worker.start(older);
    EXPECT_EQ(refused.error().code(), Code::conflict);
    auto const kept = co_await life->worker.end(request.sandbox, 4);
    EXPECT_EQ(kept.error().code(), Code::conflict);
    EXPECT_EQ(rig->hostd.machines(), 1U);

    auto newer = request;
    newer.epoch = 6;
    EXPECT_TRUE(co_await life->worker.start(newer));
    EXPECT_EQ(rig->hostd.machines(), 1U);
    EXPECT_EQ(life->worker.find(request.sandbox)->epoch(), 6U);
    EXPECT_TRUE(co_await life->worker.end(request.sandbox, 6));
    auto const over = co_await life->worker.start(newer);
    EXPECT_EQ(over.error().code(), Code::conflict);
  });
}

TEST(Worker, TwoStartsOfOneLifeAtOnceAreOne) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    base::Result<wire::WorkerSandbox> first, second;
    async::TaskGroup both(co_await asio::this_coro::executor);
    auto into = [](Worker* worker,
                   wire::StartSandbox wanted,
                   base::Result<wire::WorkerSandbox>* out) -> awaitable<void> {
      *out = co_await worker->start(std::move(wanted));
    };
    both.spawn("first", into(&life->worker, request, &first));
    both.spawn("second", into(&life->worker, request, &second));
    co_await both.join();
    EXPECT_TRUE(first && second);
    EXPECT_EQ(rig->hostd.starts, 1);
  });
}

TEST(Worker, RefusesWhatDoesNotFitWithASentence) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto request = Rig::request();
    request.memory_mib = 5000;
    auto const refused = co_await life->worker.start(request);
    EXPECT_EQ(refused.error().code(), Code::exhausted);
    EXPECT_EQ(refused.error().message(),
              "this host has 4096 MiB of memory left for sandboxes, and this one needs 5160");
    request = Rig::request();
    request.vcpus = 17;
    EXPECT_EQ((co_await life->worker.start(request)).error().code(), Code::exhausted);
    request = Rig::request();
    request.disk_mib = 4'000'000;
    EXPECT_EQ((co_await life->worker.start(request)).error().code(), Code::exhausted);
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, ANewSandboxIsRefusedWhereSomebodyElseFilledThePool) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto& host = life->worker.host();
    auto const file_system = std::filesystem::space(rig->config.pool());
    // As if so much were taken by others: promised is far less than the disk may be.
    auto request = Rig::request();
    request.disk_mib = static_cast<std::uint32_t>((file_system.available >> 20U) + 1000);
    host.capacity.set_disk_total(request.disk_mib + 1'000'000ULL);
    auto const refused = co_await life->worker.start(request);
    EXPECT_EQ(refused.error().code(), Code::exhausted);
    EXPECT_NE(refused.error().message().find("something other than sandboxes fills the pool"),
              std::string::npos)
        << refused.error().message();
    co_await expect_empty(rig, life);
    EXPECT_TRUE(co_await life->worker.start(Rig::request()));
  });
}

TEST(Worker, BadRequestsNameTheField) {
  auto const wrong = [](auto change) {
    auto request = Rig::request();
    change(request);
    return problem_of(request);
  };
  EXPECT_EQ(problem_of(Rig::request()), "");
  EXPECT_TRUE(wrong([](auto& r) { r.sandbox = "../x"; }).starts_with("sandbox:"));
  EXPECT_TRUE(wrong([](auto& r) { r.epoch = 0; }).starts_with("epoch:"));
  EXPECT_TRUE(wrong([](auto& r) { r.build = "../../etc"; }).starts_with("build:"));
  EXPECT_TRUE(wrong([](auto& r) { r.build = ".hidden"; }).starts_with("build:"));
  EXPECT_TRUE(wrong([](auto& r) { r.vcpus = 0; }).starts_with("vcpus:"));
  EXPECT_TRUE(wrong([](auto& r) { r.memory_mib = 1; }).starts_with("memory_mib:"));
  EXPECT_TRUE(wrong([](auto& r) { r.disk_mib = 0; }).starts_with("disk_mib:"));
  EXPECT_TRUE(wrong([](auto& r) { r.env["a=b"] = ""; }).starts_with("env:"));
  EXPECT_TRUE(wrong([](auto& r) { r.env["big"] = std::string(200'000, 'x'); }).starts_with("env:"));
  EXPECT_TRUE(
      wrong([](auto& r) { r.default_user = std::string("a\0b", 3); }).starts_with("default_user:"));
}

TEST(Worker, AnUnknownBuildOrATooSmallDiskLeavesNothing) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto request = Rig::request();
    request.build = "nope";
    auto const unknown = co_await life->worker.start(request);
    EXPECT_EQ(unknown.error().code(), Code::not_found);
    auto const again = co_await life->worker.start(request);
    EXPECT_EQ(again.error().code(), Code::not_found) << "a repeat gets the first one's result";
    std::filesystem::resize_file(rig->config.pool() + "/templates/b1/disk.img", 8 << 20);
    auto const small = co_await life->worker.start(Rig::request());
    EXPECT_EQ(small.error().code(), Code::invalid_argument);
    EXPECT_EQ(small.error().message(),
              "make the disk: disk_mib: this template needs at least 8 MiB");
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, ADeleteDuringTheStartEndsBoth) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    life->agent.mood = FakeAgent::Mood::silent;
    auto const request = Rig::request();
    base::Result<wire::WorkerSandbox> started;
    async::TaskGroup starting(co_await asio::this_coro::executor);
    auto into = [](Worker* worker,
                   wire::StartSandbox wanted,
                   base::Result<wire::WorkerSandbox>* out) -> awaitable<void> {
      *out = co_await worker->start(std::move(wanted));
    };
    starting.spawn("start", into(&life->worker, request, &started));
    EXPECT_TRUE(co_await eventually([&] { return rig->hostd.machines() == 1; }));
    auto const ended = co_await life->worker.end(request.sandbox, 1);
    EXPECT_EQ(ended->cause, "deleted");
    co_await starting.join();
    EXPECT_EQ(started.error().code(), Code::conflict);
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, ADeleteThatOvertakesItsStartWins) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    auto const ended = co_await life->worker.end(request.sandbox, 1);
    EXPECT_TRUE(ended);
    auto const late = co_await life->worker.start(request);
    EXPECT_EQ(late.error().code(), Code::conflict);
    auto next = request;
    next.epoch = 2;
    EXPECT_TRUE(co_await life->worker.start(next));
    EXPECT_EQ(rig->hostd.machines(), 1U);
  });
}

TEST(Worker, HostileAgentsFailTheStartAndLeaveNothing) {
  for (auto const mood :
       {FakeAgent::Mood::wrong_nonce, FakeAgent::Mood::refuses, FakeAgent::Mood::endless}) {
    with_worker([mood](Rig* rig, Life* life) -> awaitable<void> {
      life->agent.mood = mood;
      auto const started = co_await life->worker.start(Rig::request());
      EXPECT_FALSE(started);
      if (mood == FakeAgent::Mood::refuses) {
        EXPECT_TRUE(started.error().message().ends_with("status 400: no way"))
            << started.error().message();
      }
      co_await expect_empty(rig, life);
      auto const ends = life->worker.host().ended.after(0, 10);
      EXPECT_EQ(ends.at(0).entry.cause, "start_failed");
    });
  }
}

TEST(Worker, AGuestWithoutAnAgentFailsByItsLackOfProgress) {
  for (auto const mood : {FakeAgent::Mood::silent, FakeAgent::Mood::garbage}) {
    with_worker([mood](Rig* rig, Life* life) -> awaitable<void> {
      life->agent.mood = mood;
      // The fake's process uses no processor time, so it stands still from the beginning.
      life->worker.host().boot_limits.stall = milliseconds(100);
      life->worker.host().init_patience = milliseconds(100);
      auto const started = co_await life->worker.start(Rig::request());
      EXPECT_EQ(started.error().code(), Code::deadline_exceeded) << started.error().message();
      co_await expect_empty(rig, life);
    });
  }
}

TEST(Worker, AMachineThatDiesWhileStartingSaysWhatItsConsoleSaid) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    life->agent.mood = FakeAgent::Mood::silent;
    async::TaskGroup killing(co_await asio::this_coro::executor);
    auto kill = [](Rig* on, Life* of) -> awaitable<void> {
      co_await eventually([&] { return on->hostd.machines() == 1; });
      std::uint32_t const slot = of->worker.find(of->worker.list().at(0).sandbox)->slot();
      on->hostd.say_on_console(slot,
                               "VFS: Cannot open root device\nKernel panic - not syncing: VFS: "
                               "Unable to mount root fs\n");
      on->hostd.say_on_qmp(
          slot,
          "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": \"guest-reset\"}}\n");
      co_await async::sleep_for(milliseconds(50));
      on->hostd.kill_machine(slot, SIGSEGV);
    };
    killing.spawn("kill", kill(rig, life));
    auto const started = co_await life->worker.start(Rig::request());
    EXPECT_FALSE(started);
    co_await killing.join();
    auto const end = life->worker.host().ended.after(0, 1).at(0).entry;
    EXPECT_EQ(end.cause, "start_failed");
    EXPECT_NE(end.detail.find("crashed with signal 11"), std::string::npos) << end.detail;
    EXPECT_NE(end.console_tail.find("Unable to mount root fs"), std::string::npos);
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, TheEndOfAMachineIsNoticedWithItsCause) {
  struct Case {
    int signal;
    bool oom;
    char const* cause;
  };

  for (auto const& one : {Case{SIGKILL, false, "vmm_killed"},
                          Case{SIGSEGV, false, "vmm_crashed"},
                          Case{SIGKILL, true, "vmm_out_of_memory"}}) {
    with_worker([one](Rig* rig, Life* life) -> awaitable<void> {
      auto const request = Rig::request();
      EXPECT_TRUE(co_await life->worker.start(request));
      rig->hostd.say_oom = one.oom;
      rig->hostd.kill_machine(life->worker.find(request.sandbox)->slot(), one.signal);
      EXPECT_TRUE(co_await eventually([&] { return !life->worker.find(request.sandbox); }));
      EXPECT_EQ(life->worker.host().ended.find(request.sandbox)->cause, one.cause);
      co_await expect_empty(rig, life);
    });
  }
}

TEST(Worker, AnAgentIsLostWhenItRefusesAndNotWhenItIsSlow) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    EXPECT_TRUE(co_await life->worker.start(request));
    life->agent.mood = FakeAgent::Mood::silent;
    co_await async::sleep_for(milliseconds(400));
    EXPECT_TRUE(life->worker.find(request.sandbox)) << "a silent guest may be busy";
    rig->hostd.go_down();
    co_await async::sleep_for(milliseconds(300));
    EXPECT_TRUE(life->worker.find(request.sandbox)) << "nobody could ask";
    rig->hostd.come_up();
    rig->hostd.agent_port = 0;
    EXPECT_TRUE(co_await eventually([&] { return !life->worker.find(request.sandbox); }));
    EXPECT_EQ(life->worker.host().ended.find(request.sandbox)->cause, "agent_lost");
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, AnEndGoesOnUntilHostdIsBack) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    EXPECT_TRUE(co_await life->worker.start(request));
    rig->hostd.fail_end = 2;
    rig->hostd.go_down();
    life->worker.find(request.sandbox)->ask_end("deleted", "");
    co_await async::sleep_for(milliseconds(150));
    EXPECT_EQ(life->worker.find(request.sandbox)->state(), Sandbox::State::ending);
    rig->hostd.come_up();
    auto const ended = co_await life->worker.end(request.sandbox, 1);
    EXPECT_EQ(ended->cause, "deleted");
    co_await expect_empty(rig, life);
  });
}

TEST(Worker, TenAtOnceAllStart) {
  with_worker([](Rig* rig, Life* life) -> awaitable<void> {
    std::vector<base::Result<wire::WorkerSandbox>> results(10);
    async::TaskGroup starting(co_await asio::this_coro::executor);
    auto into = [](Worker* worker,
                   wire::StartSandbox wanted,
                   base::Result<wire::WorkerSandbox>* out) -> awaitable<void> {
      *out = co_await worker->start(std::move(wanted));
    };
    auto request = Rig::request();
    request.memory_mib = 128;
    for (auto& result : results) {
      request.sandbox = base::SandboxId::make().str();
      starting.spawn("start", into(&life->worker, request, &result));
    }
    co_await starting.join();
    auto const started =
        std::ranges::count_if(results, [](auto const& result) { return result.has_value(); });
    EXPECT_EQ(started, 8);
    for (auto const& result : results)
      EXPECT_TRUE(result || result.error().code() == Code::exhausted);
    EXPECT_EQ(rig->hostd.machines(), 8U);
  });
}

TEST(Worker, TokensChangeAndMetricsAreTheKnownNumbersOnly) {
  with_worker([](Rig*, Life* life) -> awaitable<void> {
    auto const request = Rig::request();
    EXPECT_TRUE(co_await life->worker.start(request));
    auto const key = life->agent.last_init->init_key;
    auto const sandbox = life->worker.find(request.sandbox);
    EXPECT_TRUE(co_await sandbox->set_token("other"));
    EXPECT_EQ(life->agent.last_init->accessToken, "other");
    EXPECT_EQ(life->agent.last_init->init_key, key);
    EXPECT_FALSE(life->agent.last_init->envVars) << "what is not sent stays as it is";
    auto const metrics = co_await sandbox->metrics();
    EXPECT_EQ(metrics->find("secret"), std::string::npos);
    EXPECT_NE(metrics->find("\"mem_total\":100"), std::string::npos) << *metrics;
  });
}

}  // namespace
}  // namespace worker
