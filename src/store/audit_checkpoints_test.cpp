#include "store/audit_checkpoints.hpp"

#include "store/store_bench.hpp"

namespace store {
namespace {

wire::AuditCheckpoint checkpoint(std::uint64_t first, std::uint64_t last, char hash = 'a') {
  return {"node-1", first, last, std::string(64, hash), 1'000, std::string(128, 'f')};
}

TEST(AuditCheckpoints, TheFirstKeyStaysAndCheckpointsOnlyGoForward) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    AuditCheckpoints kept(store.database);
    auto unknown = co_await kept.find("node-9", soon());
    ASSERT_OK(unknown);
    EXPECT_FALSE(unknown->known);
    auto none = co_await kept.find("node-1", soon());
    ASSERT_OK(none);
    EXPECT_TRUE(none->known);
    EXPECT_EQ(none->public_key, "");
    EXPECT_FALSE(none->latest.has_value());
    for (char const key : {'1', '2'}) {
      auto enrolled = co_await kept.enroll("node-1", std::string(64, key), soon());
      EXPECT_OK(enrolled);
    }
    auto added = co_await kept.add("node-1", {checkpoint(1, 5), checkpoint(1, 9)}, soon());
    EXPECT_OK(added);
    auto late = co_await kept.add("node-1", {checkpoint(1, 7), checkpoint(1, 9, 'b')}, soon());
    EXPECT_OK(late);
    auto retired = co_await kept.add("node-1", {checkpoint(2, 9), checkpoint(3, 9)}, soon());
    EXPECT_OK(retired);
    auto now = co_await kept.find("node-1", soon());
    ASSERT_OK(now);
    EXPECT_EQ(now->public_key, std::string(64, '1'));
    EXPECT_TRUE(now->latest.has_value());
    if (!now->latest) co_return;
    EXPECT_EQ(now->latest->last_sequence, 9U);
    EXPECT_EQ(now->latest->first_sequence, 3U);
    EXPECT_EQ(now->latest->hash, std::string(64, 'a'));
    auto all = co_await kept.list("node-1", 0, 10, soon());
    ASSERT_OK(all);
    EXPECT_EQ(all->size(), 2U);
    EXPECT_EQ(all->front().last_sequence, 5U);
  });
}

TEST(AuditCheckpoints, AProblemIsToldOnceAndStaysUntilAnAdministratorLooked) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    AuditCheckpoints kept(store.database);
    auto const broken = [&](std::string what) { return kept.complain("node-1", what, soon()); };
    auto enrolled = co_await kept.enroll("node-1", std::string(64, '1'), soon());
    EXPECT_OK(enrolled);
    auto added = co_await kept.add("node-1", {checkpoint(1, 5)}, soon());
    EXPECT_OK(added);
    auto first = co_await broken("it ends early");
    ASSERT_OK(first);
    EXPECT_TRUE(*first);
    auto second = co_await broken("something else");
    ASSERT_OK(second);
    EXPECT_FALSE(*second);
    auto now = co_await kept.find("node-1", soon());
    ASSERT_OK(now);
    EXPECT_EQ(now->problem, "it ends early");
    EXPECT_TRUE(now->problem_at.has_value());
    auto const events = testing::query(
        store_conninfo(),
        "select type || ' ' || (data->>'node') || ': ' || (data->>'problem') from events"
        " where type like 'audit.%' and project_id = '" +
            world->project_id + "' order by id");
    EXPECT_THAT(events, ::testing::ElementsAre("audit.broken node-1: it ends early"));
    auto gone = co_await kept.forget("node-1", "key", soon());
    ASSERT_OK(gone);
    EXPECT_TRUE(*gone);
    auto after = co_await kept.find("node-1", soon());
    ASSERT_OK(after);
    EXPECT_EQ(after->problem + after->public_key, "");
    EXPECT_FALSE(after->latest.has_value());
    auto again = co_await kept.forget("node-1", "key", soon());
    ASSERT_OK(again);
    EXPECT_FALSE(*again);
  });
}

TEST(AuditCheckpoints, ThoseOfRetiredLinesGoAndOldOnesAreThinned) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    AuditCheckpoints kept(store.database);
    auto added = co_await kept.add(
        "node-1",
        {checkpoint(1, 5), checkpoint(1, 20), checkpoint(1, 30), checkpoint(10, 40)},
        soon());
    EXPECT_OK(added);
    auto trimmed = co_await kept.trim(soon());
    ASSERT_OK(trimmed);
    EXPECT_EQ(*trimmed, 1U) << "its line is gone";
    testing::query(store_conninfo(),
                   "update audit_checkpoints set received_at = date_trunc('hour', now()) - "
                   "interval '9 days' where last_sequence < 40");
    auto thinned = co_await kept.trim(soon());
    ASSERT_OK(thinned);
    EXPECT_EQ(*thinned, 1U) << "20 and 30 are of one hour";
    auto all = co_await kept.list("node-1", 0, 10, soon());
    ASSERT_OK(all);
    EXPECT_EQ(all->size(), 2U);
    EXPECT_EQ(all->front().last_sequence, 30U);
  });
}

}  // namespace
}  // namespace store
