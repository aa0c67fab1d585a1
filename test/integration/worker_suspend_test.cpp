// Suspended sandboxes and snapshots on a real space-hostd with a real guest, each step under a new
// worker.

#include "integration/worker_fixture.hpp"

#include <sys/mount.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <boost/json/object.hpp>
#include <gtest/gtest.h>

namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using What = worker::Sandbox::Change::What;

/// With base snapshots: what lies below a machine's memory then is not its own.
class WorkerSuspend : public test::WithWorkers, public ::testing::WithParamInterface<bool> {
 protected:
  void life(std::function<awaitable<void>(worker::Worker*)> use) {
    auto with = config();
    with.base_snapshots = GetParam();
    with.warm_target = 0;
    WithWorkers::life(std::move(with), std::move(use));
  }

  static awaitable<void> wait_base(worker::Worker* worker) {
    auto first = request();
    EXPECT_TRUE(co_await worker->start(first)) << "a first one, so that a snapshot is worth it";
    bool made = false;
    for (int i = 0; i < 800 && !made; ++i) {
      co_await async::sleep_for(std::chrono::milliseconds(100));
      auto const report = worker->report();
      made = !report.base_snapshots.empty() && report.base_snapshots[0].usable;
    }
    EXPECT_TRUE(made);
    EXPECT_TRUE(co_await worker->end(first.sandbox, 1));
  }

  /// How far the guest's clock is off, in seconds; and a proof that its agent knows its key.
  static awaitable<double> clock_error(worker::Worker* worker, std::string sandbox) {
    auto const metrics = co_await worker->find(sandbox)->metrics();
    EXPECT_TRUE(metrics) << (metrics ? "" : metrics.error().message());
    if (!metrics) co_return 1e9;
    auto const ts = wire::parse_json(*metrics)->as_object().at("ts").to_number<double>();
    auto const now = base::system_clock().wall_now().time_since_epoch();
    co_return std::abs(std::chrono::duration<double>(now).count() - ts);
  }

  static void print(wire::WorkerSandbox const& sandbox) {
    fmt::print("{}:", sandbox.started_by);
    for (auto const& step : sandbox.timeline)
      fmt::print(" {} {:.1f}", step.step, step.at_ms);
    fmt::print("\n");
  }
};

TEST_P(WorkerSuspend, GoesOnUnderAnotherWorkerAgainAndAgain) {
  auto wanted = request();
  life([&](worker::Worker* worker) -> awaitable<void> {
    if (GetParam()) co_await wait_base(worker);
    auto const started = co_await worker->start(wanted);
    EXPECT_TRUE(started) << (started ? "" : started.error().message() + started.error().detail());
    if (!started) co_return;
    EXPECT_EQ(started->started_by, GetParam() ? "base snapshot" : "cold boot");
    print(*started);
  });
  for (int cycle = 0; cycle < 3 && !HasFailure(); ++cycle) {
    life([&](worker::Worker* worker) -> awaitable<void> {
      auto const& id = wanted.sandbox;
      auto const begin = base::system_clock().steady_now();
      auto const suspended = co_await worker->change(id, wanted.epoch, What::suspend);
      EXPECT_TRUE(suspended) << (suspended
                                     ? ""
                                     : suspended.error().message() + suspended.error().detail());
      if (!suspended) co_return;
      fmt::print(
          "suspended in {:.0f} ms: {} KiB\n",
          std::chrono::duration<double, std::milli>(base::system_clock().steady_now() - begin)
              .count(),
          suspended->suspended_bytes / 1024);
      if (GetParam()) EXPECT_LT(suspended->suspended_bytes, 24U << 20U) << "not what the base has";
      EXPECT_EQ(worker->host().capacity.used().memory_mib, 0U);
    });
    life([&](worker::Worker* worker) -> awaitable<void> {
      auto const here = worker->find(wanted.sandbox);
      EXPECT_TRUE(here);
      if (!here) co_return;
      EXPECT_EQ(here->describe().state, "suspended");
      ++wanted.epoch;
      auto const restored = co_await worker->restore(wanted.sandbox, wanted);
      EXPECT_TRUE(restored) << (restored ? ""
                                         : restored.error().message() + restored.error().detail());
      if (!restored) co_return;
      print(*restored);
      auto const off = co_await clock_error(worker, wanted.sandbox);
      EXPECT_LT(off, 2.5);
    });
  }
  life([&](worker::Worker* worker) -> awaitable<void> {
    EXPECT_TRUE(co_await worker->end(wanted.sandbox, wanted.epoch));
    EXPECT_TRUE(worker->host().disks.sandboxes().empty());
  });
}

TEST_P(WorkerSuspend, APauseTakesTheClockAlongAndASnapshotHasChildren) {
  auto const wanted = request();
  auto child = request();
  child.from_snapshot = "one";
  life([&](worker::Worker* worker) -> awaitable<void> {
    if (GetParam()) co_await wait_base(worker);
    EXPECT_TRUE(co_await worker->start(wanted));
    auto const& id = wanted.sandbox;
    EXPECT_TRUE(co_await worker->change(id, 1, What::pause));
    co_await async::sleep_for(std::chrono::seconds(4));
    EXPECT_TRUE(co_await worker->change(id, 1, What::resume));
    EXPECT_LT(co_await clock_error(worker, id), 2.5);
    auto const taken = co_await worker->snapshot(id, {1, "one"});
    EXPECT_TRUE(taken) << (taken ? "" : taken.error().message() + taken.error().detail());
    if (!taken) co_return;
    fmt::print("snapshot: stood still {:.0f} ms, {} KiB\n", taken->paused_ms, taken->bytes / 1024);
    EXPECT_LT(co_await clock_error(worker, id), 2.5);
    auto const started = co_await worker->start(child);
    EXPECT_TRUE(started) << (started ? "" : started.error().message() + started.error().detail());
    if (!started) co_return;
    print(*started);
    EXPECT_TRUE(co_await worker->remove_snapshot("one"));
    EXPECT_LT(co_await clock_error(worker, child.sandbox), 2.5);
    EXPECT_TRUE(co_await worker->change(child.sandbox, 1, What::suspend));
    ++child.epoch;
    EXPECT_TRUE(co_await worker->restore(child.sandbox, child));
    EXPECT_LT(co_await clock_error(worker, child.sandbox), 2.5);
    EXPECT_TRUE(co_await worker->end(child.sandbox, child.epoch));
    EXPECT_TRUE(co_await worker->end(id, 1));
  });
}

/// On a pool of its own that is too small for the memory of a booted machine.
class FullPool : public WorkerSuspend {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: it mounts a file system";
    pool_ = installation_.config().pool();
    fs::create_directories(pool_);
    resize("size=64m", 0);
    WorkerSuspend::SetUp();
  }

  ~FullPool() override {
    if (!pool_.empty()) ::umount2(pool_.c_str(), MNT_DETACH);
  }

  void resize(char const* size, unsigned long flags) {
    ASSERT_EQ(::mount("tmpfs", pool_.c_str(), "tmpfs", flags, size), 0) << "needs root";
  }

  std::string pool_;
};

TEST_P(FullPool, UndoesTheSuspend) {
  auto wanted = request();
  wanted.disk_mib = 16;
  life([&](worker::Worker* worker) -> awaitable<void> {
    auto const& id = wanted.sandbox;
    auto const started = co_await worker->start(wanted);
    EXPECT_TRUE(started) << (started ? "" : started.error().message() + started.error().detail());
    if (!started) co_return;
    auto const failed = co_await worker->change(id, 1, What::suspend);
    EXPECT_FALSE(failed);
    if (!failed)
      EXPECT_EQ(failed.error().code(), base::Code::exhausted) << failed.error().message();
    EXPECT_EQ(worker->find(id)->describe().state, "running");
    EXPECT_LT(co_await clock_error(worker, id), 2.5);
    EXPECT_TRUE(fs::is_empty(pool_ + "/suspended"));
    resize("size=400m", MS_REMOUNT);
    auto const suspended = co_await worker->change(id, 1, What::suspend);
    EXPECT_TRUE(suspended) << (suspended ? "" : suspended.error().message());
    ++wanted.epoch;
    EXPECT_TRUE(co_await worker->restore(id, wanted));
    EXPECT_LT(co_await clock_error(worker, id), 2.5);
    EXPECT_TRUE(co_await worker->end(id, wanted.epoch));
  });
}

INSTANTIATE_TEST_SUITE_P(Memory, FullPool, ::testing::Values(false));

INSTANTIATE_TEST_SUITE_P(Memory,
                         WorkerSuspend,
                         ::testing::Values(false, true),
                         [](auto const& info) { return info.param ? "OnABase" : "OfItsOwn"; });

}  // namespace
