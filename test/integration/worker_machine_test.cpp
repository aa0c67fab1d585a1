// The worker on a real space-hostd with a real guest kernel and agent: what the played ones in
// src/worker cannot show.

#include "integration/worker_fixture.hpp"

#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

namespace {

namespace asio = boost::asio;
using asio::awaitable;

class WorkerMachine : public test::WithWorkers {
 protected:
  wire::Config config() const {
    auto booted = WithWorkers::config();
    booted.base_snapshots = false;  // ahead_test.cpp
    return booted;
  }

  static wire::StartSandbox request() {
    auto request = WithWorkers::request();
    request.memory_mib = 128;
    request.disk_mib = 16;
    return request;
  }

  void life(std::function<awaitable<void>(worker::Worker*)> use) {
    WithWorkers::life(config(), std::move(use));
  }
};

awaitable<worker::Reached> reach(worker::Worker* worker, std::uint32_t slot) {
  auto const reached =
      co_await worker->host().dialer.dial(slot, wire::agent_port, std::chrono::seconds(3));
  co_return reached.reached;
}

TEST_F(WorkerMachine, BootsToTheAgentsAnswerSurvivesItsWorkerAndEndsWithoutATrace) {
  auto const wanted = request();
  std::int32_t pid = 0;
  life([&](worker::Worker* worker) -> awaitable<void> {
    auto const started = co_await worker->start(wanted);
    EXPECT_TRUE(started) << (started ? ""
                                     : started.error().message() + " " + started.error().detail());
    if (!started) co_return;
    pid = started->vmm_pid;
    EXPECT_GT(started->resident_bytes, 10U << 20U);
    EXPECT_TRUE(worker->host().accelerator.proven());
    auto const again = co_await worker->start(wanted);
    EXPECT_EQ(again->vmm_pid, pid);
  });
  hostd_->stop(SIGKILL);
  hostd_->start();
  life([&](worker::Worker* worker) -> awaitable<void> {
    auto const sandbox = worker->find(wanted.sandbox);
    EXPECT_TRUE(sandbox);
    if (!sandbox) co_return;
    while (sandbox->describe().vmm_pid == 0)
      co_await async::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(sandbox->describe().vmm_pid, pid);
    auto const reached = co_await reach(worker, sandbox->slot());
    EXPECT_EQ(reached, worker::Reached::connected);
    auto const metrics = co_await sandbox->metrics();
    EXPECT_TRUE(metrics) << "the init key opens the agent after the restart";
    auto const set = co_await sandbox->set_token("new");
    EXPECT_TRUE(set);
    auto const ended = co_await worker->end(wanted.sandbox, 1);
    EXPECT_EQ(ended->cause, "deleted");
    EXPECT_TRUE(worker->host().disks.sandboxes().empty());
  });
  // It may be a zombie: its parent was killed, and not every process 1 collects orphans.
  EXPECT_EQ(worker::resident_bytes_of(pid), 0U);
}

TEST_F(WorkerMachine, AMachineKilledOnTheHostIsToldAsThat) {
  life([&](worker::Worker* worker) -> awaitable<void> {
    auto const wanted = request();
    auto const started = co_await worker->start(wanted);
    EXPECT_TRUE(started);
    if (!started) co_return;
    ::kill(started->vmm_pid, SIGKILL);
    while (worker->find(wanted.sandbox))
      co_await async::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(worker->host().ended.find(wanted.sandbox)->cause, "vmm_killed");
    EXPECT_EQ(worker->host().capacity.used(), worker::Amounts());
  });
}

/// The driver by itself: what every driver has to do, tried on this one.
TEST_F(WorkerMachine, TheDriverPausesResumesAndExplainsTheEnd) {
  life([&](worker::Worker* worker) -> awaitable<void> {
    auto& host = worker->host();
    auto const slot = co_await host.slots.take();
    auto const made = co_await host.slots.make(*slot);
    EXPECT_TRUE(made);
    auto const id = base::SandboxId::make().str();
    vmm::BootSpec spec;
    spec.slot = *slot;
    spec.sandbox = id;
    spec.epoch = 1;
    spec.memory_mib = 128;
    spec.tsc_khz = host.tsc_khz;
    spec.disk = std::move(*host.disks.clone("empty", id, 16));
    auto booted = co_await host.driver.boot(std::move(spec));
    EXPECT_TRUE(booted);
    auto const& vmm = *booted;
    auto state = worker::Reached::slow;
    for (int i = 0; i < 300 && state != worker::Reached::connected; ++i) {
      state = (co_await host.dialer.dial(*slot, wire::agent_port, std::chrono::milliseconds(200)))
                  .reached;
      if (state == worker::Reached::refused)
        co_await async::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_EQ(state, worker::Reached::connected);

    auto const soon = [] { return base::system_clock().in(std::chrono::seconds(10)); };
    auto const paused = co_await vmm->pause(soon());
    EXPECT_TRUE(paused);
    state = (co_await host.dialer.dial(*slot, wire::agent_port, std::chrono::milliseconds(500)))
                .reached;
    EXPECT_EQ(state, worker::Reached::slow) << "a stopped machine answers nobody";
    auto const resumed = co_await vmm->resume(soon());
    EXPECT_TRUE(resumed);
    state = co_await reach(worker, *slot);
    EXPECT_EQ(state, worker::Reached::connected);
    EXPECT_FALSE(vmm->stalled());

    auto const exit = co_await vmm->kill();
    EXPECT_EQ(exit->cause, vmm::ExitCause::asked);
    co_await vmm->wait_gone();
    co_await vmm->close();
    auto const disposed = co_await host.slots.dispose(*slot);
    EXPECT_TRUE(disposed);
    EXPECT_TRUE(host.disks.remove(id));
  });
}

}  // namespace
