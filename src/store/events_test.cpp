#include "async/testing.hpp"
#include "store/testing.hpp"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <postgresql/libpq-fe.h>

namespace store {
namespace {

using namespace std::chrono_literals;

base::Deadline soon() {
  return base::system_clock().in(10s);
}

TEST(EventCursor, OnlyItsOwnTextIsRead) {
  EventCursor const cursor{1042, 77};
  auto const back = parse_cursor(to_text(cursor));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, cursor);
  for (auto const* wrong : {"",
                            "-",
                            "1-",
                            "-1",
                            "1",
                            "1-2-3",
                            "01-2",
                            "1- 2",
                            "a-b",
                            "18446744073709551616-1",
                            "1-18446744073709551615",
                            "1-2\n"}) {
    EXPECT_FALSE(parse_cursor(wrong).has_value()) << wrong;
  }
}

/// A session of its own that holds a transaction open.
class Session {
 public:
  explicit Session(std::string const& conninfo)
      : connection_(PQconnectdb(conninfo.c_str()), &PQfinish) {}

  void run(std::string const& sql) {
    std::unique_ptr<PGresult, decltype(&PQclear)> const result(
        PQexec(connection_.get(), sql.c_str()), &PQclear);
    ASSERT_THAT(PQresultStatus(result.get()), ::testing::AnyOf(PGRES_COMMAND_OK, PGRES_TUPLES_OK))
        << PQerrorMessage(connection_.get());
  }

 private:
  std::unique_ptr<PGconn, decltype(&PQfinish)> connection_;
};

// The regression this scheme is for: a reader that remembers the highest id skips the event that
// took a lower one and committed later.
TEST(Events, ALateCommitIsNotSkipped) {
  DatabaseOptions options;
  options.conninfo = testing::Postgres::instance().make_database();
  auto test = [&]() -> asio::awaitable<void> {
    Store store(co_await asio::this_coro::executor, options);
    auto world = co_await testing::make_world(store);
    if (!world) throw std::runtime_error(world.error().message());
    auto const insert = [&](std::string const& type) {
      return fmt::format(
          "insert into events (project_id, sandbox, type, actor) values ('{}', 'i', '{}', 'test')",
          world->project_id,
          type);
    };
    auto start = co_await store.events.end(soon());
    EXPECT_TRUE(start.has_value());
    Session slow(options.conninfo);
    slow.run("begin");
    slow.run(insert("slow"));
    auto fast =
        co_await store.events.add({world->project_id, "i", "fast", "test", nullptr}, soon());
    EXPECT_TRUE(fast.has_value());
    auto early = co_await store.events.read(*start, 10, soon());
    EXPECT_TRUE(early.has_value());
    EXPECT_TRUE(early->empty()) << "nothing behind an open transaction is shown yet";
    slow.run("commit");
    auto late = co_await store.events.read(*start, 10, soon());
    EXPECT_TRUE(late.has_value());
    std::vector<std::string> types;
    for (auto const& event : *late)
      types.push_back(event.type);
    EXPECT_EQ(types, (std::vector<std::string>{"slow", "fast"}));
    // A transaction that is rolled back does not hold anything up either.
    slow.run("begin");
    slow.run(insert("never"));
    auto more =
        co_await store.events.add({world->project_id, "i", "more", "test", nullptr}, soon());
    EXPECT_TRUE(more.has_value());
    slow.run("rollback");
    auto rest = co_await store.events.read(late->back().cursor, 10, soon());
    EXPECT_TRUE(rest.has_value());
    EXPECT_EQ(rest->size(), 1u);
    co_await store.database.close();
  };
  async::run_test(test);
}

TEST(Events, AReaderSeesEveryEventOfManyWritersOnceAndInOneOrder) {
  DatabaseOptions options;
  options.conninfo = testing::Postgres::instance().make_database();
  options.connections_max = 16;
  auto test = [&]() -> asio::awaitable<void> {
    Store store(co_await asio::this_coro::executor, options);
    auto world = co_await testing::make_world(store);
    if (!world) throw std::runtime_error(world.error().message());
    constexpr int writers = 12;
    constexpr int each = 60;
    // A statement that holds its number for a while before it commits, so that commits overtake.
    static Statement const dawdle{"test.dawdle",
                                  "with e as (insert into events (project_id, sandbox, type, "
                                  "actor) values ($1, $2, 'x', 'test') returning id)"
                                  " select pg_sleep(random() * 0.004) from e"};
    async::TaskGroup group(co_await asio::this_coro::executor);
    auto write = [&](int writer) -> asio::awaitable<void> {
      for (int i = 0; i < each; ++i) {
        Params params;
        params.text(world->project_id).text(fmt::format("w{}-{}", writer, i));
        auto rows = co_await store.database.run(dawdle, std::move(params), soon());
        EXPECT_TRUE(rows.has_value());
      }
    };
    for (int i = 0; i < writers; ++i)
      group.spawn("writer", write(i));
    EventCursor cursor;
    std::vector<std::string> seen;
    auto const until = base::system_clock().in(20s);
    while (seen.size() < writers * each && base::system_clock().steady_now() < until) {
      auto events = co_await store.events.read(cursor, 50, soon());
      EXPECT_TRUE(events.has_value());
      for (auto const& event : *events) {
        EXPECT_LT(cursor, event.cursor);
        cursor = event.cursor;
        if (event.type == "x") seen.push_back(event.sandbox);
      }
      if (events->empty()) co_await async::sleep_for(5ms);
    }
    co_await group.join();
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(writers * each));
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), seen.size());
    // The same order again, for whoever reads later.
    auto again = co_await store.events.read_of(world->project_id, "", {}, 10'000, soon());
    EXPECT_TRUE(again.has_value());
    std::vector<std::string> second;
    for (auto const& event : *again)
      if (event.type == "x") second.push_back(event.sandbox);
    EXPECT_EQ(second, seen);
    co_await store.database.close();
  };
  async::run_test(test, 60s);
}

}  // namespace
}  // namespace store
