// The worker on a real space-hostd with a real guest kernel and agent: what the played ones in
// src/worker cannot show.

#include "async/testing.hpp"
#include "integration/hostd_fixture.hpp"
#include "worker/worker.hpp"

#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;

/// Exit status of mke2fs.
int make_file_system(std::string image) {
  std::string words[] = {"mke2fs", "-q", "-F", "-t", "ext4", std::move(image)};
  std::vector<char*> argv;
  for (auto& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
  char* const environment[] = {path.data(), nullptr};
  pid_t pid = 0;
  if (::posix_spawn(&pid, "/sbin/mke2fs", nullptr, nullptr, argv.data(), environment) != 0)
    return -1;
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

class WorkerMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0)
      GTEST_SKIP() << "needs root: space-hostd makes namespaces and users' processes";
    if (!fs::exists(installation_.config().guest() + "/vmlinux")) {
      GTEST_SKIP() << "no guest kernel at " << installation_.config().guest()
                   << ": images/build_guest.sh failed or did not run";
    }
    auto const& config = installation_.config();
    auto const image = config.pool() + "/templates/empty/disk.img";
    fs::create_directories(config.pool() + "/templates/empty");
    std::ofstream(image) << "";
    fs::resize_file(image, 16 << 20);
    // An empty root is enough: the agent stays in memory, and answering is all these tests ask of
    // it.
    ASSERT_EQ(make_file_system(image), 0) << "mke2fs (e2fsprogs) failed";
    hostd_.emplace(installation_);
  }

  wire::Config config() const {
    auto config = installation_.config();
    config.accelerator = "tcg";
    config.base_snapshots = false;  // ahead_test.cpp
    return config;
  }

  static wire::StartSandbox request() {
    wire::StartSandbox request;
    request.sandbox = base::SandboxId::make().str();
    request.epoch = 1;
    request.build = "empty";
    request.memory_mib = 128;
    request.disk_mib = 16;
    return request;
  }

  /// One life of a worker; afterwards all is left as it is, as after a kill.
  void life(std::function<awaitable<void>(worker::Worker*)> use) {
    auto body = [&]() -> awaitable<void> {
      worker::Worker worker(co_await asio::this_coro::executor, config());
      auto const opened = co_await worker.open();
      EXPECT_TRUE(opened);
      if (opened) co_await use(&worker);
      co_await worker.close();
    };
    async::run_test(body, std::chrono::seconds(100));
  }

  test::Installation installation_;
  std::optional<test::Hostd> hostd_;
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
