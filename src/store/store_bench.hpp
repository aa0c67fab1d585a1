#pragma once

#include "async/testing.hpp"
#include "base/id.hpp"
#include "store/migrate.hpp"
#include "store/testing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

/// For the tests of the store: a Store on a database of its own.
namespace store {

using namespace std::chrono_literals;
using domain::SandboxEvent;
using domain::SandboxState;
using testing::make_world;
using testing::new_sandbox;
using testing::Postgres;

inline base::Deadline soon() {
  return base::system_clock().in(10s);
}

/// Of the database that the running test uses, for plain SQL.
inline std::string& store_conninfo() {
  static std::string now;
  return now;
}

/// Runs `body` with a store on a fresh database.
inline void with_store(std::function<asio::awaitable<void>(Store&)> body,
                       std::size_t connections = 8) {
  DatabaseOptions options;
  options.conninfo = Postgres::instance().make_database();
  options.connections_max = connections;
  store_conninfo() = options.conninfo;
  auto test = [&]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    Store store(executor, options);
    auto running = body(store);
    co_await std::move(running);
    co_await store.database.close();
  };
  async::run_test(test, 60s);
}

#define EXPECT_OK(result)           \
  EXPECT_TRUE((result).has_value()) \
      << ((result) ? "" : (result).error().message() + " | " + (result).error().detail())
#define ASSERT_OK(result)                                                              \
  if (!(result)) {                                                                     \
    ADD_FAILURE() << (result).error().message() << " | " << (result).error().detail(); \
    co_return;                                                                         \
  }

inline Change change_of(SandboxRow const& row, SandboxEvent event) {
  Change change;
  change.id = row.id;
  change.from = row.state;
  change.event = event;
  change.actor = "test";
  return change;
}

/// That one, running.
inline async::Task<SandboxRow> running_sandbox_of(Store& store, NewSandbox wanted) {
  auto const operation = wanted.operation_public_id;
  auto row = co_await store.sandboxes.create(std::move(wanted), soon());
  if (!row) co_return base::passing(row);
  auto change = change_of(*row, SandboxEvent::started);
  change.operation = operation;
  auto changed = co_await store.sandboxes.apply(std::move(change), soon());
  if (!changed) co_return base::passing(changed);
  co_return *changed->now;
}

inline async::Task<SandboxRow> running_sandbox(Store& store,
                                               testing::World world,
                                               std::uint32_t timeout_s) {
  auto wanted = new_sandbox(world);
  wanted.timeout_s = timeout_s;
  return running_sandbox_of(store, std::move(wanted));
}

/// Runs `body` with a store in which one sandbox runs.
inline void with_running(
    std::function<asio::awaitable<void>(Store&, testing::World const*, SandboxRow const*)> body) {
  with_store([&body](Store& store) -> asio::awaitable<void> {
    auto const world = co_await make_world(store);
    ASSERT_OK(world);
    auto const row = co_await running_sandbox(store, *world, 3600);
    ASSERT_OK(row);
    co_await body(store, &*world, &*row);
  });
}

inline SandboxFilter filter_of(testing::World const& world,
                               std::map<std::string, std::string> metadata = {}) {
  SandboxFilter filter;
  filter.project_id = world.project_id;
  filter.metadata = std::move(metadata);
  return filter;
}

}  // namespace store
