#include "async/testing.hpp"
#include "base/id.hpp"
#include "store/migrate.hpp"
#include "store/testing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace store {
namespace {

using namespace std::chrono_literals;
using domain::SandboxEvent;
using domain::SandboxState;
using testing::make_world;
using testing::new_sandbox;
using testing::Postgres;

base::Deadline soon() {
  return base::system_clock().in(10s);
}

/// Runs `body` with a store on a fresh database.
void with_store(std::function<asio::awaitable<void>(Store&)> body, std::size_t connections = 8) {
  DatabaseOptions options;
  options.conninfo = Postgres::instance().make_database();
  options.connections_max = connections;
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

Change change_of(SandboxRow const& row, SandboxEvent event) {
  Change change;
  change.id = row.id;
  change.from = row.state;
  change.event = event;
  change.actor = "test";
  return change;
}

SandboxFilter filter_of(testing::World const& world,
                        std::map<std::string, std::string> metadata = {}) {
  SandboxFilter filter;
  filter.project_id = world.project_id;
  filter.metadata = std::move(metadata);
  return filter;
}

TEST(Migrations, FromEmptyAndThenAgain) {
  auto const conninfo = Postgres::instance().unused_database();
  auto const first = migrate(conninfo);
  ASSERT_TRUE(first.has_value()) << first.error().message();
  EXPECT_EQ(first->applied.size(), all_migrations().size());
  auto const second = migrate(conninfo);
  ASSERT_TRUE(second.has_value()) << second.error().message();
  EXPECT_TRUE(second->applied.empty());
  EXPECT_EQ(second->version, static_cast<int>(all_migrations().size()));
}

TEST(Migrations, AChangedOneIsRefused) {
  auto const conninfo = Postgres::instance().unused_database();
  std::vector<Migration> mine{{1, "0001_first.sql", "create table a (x int)"}};
  ASSERT_TRUE(migrate(conninfo, mine).has_value());
  mine[0].sql = "create table b (x int)";
  auto const refused = migrate(conninfo, mine);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), base::Code::conflict);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("0001_first.sql"));
}

TEST(Migrations, ANewerDatabaseIsRefused) {
  auto const conninfo = Postgres::instance().unused_database();
  std::vector<Migration> const two{{1, "0001_a.sql", "create table a (x int)"},
                                   {2, "0002_b.sql", "create table b (x int)"}};
  ASSERT_TRUE(migrate(conninfo, two).has_value());
  EXPECT_FALSE(migrate(conninfo, std::span(two).first(1)).has_value());
}

TEST(Migrations, AFailedOneLeavesNothing) {
  auto const conninfo = Postgres::instance().unused_database();
  std::vector<Migration> const broken{
      {1, "0001_a.sql", "create table a (x int); create table a (y int)"}};
  EXPECT_FALSE(migrate(conninfo, broken).has_value());
  EXPECT_EQ(
      testing::query(conninfo, "select count(*) from pg_tables where tablename = 'a'").front(),
      "0");
  EXPECT_EQ(testing::query(conninfo, "select count(*) from schema_migrations").front(), "0");
}

TEST(Migrations, TheControllerCannotReadKeys) {
  auto conninfo = Postgres::instance().make_database();
  EXPECT_EQ(testing::query(conninfo,
                           "select has_table_privilege('space_controller', 'api_keys', 'select')")
                .front(),
            "f");
  EXPECT_EQ(testing::query(conninfo,
                           "select has_table_privilege('space_controller', 'sandboxes', 'update')")
                .front(),
            "t");
  EXPECT_EQ(testing::query(conninfo,
                           "select has_table_privilege('space_api', 'schema_migrations', 'insert')")
                .front(),
            "f");
}

TEST(Database, AnsweredAndRefusedStatements) {
  with_store([](Store& store) -> asio::awaitable<void> {
    static Statement const good{
        "test.good",
        "select $1::int + 1, null::text, array_length($2::text[], 1), ($2::text[])[1]"};
    Params params;
    params.number(41).texts({"a\"\\,{}", "b"});
    auto rows = co_await store.database.run(good, params, soon());
    ASSERT_OK(rows);
    RowReader reader(*rows, 0);
    EXPECT_EQ(reader.number(), 42);
    EXPECT_FALSE(reader.text_or_nothing().has_value());
    EXPECT_EQ(reader.number(), 2);
    EXPECT_EQ(reader.text(), "a\"\\,{}");
    static Statement const bad{"test.bad", "select nope"};
    auto refused = co_await store.database.run(bad, {}, soon());
    EXPECT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), base::Code::internal);
    EXPECT_EQ(sqlstate_of(refused.error()), "42703");
    EXPECT_THAT(refused.error().message(), ::testing::Not(::testing::HasSubstr("nope")));
    // The connection lives on.
    EXPECT_EQ(store.database.stats().open, 1u);
  });
}

TEST(Database, ADeadlineCancelsOnTheServer) {
  with_store([](Store& store) -> asio::awaitable<void> {
    static Statement const slow{"test.slow", "select pg_sleep(15)"};
    auto const started = base::system_clock().steady_now();
    auto rows = co_await store.database.run(slow, {}, base::system_clock().in(150ms));
    EXPECT_FALSE(rows.has_value());
    EXPECT_EQ(rows.error().code(), base::Code::deadline_exceeded);
    EXPECT_LT(base::system_clock().steady_now() - started, 3s);
    static Statement const count{
        "test.count",
        "select count(*) from pg_stat_activity where query like '%test.slow%' and state = 'active'"
        " and pid <> pg_backend_pid() and datname = current_database()"};
    std::int64_t left = 1;
    for (int i = 0; i < 100 && left > 0; ++i) {
      auto seen = co_await store.database.run(count, {}, soon());
      ASSERT_OK(seen);
      RowReader reader(*seen, 0);
      left = reader.number();
      if (left > 0) co_await async::sleep_for(20ms);
    }
    EXPECT_EQ(left, 0);
    EXPECT_EQ(store.database.stats().dropped, 1u);
  });
}

TEST(Database, MoreStatementsThanConnectionsWaitInLine) {
  with_store(
      [](Store& store) -> asio::awaitable<void> {
        static Statement const nap{"test.nap", "select pg_sleep(0.01)"};
        async::TaskGroup group(co_await asio::this_coro::executor);
        int done = 0;
        auto one = [&](Store* s) -> asio::awaitable<void> {
          auto rows = co_await s->database.run(nap, {}, soon());
          EXPECT_OK(rows);
          ++done;
        };
        for (int i = 0; i < 40; ++i)
          group.spawn("nap", one(&store));
        co_await group.join();
        EXPECT_EQ(done, 40);
        EXPECT_EQ(store.database.stats().open, 2u);
      },
      2);
}

TEST(Database, AWaiterThatGivesUpLeavesTheLine) {
  with_store(
      [](Store& store) -> asio::awaitable<void> {
        static Statement const nap{"test.nap2", "select pg_sleep(0.4)"};
        async::TaskGroup group(co_await asio::this_coro::executor);
        auto one = [&](Store* s, base::Deadline deadline) -> asio::awaitable<void> {
          auto rows = co_await s->database.run(nap, {}, deadline);
          (void)rows.has_value();
        };
        group.spawn("holder", one(&store, soon()));
        group.spawn("impatient", one(&store, base::system_clock().in(50ms)));
        co_await group.join();
        auto rows = co_await store.database.run(nap, {}, soon());
        EXPECT_OK(rows);
      },
      1);
}

TEST(Database, SurvivesACrashOfTheServer) {
  with_store([](Store& store) -> asio::awaitable<void> {
    static Statement const read{"test.read", "select 1", Statement::Kind::read};
    auto before = co_await store.database.run(read, {}, soon());
    ASSERT_OK(before);
    std::function<int()> crash = [] {
      Postgres::instance().crash_and_restart();
      return 0;
    };
    co_await async::blocking(crash);
    auto after = co_await store.database.run(read, {}, soon());
    EXPECT_OK(after);
  });
}

TEST(Database, ADeadServerIsUnavailable) {
  DatabaseOptions options;
  options.conninfo = "host=/nonexistent dbname=x user=y";
  auto test = [&]() -> asio::awaitable<void> {
    Store store(co_await asio::this_coro::executor, options);
    static Statement const read{"test.read", "select 1", Statement::Kind::read};
    auto rows = co_await store.database.run(read, {}, base::system_clock().in(200ms));
    EXPECT_FALSE(rows.has_value());
    EXPECT_EQ(rows.error().code(), base::Code::unavailable);
    co_await store.database.close();
  };
  async::run_test(test);
}

TEST(Sandboxes, CreateWritesRowOperationEventAndUsage) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    wanted.metadata = {{"purpose", "tést \"x\""}};
    wanted.timeout_s = 60;
    auto row = co_await store.sandboxes.create(wanted, soon());
    ASSERT_OK(row);
    EXPECT_EQ(row->state, SandboxState::creating);
    EXPECT_EQ(row->epoch, 1u);
    EXPECT_EQ(row->node, "node-1");
    EXPECT_EQ(row->build, "b0");
    EXPECT_EQ(row->metadata.at("purpose"), "tést \"x\"");
    EXPECT_FALSE(row->deadline_at.has_value());
    auto operation =
        co_await store.operations.find(world->project_id, wanted.operation_public_id, soon());
    ASSERT_OK(operation);
    EXPECT_EQ((*operation)->kind, "sandbox.create");
    EXPECT_EQ((*operation)->sandbox, wanted.public_id);
    EXPECT_FALSE((*operation)->done());
    auto events =
        co_await store.events.read_of(world->project_id, wanted.public_id, {}, 10, soon());
    ASSERT_OK(events);
    EXPECT_EQ(events->size(), 1u);
    EXPECT_EQ(events->front().type, "sandbox.creating");
    auto projects = co_await store.projects.list(world->project, soon());
    ASSERT_OK(projects);
    EXPECT_EQ(projects->front().used, (domain::Amounts{1, 1, 512, 4096}));
  });
}

TEST(Sandboxes, TwentyParallelCreatesAtAQuotaOfFiveMakeFive) {
  with_store([](Store& store) -> asio::awaitable<void> {
    domain::Limits limits;
    limits.sandboxes = 5;
    auto world = co_await make_world(store, limits);
    ASSERT_OK(world);
    async::TaskGroup group(co_await asio::this_coro::executor);
    int made = 0;
    int refused = 0;
    auto one = [&](NewSandbox wanted) -> asio::awaitable<void> {
      auto row = co_await store.sandboxes.create(std::move(wanted), soon());
      if (row) {
        ++made;
      } else {
        EXPECT_EQ(row.error().code(), base::Code::exhausted) << row.error().detail();
        ++refused;
      }
    };
    for (int i = 0; i < 20; ++i)
      group.spawn("create", one(new_sandbox(*world)));
    co_await group.join();
    EXPECT_EQ(made, 5);
    EXPECT_EQ(refused, 15);
    auto list = co_await store.sandboxes.list(filter_of(*world), soon());
    ASSERT_OK(list);
    EXPECT_EQ(list->size(), 5u);
    auto projects = co_await store.projects.list(world->project, soon());
    ASSERT_OK(projects);
    EXPECT_EQ(projects->front().used.sandboxes, 5u);
  });
}

TEST(Sandboxes, EveryLimitOfTheQuotaCounts) {
  with_store([](Store& store) -> asio::awaitable<void> {
    std::vector<domain::Limits> all(4);
    all[0].sandboxes = 0;
    all[1].vcpus = 0;
    all[2].memory_mib = 511;
    all[3].disk_mib = 4095;
    for (auto const& limits : all) {
      auto world = co_await make_world(store, limits);
      ASSERT_OK(world);
      auto row = co_await store.sandboxes.create(new_sandbox(*world), soon());
      EXPECT_FALSE(row.has_value());
      EXPECT_EQ(row.error().code(), base::Code::exhausted);
    }
  });
}

TEST(Sandboxes, OnlyOneOfTwoChangesWins) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await store.sandboxes.create(new_sandbox(*world), soon());
    ASSERT_OK(row);
    auto started = co_await store.sandboxes.apply(change_of(*row, SandboxEvent::started), soon());
    ASSERT_OK(started);
    EXPECT_TRUE(started->applied);
    // The same again, as a slow second caller would send it.
    auto late = co_await store.sandboxes.apply(change_of(*row, SandboxEvent::started), soon());
    ASSERT_OK(late);
    EXPECT_FALSE(late->applied);
    EXPECT_EQ(late->now->state, SandboxState::running);
    async::TaskGroup group(co_await asio::this_coro::executor);
    int won = 0;
    auto one = [&](Change change) -> asio::awaitable<void> {
      auto changed = co_await store.sandboxes.apply(std::move(change), soon());
      if (changed && changed->applied) ++won;
      EXPECT_OK(changed);
    };
    for (int i = 0; i < 8; ++i) {
      auto change = change_of(*started->now, SandboxEvent::end);
      change.version = started->now->version;
      change.reason = domain::EndReason::user;
      group.spawn("end", one(change));
    }
    co_await group.join();
    EXPECT_EQ(won, 1);
  });
}

TEST(Sandboxes, AnOldEpochIsRefused) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await store.sandboxes.create(new_sandbox(*world), soon());
    ASSERT_OK(row);
    auto named = co_await store.nodes.upsert("node-2", "/elsewhere", soon());
    ASSERT_OK(named);
    auto moved = co_await store.sandboxes.reassign(row->id, 1, "node-2", soon());
    ASSERT_OK(moved);
    EXPECT_TRUE(moved->applied);
    EXPECT_EQ(moved->now->epoch, 2u);
    EXPECT_EQ(moved->now->node_address, "/elsewhere");
    auto change = change_of(*row, SandboxEvent::started);
    change.epoch = 1;
    auto late = co_await store.sandboxes.apply(change, soon());
    ASSERT_OK(late);
    EXPECT_FALSE(late->applied);
    EXPECT_EQ(late->now->epoch, 2u);
  });
}

TEST(Sandboxes, AnEndGivesEverythingBackAndKeepsWhy) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    auto row = co_await store.sandboxes.create(wanted, soon());
    ASSERT_OK(row);
    End end;
    end.id = row->id;
    end.event = SandboxEvent::start_failed;
    end.reason = domain::EndReason::start_failed;
    end.detail = "the agent did not answer";
    end.console_tail = "Kernel panic";
    end.actor = "test";
    auto ended = co_await store.sandboxes.end(end, soon());
    ASSERT_OK(ended);
    EXPECT_TRUE(*ended);
    auto again = co_await store.sandboxes.end(end, soon());
    ASSERT_OK(again);
    EXPECT_FALSE(*again);
    auto found = co_await store.sandboxes.find(world->project_id, wanted.public_id, soon());
    ASSERT_OK(found);
    EXPECT_EQ((*found)->state, SandboxState::failed);
    EXPECT_EQ((*found)->end_reason, "start_failed");
    EXPECT_EQ((*found)->end_detail, "the agent did not answer");
    EXPECT_EQ((*found)->console_tail, "Kernel panic");
    EXPECT_TRUE((*found)->ended_at.has_value());
    auto operation =
        co_await store.operations.find(world->project_id, wanted.operation_public_id, soon());
    ASSERT_OK(operation);
    EXPECT_EQ((*operation)->state, "failed");
    EXPECT_EQ((*operation)->error_message, "the agent did not answer");
    auto projects = co_await store.projects.list(world->project, soon());
    ASSERT_OK(projects);
    EXPECT_EQ(projects->front().used, domain::Amounts{});
    auto live = co_await store.sandboxes.find_live(wanted.public_id, soon());
    ASSERT_OK(live);
    EXPECT_FALSE(live->has_value());
    auto without = co_await store.sandboxes.without_row({wanted.public_id, "iother"}, soon());
    ASSERT_OK(without);
    EXPECT_EQ(without->size(), 2u);
  });
}

TEST(Sandboxes, ADecidedReasonStaysWhateverTheWorkerSays) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    auto row = co_await store.sandboxes.create(wanted, soon());
    ASSERT_OK(row);
    auto change = change_of(*row, SandboxEvent::end);
    change.reason = domain::EndReason::user;
    auto changed = co_await store.sandboxes.apply(change, soon());
    ASSERT_OK(changed);
    EXPECT_EQ(changed->now->end_reason, "user");
    End end;
    end.id = row->id;
    end.event = SandboxEvent::released;
    end.reason = domain::EndReason::guest_shutdown;
    auto ended = co_await store.sandboxes.end(end, soon());
    ASSERT_OK(ended);
    auto found = co_await store.sandboxes.find(world->project_id, wanted.public_id, soon());
    ASSERT_OK(found);
    EXPECT_EQ((*found)->end_reason, "user");
    EXPECT_EQ((*found)->state, SandboxState::deleted);
    auto operation =
        co_await store.operations.find(world->project_id, wanted.operation_public_id, soon());
    ASSERT_OK(operation);
    EXPECT_EQ((*operation)->error_code, "conflict");
  });
}

TEST(Sandboxes, StrangersFindNothing) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto mine = co_await make_world(store);
    ASSERT_OK(mine);
    auto theirs = co_await make_world(store);
    ASSERT_OK(theirs);
    auto row = co_await store.sandboxes.create(new_sandbox(*mine), soon());
    ASSERT_OK(row);
    auto found = co_await store.sandboxes.find(theirs->project_id, row->public_id, soon());
    ASSERT_OK(found);
    EXPECT_FALSE(found->has_value());
    auto list = co_await store.sandboxes.list(filter_of(*theirs), soon());
    ASSERT_OK(list);
    EXPECT_TRUE(list->empty());
  });
}

TEST(Sandboxes, ListPagesNewestFirstAndFilters) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    std::vector<std::string> made;
    for (int i = 0; i < 5; ++i) {
      auto wanted = new_sandbox(*world);
      wanted.metadata = {{"n", std::to_string(i)}, {"all", "yes"}};
      made.push_back(wanted.public_id);
      auto row = co_await store.sandboxes.create(wanted, soon());
      ASSERT_OK(row);
    }
    std::vector<std::string> seen;
    auto filter = filter_of(*world);
    filter.limit = 2;
    for (int page = 0; page < 4; ++page) {
      auto rows = co_await store.sandboxes.list(filter, soon());
      ASSERT_OK(rows);
      if (rows->empty()) break;
      for (auto const& row : *rows)
        seen.push_back(row.public_id);
      filter.after_time = rows->back().created_at;
      filter.after_id = rows->back().public_id;
    }
    std::ranges::reverse(made);
    EXPECT_EQ(seen, made);
    auto two =
        co_await store.sandboxes.list(filter_of(*world, {{"n", "2"}, {"all", "yes"}}), soon());
    ASSERT_OK(two);
    EXPECT_EQ(two->size(), 1u);
    auto none =
        co_await store.sandboxes.list(filter_of(*world, {{"n", "2"}, {"all", "no"}}), soon());
    ASSERT_OK(none);
    EXPECT_TRUE(none->empty());
    auto by_state = filter_of(*world);
    by_state.states = {SandboxState::running};
    auto running = co_await store.sandboxes.list(by_state, soon());
    ASSERT_OK(running);
    EXPECT_TRUE(running->empty());
  });
}

/// A running sandbox whose deadline was `timeout_s` ago or is that far ahead.
async::Task<SandboxRow> running_sandbox(Store& store,
                                        testing::World world,
                                        std::uint32_t timeout_s) {
  auto wanted = new_sandbox(world);
  wanted.timeout_s = timeout_s;
  auto row = co_await store.sandboxes.create(wanted, soon());
  if (!row) co_return base::passing(row);
  auto change = change_of(*row, SandboxEvent::started);
  change.operation = wanted.operation_public_id;
  auto started = co_await store.sandboxes.apply(change, soon());
  if (!started) co_return base::passing(started);
  co_return *started->now;
}

TEST(Sandboxes, ADeadlineIsClaimedExactlyOnce) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    for (int i = 0; i < 10; ++i) {
      auto row = co_await running_sandbox(store, *world, 3600);
      ASSERT_OK(row);
      auto now = co_await store.sandboxes.set_timeout(row->id, 0, false, "test", soon());
      ASSERT_OK(now);
      EXPECT_TRUE(now->applied);
    }
    auto later = co_await running_sandbox(store, *world, 3600);
    ASSERT_OK(later);
    async::TaskGroup group(co_await asio::this_coro::executor);
    std::vector<std::string> claimed;
    auto one = [&]() -> asio::awaitable<void> {
      for (int round = 0; round < 4; ++round) {
        auto due = co_await store.sandboxes.claim_due("me", 30s, 3, soon());
        EXPECT_OK(due);
        if (!due) co_return;
        for (auto const& sandbox : *due) {
          EXPECT_EQ(sandbox.sandbox.state, SandboxState::deleting);
          EXPECT_EQ(sandbox.sandbox.end_reason, "deadline");
          EXPECT_TRUE(base::is_short_id('x', sandbox.operation));
          claimed.push_back(sandbox.sandbox.public_id);
        }
      }
    };
    for (int i = 0; i < 4; ++i)
      group.spawn("claim", one());
    co_await group.join();
    EXPECT_EQ(claimed.size(), 10u);
    std::ranges::sort(claimed);
    EXPECT_EQ(std::ranges::unique(claimed).size(), 0u);
    EXPECT_THAT(claimed, ::testing::Not(::testing::Contains(later->public_id)));
    auto next = co_await store.sandboxes.next_due(soon());
    ASSERT_OK(next);
    EXPECT_EQ(*next, *later->deadline_at);
  });
}

TEST(Sandboxes, ExtendNeverShortens) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await running_sandbox(store, *world, 3600);
    ASSERT_OK(row);
    EXPECT_TRUE(row->deadline_at.has_value());
    auto shorter = co_await store.sandboxes.set_timeout(row->id, 60, true, "test", soon());
    ASSERT_OK(shorter);
    EXPECT_FALSE(shorter->applied);
    EXPECT_EQ(shorter->now->deadline_at, row->deadline_at);
    auto longer = co_await store.sandboxes.set_timeout(row->id, 7200, true, "test", soon());
    ASSERT_OK(longer);
    EXPECT_TRUE(longer->applied);
    EXPECT_GT(longer->now->deadline_at, row->deadline_at);
    auto none = co_await store.sandboxes.set_timeout(row->id, std::nullopt, false, "test", soon());
    ASSERT_OK(none);
    EXPECT_FALSE(none->now->deadline_at.has_value());
  });
}

TEST(Sandboxes, ATokenIsFoundUntilItIsRotated) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await running_sandbox(store, *world, 0);
    ASSERT_OK(row);
    auto old = row->token_sha256;
    auto found = co_await store.sandboxes.find_by_token(old, soon());
    ASSERT_OK(found);
    EXPECT_TRUE(found->has_value());
    auto rotated =
        co_await store.sandboxes.rotate_token(row->id, 1, base::random_hex(32), "test", soon());
    ASSERT_OK(rotated);
    EXPECT_TRUE(rotated->applied);
    EXPECT_EQ(rotated->now->token_generation, 2u);
    auto twice =
        co_await store.sandboxes.rotate_token(row->id, 1, base::random_hex(32), "test", soon());
    ASSERT_OK(twice);
    EXPECT_FALSE(twice->applied);
    auto gone = co_await store.sandboxes.find_by_token(old, soon());
    ASSERT_OK(gone);
    EXPECT_FALSE(gone->has_value());
    auto empty = co_await store.sandboxes.find_by_token("", soon());
    ASSERT_OK(empty);
    EXPECT_FALSE(empty->has_value());
  });
}

TEST(Operations, AKeyIsUsedOnce) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    wanted.idempotency_key = "once";
    auto first = co_await store.sandboxes.create(wanted, soon());
    ASSERT_OK(first);
    auto second_wanted = new_sandbox(*world);
    second_wanted.idempotency_key = "once";
    auto second = co_await store.sandboxes.create(second_wanted, soon());
    EXPECT_FALSE(second.has_value());
    EXPECT_EQ(sqlstate_of(second.error()), "23505");
    auto found = co_await store.operations.find_by_key(world->project_id, "once", soon());
    ASSERT_OK(found);
    EXPECT_EQ((*found)->sandbox, wanted.public_id);
    auto projects = co_await store.projects.list(world->project, soon());
    ASSERT_OK(projects);
    EXPECT_EQ(projects->front().used.sandboxes, 1u) << "the refused one left no usage";
  });
}

TEST(Operations, StaleOnesAreTakenOverOnce) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    wanted.lease = 0s;
    auto row = co_await store.sandboxes.create(wanted, soon());
    ASSERT_OK(row);
    auto fresh = co_await store.sandboxes.create(new_sandbox(*world), soon());
    ASSERT_OK(fresh);
    auto mine = co_await store.operations.claim_stale("me", 30s, 10, soon());
    ASSERT_OK(mine);
    EXPECT_EQ(mine->size(), 1u);
    EXPECT_EQ(mine->front().sandbox, wanted.public_id);
    EXPECT_EQ(mine->front().attempts, 2u);
    auto theirs = co_await store.operations.claim_stale("you", 30s, 10, soon());
    ASSERT_OK(theirs);
    EXPECT_TRUE(theirs->empty());
    auto renewed = co_await store.operations.renew("me", {mine->front().public_id}, 30s, soon());
    ASSERT_OK(renewed);
    EXPECT_EQ(*renewed, 1u);
    auto finished =
        co_await store.operations.finish(mine->front().public_id, "unavailable", "lost", soon());
    ASSERT_OK(finished);
    EXPECT_TRUE(*finished);
    auto again = co_await store.operations.finish(mine->front().public_id, "", "", soon());
    ASSERT_OK(again);
    EXPECT_FALSE(*again);
  });
}

TEST(Keys, RevokedAndExpiredKeysOpenNothing) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    NewKey wanted;
    wanted.project_public_id = world->project;
    wanted.name = "ci";
    wanted.key_sha256 = base::random_hex(32);
    wanted.prefix = "e2b_0000";
    auto key = co_await store.keys.create(wanted, soon());
    ASSERT_OK(key);
    auto owner = co_await store.keys.authenticate(wanted.key_sha256, soon());
    ASSERT_OK(owner);
    EXPECT_EQ((*owner)->project_id, world->project_id);
    EXPECT_EQ((*owner)->role, Role::member);
    auto stranger = co_await store.keys.revoke("pother", key->public_id, "test", soon());
    ASSERT_OK(stranger);
    EXPECT_FALSE(stranger->has_value());
    auto revoked = co_await store.keys.revoke(world->project, key->public_id, "test", soon());
    ASSERT_OK(revoked);
    EXPECT_TRUE((*revoked)->revoked_at.has_value());
    auto nobody = co_await store.keys.authenticate(wanted.key_sha256, soon());
    ASSERT_OK(nobody);
    EXPECT_FALSE(nobody->has_value());
    NewKey old = wanted;
    old.key_sha256 = base::random_hex(32);
    old.expires_at = base::system_clock().wall_now() - 1s;
    auto expired = co_await store.keys.create(old, soon());
    ASSERT_OK(expired);
    auto nothing = co_await store.keys.authenticate(old.key_sha256, soon());
    ASSERT_OK(nothing);
    EXPECT_FALSE(nothing->has_value());
  });
}

TEST(Keys, UsesAreRecorded) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    NewKey wanted;
    wanted.project_public_id = world->project;
    wanted.name = "ci";
    wanted.key_sha256 = base::random_hex(32);
    wanted.prefix = "e2b_";
    auto key = co_await store.keys.create(wanted, soon());
    ASSERT_OK(key);
    auto const now = base::system_clock().wall_now();
    std::vector<KeyUse> uses;
    uses.push_back({key->public_id,
                    world->project_id,
                    now,
                    "POST",
                    "/v1/sandboxes",
                    "/v1/sandboxes",
                    202,
                    "r1",
                    "127.0.0.1"});
    uses.push_back({key->public_id,
                    world->project_id,
                    now + 1ms,
                    "GET",
                    "/v1/nodes",
                    "/v1/nodes",
                    200,
                    "r2",
                    "127.0.0.1",
                    false});
    auto recorded = co_await store.keys.record_uses(uses, soon());
    EXPECT_OK(recorded);
    auto listed = co_await store.keys.list_uses(world->project_id, "", 10, std::nullopt, soon());
    ASSERT_OK(listed);
    EXPECT_EQ(listed->size(), 1u);
    EXPECT_EQ(listed->front().request_id, "r1");
    auto found = co_await store.keys.find(world->project, key->public_id, soon());
    ASSERT_OK(found);
    EXPECT_TRUE((*found)->last_used_at.has_value());
  });
}

TEST(Templates, VersionsAndTags) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    NewBuild next;
    next.name = "base";
    next.build = "b1";
    auto second = co_await store.templates.register_build(next, soon());
    ASSERT_OK(second);
    EXPECT_EQ(second->version, 2u);
    auto same = co_await store.templates.register_build(next, soon());
    ASSERT_OK(same);
    EXPECT_EQ(same->id, second->id);
    auto resolved = co_await store.templates.resolve(world->project_id, "base", "default", soon());
    ASSERT_OK(resolved);
    EXPECT_EQ((*resolved)->build, "b1");
    auto missing = co_await store.templates.resolve(world->project_id, "base", "nope", soon());
    ASSERT_OK(missing);
    EXPECT_FALSE(missing->has_value());
    auto own = next;
    own.project_id = world->project_id;
    own.build = "own";
    auto registered = co_await store.templates.register_build(own, soon());
    ASSERT_OK(registered);
    auto other = co_await make_world(store);
    ASSERT_OK(other);
    auto theirs = co_await store.templates.resolve(
        other->project_id, registered->template_public_id, "default", soon());
    ASSERT_OK(theirs);
    EXPECT_FALSE(theirs->has_value()) << "a template of another project";
    auto hidden = co_await store.templates.resolve(world->project_id, "base", "default", soon());
    ASSERT_OK(hidden);
    EXPECT_EQ((*hidden)->build, "own");
    auto list = co_await store.templates.list(world->project_id, soon());
    ASSERT_OK(list);
    EXPECT_EQ(list->size(), 2u);
    auto tags = co_await store.templates.tags(list->front().id, soon());
    ASSERT_OK(tags);
    EXPECT_EQ(tags->size(), 1u);
  });
}

TEST(Nodes, ReportsComeBack) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto named = co_await store.nodes.upsert("n1", "/a", soon());
    ASSERT_OK(named);
    auto moved = co_await store.nodes.upsert("n1", "/b", soon());
    ASSERT_OK(moved);
    Heartbeat beat;
    beat.name = "n1";
    beat.report.name = "n1";
    beat.report.memory_mib_total = 4096;
    beat.report.builds = {"b0"};
    auto beaten = co_await store.nodes.beat({beat}, soon());
    ASSERT_OK(beaten);
    auto nodes = co_await store.nodes.list(soon());
    ASSERT_OK(nodes);
    EXPECT_EQ(nodes->size(), 1u);
    EXPECT_EQ(nodes->front().address, "/b");
    EXPECT_EQ(nodes->front().report.memory_mib_total, 4096u);
    EXPECT_TRUE(nodes->front().heartbeat_at.has_value());
  });
}

TEST(Idempotency, ReplayBusyMismatchInterrupted) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    using Outcome = IdempotencyClaim::Outcome;
    auto const project = world->project_id;
    auto first = co_await store.idempotency.claim(project, "k", "sha", soon());
    ASSERT_OK(first);
    EXPECT_EQ(first->outcome, Outcome::ours);
    auto busy = co_await store.idempotency.claim(project, "k", "sha", soon());
    ASSERT_OK(busy);
    EXPECT_EQ(busy->outcome, Outcome::busy);
    auto finished = co_await store.idempotency.finish(project, "k", 201, "{}", soon());
    ASSERT_OK(finished);
    auto replay = co_await store.idempotency.claim(project, "k", "sha", soon());
    ASSERT_OK(replay);
    EXPECT_EQ(replay->outcome, Outcome::replay);
    EXPECT_EQ(replay->status, 201);
    EXPECT_EQ(replay->body, "{}");
    auto mismatch = co_await store.idempotency.claim(project, "k", "other", soon());
    ASSERT_OK(mismatch);
    EXPECT_EQ(mismatch->outcome, Outcome::mismatch);
    auto second = co_await store.idempotency.claim(project, "r", "sha", soon());
    ASSERT_OK(second);
    auto released = co_await store.idempotency.release(project, "r", soon());
    ASSERT_OK(released);
    auto again = co_await store.idempotency.claim(project, "r", "sha", soon());
    ASSERT_OK(again);
    EXPECT_EQ(again->outcome, Outcome::ours);
  });
}

}  // namespace
}  // namespace store
