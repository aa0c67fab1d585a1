// Migrations and the pool, against a real server.
#include "store/store_bench.hpp"

namespace store {
namespace {

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
  for (auto const* table : {"credentials", "credential_versions"}) {
    auto const sql =
        fmt::format("select has_table_privilege('space_controller', '{}', 'select')", table);
    EXPECT_EQ(testing::query(conninfo, sql).front(), "f") << table;
  }
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

}  // namespace
}  // namespace store
