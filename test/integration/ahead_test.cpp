// Base snapshots and warm machines on a real space-hostd with a real guest: the worker makes them
// by itself, sandboxes go on from them, and a dead worker leaves none behind.

#include "integration/worker_fixture.hpp"

#include <gtest/gtest.h>

namespace {

namespace asio = boost::asio;
using asio::awaitable;

class MadeAhead : public test::WithWorkers {
 protected:
  void life(std::uint32_t warm_target, std::function<awaitable<void>(worker::Worker*)> use) {
    auto warm = config();
    warm.warm_target = warm_target;
    WithWorkers::life(std::move(warm), std::move(use));
  }

  static awaitable<bool> wait_ready(worker::Worker* worker, std::uint32_t count) {
    for (int i = 0; i < 800; ++i) {
      auto const report = worker->report();
      bool const base = !report.base_snapshots.empty() && report.base_snapshots[0].usable;
      std::uint32_t ready = 0;
      for (auto const& warm : report.warm)
        ready += warm.ready;
      if (base && ready == count) co_return true;
      co_await async::sleep_for(std::chrono::milliseconds(100));
    }
    co_return false;
  }

  static awaitable<wire::WorkerSandbox> create(worker::Worker* worker, wire::StartSandbox wanted) {
    auto const started = co_await worker->start(wanted);
    EXPECT_TRUE(started) << (started ? ""
                                     : started.error().message() + " " + started.error().detail());
    if (!started) co_return wire::WorkerSandbox();
    fmt::print("{}:", started->started_by);
    for (auto const& step : started->timeline)
      fmt::print(" {} {:.1f}", step.step, step.at_ms);
    fmt::print("\n");
    auto const sandbox = worker->find(wanted.sandbox);
    auto const metrics = co_await sandbox->metrics();
    EXPECT_TRUE(metrics) << "its own key opens its agent";
    co_return *started;
  }
};

TEST_F(MadeAhead, ASandboxIsAWarmMachineOrGoesOnFromTheSnapshotOrBootsCold) {
  auto const first = request();
  life(1, [&](worker::Worker* worker) -> awaitable<void> {
    auto const cold = co_await create(worker, request());
    EXPECT_EQ(cold.started_by, "cold boot");
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    auto const warm = co_await create(worker, first);
    EXPECT_EQ(warm.started_by, "warm machine");
    auto wanted = request();
    auto const restored = co_await create(worker, wanted);
    EXPECT_EQ(restored.started_by, "base snapshot") << "the pool is empty for a moment";
    EXPECT_LT(restored.timeline.back().at_ms, cold.timeline.back().at_ms);
    EXPECT_LT(warm.timeline.back().at_ms, restored.timeline.back().at_ms);
    EXPECT_TRUE(co_await wait_ready(worker, 1));
    EXPECT_EQ(worker->host().disks.sandboxes().size(), 4U);
    for (auto const& one : worker->list()) {
      if (one.sandbox == first.sandbox) continue;
      auto const ended = co_await worker->end(one.sandbox, one.epoch);
      EXPECT_TRUE(ended);
    }
  });
  life(0, [&](worker::Worker* worker) -> awaitable<void> {
    auto const sandbox = worker->find(first.sandbox);
    EXPECT_TRUE(sandbox) << "a claimed machine outlives its worker";
    if (!sandbox) co_return;
    while (sandbox->describe().vmm_pid == 0)
      co_await async::sleep_for(std::chrono::milliseconds(10));
    auto const metrics = co_await sandbox->metrics();
    EXPECT_TRUE(metrics);
    for (int i = 0; i < 100 && worker->host().disks.sandboxes().size() > 1; ++i)
      co_await async::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(worker->host().disks.sandboxes().size(), 1U) << "the one that waited is ended";
    auto const ended = co_await worker->end(first.sandbox, 1);
    EXPECT_TRUE(ended);
    EXPECT_TRUE(worker->host().disks.sandboxes().empty());
    EXPECT_EQ(worker->host().capacity.used(), worker::Amounts());
    auto wanted = request();
    auto const restored = co_await create(worker, wanted);
    EXPECT_EQ(restored.started_by, "base snapshot") << "the snapshot outlives its worker, too";
    auto const over = co_await worker->end(wanted.sandbox, 1);
    EXPECT_TRUE(over);
  });
}

}  // namespace
