#pragma once

#include "async/testing.hpp"
#include "base/id.hpp"
#include "controller/controller.hpp"
#include "controller/testing.hpp"
#include "store/testing.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// For the tests of the whole controller: a real PostgreSQL and a worker without machines.
namespace controller {

using namespace std::chrono_literals;
using domain::SandboxEvent;
using domain::SandboxState;
using store::testing::Postgres;
using testing::FakeWorker;

namespace fs = std::filesystem;

inline constexpr WatchTimes quick{.report_every = 50ms,
                                  .look_every = 50ms,
                                  .confirm_after = 300ms,
                                  .sample_every = 200ms,
                                  .nodes_every = 200ms,
                                  .checkpoints_every = 50ms,
                                  .snapshot_looks = 2};

inline base::Deadline soon() {
  return base::system_clock().in(10s);
}

template <class T> T taken(base::Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message() + " | " + result.error().detail());
  return std::move(*result);
}

/// A database, a worker, and as many controllers as wanted, with names to make rows in every state.
struct Bench {
  Bench(store::asio::any_io_executor on, std::string directory)
      : executor(on),
        conninfo(Postgres::instance().make_database()),
        store(on, options("space_owner")),
        restricted(on, options("space_controller")),
        worker(on, directory + "/worker") {
    config.run_dir = directory;
    config.data_dir = directory;
    config.node_name = "node-1";
    fs::create_directories(directory + "/worker");
    fs::create_directories(config.pool() + "/templates");
  }

  store::DatabaseOptions options(std::string const& role) const {
    store::DatabaseOptions database;
    database.conninfo = conninfo;
    auto const user = database.conninfo.find("space_owner");
    database.conninfo.replace(user, 11, role);
    return database;
  }

  store::asio::awaitable<void> prepare() {
    auto made = co_await store::testing::make_world(store);
    world = taken(std::move(made));
    // The world's node has an address of its own; ours is where the fake worker listens.
    auto const moved = co_await store.nodes.upsert("node-1", config.run_dir + "/worker", soon());
    if (!moved) throw std::runtime_error(moved.error().message());
    worker.start();
  }

  void start_controller(std::string owner) {
    Keep keep;
    keep.snapshots_every = 50ms;
    controllers.push_back(
        std::make_unique<Controller>(executor, restricted, config, std::move(owner), quick, keep));
    group.spawn("controller", controllers.back()->run());
  }

  /// As `kill -9` for our purposes: it stops in the middle of whatever it does.
  store::asio::awaitable<void> stop_controllers() {
    group.cancel();
    co_await group.join();
    controllers.clear();
  }

  store::asio::awaitable<void> close() {
    co_await stop_controllers();
    co_await worker.stop();
    co_await restricted.database.close();
    co_await store.database.close();
  }

  /// A row in `creating` whose operation's lease is over.
  store::asio::awaitable<store::SandboxRow> abandoned(std::uint32_t timeout_s = 0) {
    auto wanted = store::testing::new_sandbox(world);
    wanted.node = "node-1";
    wanted.timeout_s = timeout_s;
    wanted.lease = 0s;
    auto row = co_await store.sandboxes.create(std::move(wanted), soon());
    co_return taken(std::move(row));
  }

  store::asio::awaitable<store::SandboxRow> running(std::uint32_t timeout_s = 0) {
    auto row = co_await abandoned(timeout_s);
    auto const operation =
        store::testing::query(
            conninfo, "select public_id from operations where sandbox = '" + row.public_id + "'")
            .at(0);
    store::Change change;
    change.id = row.id;
    change.from = SandboxState::creating;
    change.event = SandboxEvent::started;
    change.actor = "test";
    change.operation = operation;
    auto changed = co_await store.sandboxes.apply(std::move(change), soon());
    worker.add(row.public_id);
    co_return *taken(std::move(changed)).now;
  }

  /// Also of the history.
  store::asio::awaitable<store::SandboxRow> row_of(std::string public_id) {
    auto found = co_await store.sandboxes.find(world.project_id, std::move(public_id), soon());
    co_return *taken(std::move(found));
  }

  store::asio::awaitable<store::SandboxRow> wait_for(std::string public_id,
                                                     SandboxState state,
                                                     std::chrono::seconds limit = 8s) {
    auto const until = base::system_clock().in(limit);
    while (true) {
      auto row = co_await row_of(public_id);
      if (row.state == state) co_return row;
      if (base::system_clock().steady_now() > until) {
        ADD_FAILURE() << public_id << " is " << domain::name_of(row.state) << ", not "
                      << domain::name_of(state);
        co_return row;
      }
      co_await async::sleep_for(10ms);
    }
  }

  std::vector<std::string> events_of(std::string const& sandbox) const {
    return store::testing::query(
        conninfo,
        "select type from events where sandbox = '" + sandbox + "' order by transaction, id");
  }

  store::asio::any_io_executor executor;
  std::string conninfo;
  wire::Config config;
  store::Store store;
  store::Store restricted;  // with the rights that the program has
  FakeWorker worker;
  store::testing::World world;
  std::vector<std::unique_ptr<Controller>> controllers;
  async::TaskGroup group{executor};
};

inline void with_bench(std::function<store::asio::awaitable<void>(Bench&)> body) {
  char name[] = "/tmp/space-controller-XXXXXX";
  std::string const directory = ::mkdtemp(name);
  auto test = [&]() -> store::asio::awaitable<void> {
    auto executor = co_await store::asio::this_coro::executor;
    Bench bench(executor, directory);
    co_await bench.prepare();
    auto running = body(bench);
    std::exception_ptr thrown;
    try {
      co_await std::move(running);
    } catch (...) {
      thrown = std::current_exception();
    }
    co_await bench.close();
    if (thrown) std::rethrow_exception(thrown);
  };
  async::run_test(test, 60s);
  fs::remove_all(directory);
}

}  // namespace controller
