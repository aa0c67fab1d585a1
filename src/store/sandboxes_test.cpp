// Create within the quota, compare-and-set, ends, deadlines, lists.
#include "store/store_bench.hpp"

namespace store {
namespace {

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
  with_running([](Store& store,
                  testing::World const* world,
                  SandboxRow const* row) -> asio::awaitable<void> {
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

}  // namespace
}  // namespace store
