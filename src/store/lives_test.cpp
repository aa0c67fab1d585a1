// Suspends, restores, who is due for them, and snapshots.
#include "store/store_bench.hpp"

namespace store {
namespace {

Begin begin_of(SandboxRow const& row, SandboxEvent event, std::string kind) {
  Begin begin;
  begin.id = row.id;
  begin.project_id = row.project_id;
  begin.from = row.state;
  begin.event = event;
  begin.kind = std::move(kind);
  begin.operation = base::make_short_id('x');
  begin.lease_owner = "test";
  begin.actor = "test";
  return begin;
}

/// Suspended, through both halves.
async::Task<SandboxRow> suspended(Store& store, SandboxRow row, bool keep_deadline) {
  auto begin = begin_of(row, SandboxEvent::suspend, "sandbox.suspend");
  auto const operation = begin.operation;
  auto begun = co_await store.sandboxes.begin(std::move(begin), soon());
  if (!begun) co_return base::passing(begun);
  EXPECT_TRUE(begun->applied);
  auto change = change_of(*begun->now, SandboxEvent::suspend_done);
  change.operation = operation;
  change.suspended_bytes = 4096;
  if (keep_deadline) change.deadline_grace = 0s;
  auto done = co_await store.sandboxes.apply(std::move(change), soon());
  if (!done) co_return base::passing(done);
  EXPECT_TRUE(done->applied);
  co_return *done->now;
}

async::Task<domain::Amounts> used_by(Store& store, testing::World world) {
  auto projects = co_await store.projects.list(world.project, soon());
  if (!projects) co_return base::passing(projects);
  co_return projects->at(0).used;
}

TEST(Lives, ASuspendGivesMemoryBackAndARestoreNeedsRoom) {
  with_store([](Store& store) -> asio::awaitable<void> {
    domain::Limits limits;
    limits.memory_mib = 512;
    auto world = co_await make_world(store, limits);
    ASSERT_OK(world);
    auto row = co_await running_sandbox(store, *world, 3600);
    ASSERT_OK(row);
    auto asleep = co_await suspended(store, *row, false);
    ASSERT_OK(asleep);
    EXPECT_EQ(asleep->state, SandboxState::suspended);
    EXPECT_EQ(asleep->suspended_bytes, 4096u);
    EXPECT_TRUE(asleep->suspended_at.has_value());
    EXPECT_FALSE(asleep->deadline_at.has_value()) << "what its owner put to sleep is not ended";
    auto used = co_await used_by(store, *world);
    ASSERT_OK(used);
    EXPECT_EQ(used->memory_mib, 0u);
    EXPECT_EQ(used->vcpus, 0u);
    EXPECT_EQ(used->sandboxes, 1u);
    EXPECT_GT(used->disk_mib, 0u);
    // Somebody else takes the memory: the restore is refused, and nothing of the row has changed.
    auto other = co_await running_sandbox(store, *world, 3600);
    ASSERT_OK(other);
    auto refused = co_await store.sandboxes.begin(
        begin_of(*asleep, SandboxEvent::restore, "sandbox.resume"), soon());
    EXPECT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), base::Code::exhausted);
    End end;
    end.id = asleep->id;
    end.event = SandboxEvent::machine_failed;
    auto ended = co_await store.sandboxes.end(end, soon());
    ASSERT_OK(ended);
    EXPECT_TRUE(*ended);
    used = co_await used_by(store, *world);
    ASSERT_OK(used);
    EXPECT_EQ(used->memory_mib, other->memory_mib) << "what was given back is not given back twice";
    EXPECT_EQ(used->sandboxes, 1u);
  });
}

TEST(Lives, ARestoreIsANewLifeAndAFailedOneGoesBack) {
  with_running([](Store& store,
                  testing::World const* world,
                  SandboxRow const* row) -> asio::awaitable<void> {
    auto asleep = co_await suspended(store, *row, false);
    ASSERT_OK(asleep);
    auto begin = begin_of(*asleep, SandboxEvent::restore, "sandbox.resume");
    begin.timeout_s = 77;
    auto waking = co_await store.sandboxes.begin(begin, soon());
    ASSERT_OK(waking);
    EXPECT_EQ(waking->now->state, SandboxState::restoring);
    EXPECT_EQ(waking->now->epoch, row->epoch + 1);
    auto again = co_await store.sandboxes.begin(begin, soon());
    ASSERT_OK(again);
    EXPECT_FALSE(again->applied) << "one of two resumes";
    auto failed = change_of(*waking->now, SandboxEvent::restore_failed);
    failed.operation = begin.operation;
    failed.error_code = "internal";
    failed.error_message = "its memory file is damaged";
    auto back = co_await store.sandboxes.apply(failed, soon());
    ASSERT_OK(back);
    EXPECT_EQ(back->now->state, SandboxState::suspended);
    EXPECT_EQ(back->now->problem, "its memory file is damaged");
    auto operation = co_await store.operations.find(world->project_id, begin.operation, soon());
    ASSERT_OK(operation);
    EXPECT_EQ((*operation)->state, "failed");
    EXPECT_EQ((*operation)->error_message, "its memory file is damaged");
    begin = begin_of(*back->now, SandboxEvent::restore, "sandbox.resume");
    waking = co_await store.sandboxes.begin(begin, soon());
    ASSERT_OK(waking);
    EXPECT_EQ(waking->now->epoch, row->epoch + 2);
    auto done = change_of(*waking->now, SandboxEvent::restore_done);
    done.operation = begin.operation;
    auto awake = co_await store.sandboxes.apply(done, soon());
    ASSERT_OK(awake);
    EXPECT_EQ(awake->now->state, SandboxState::running);
    EXPECT_EQ(awake->now->problem, "");
    EXPECT_EQ(awake->now->timeout_s, 77u);
    EXPECT_TRUE(awake->now->deadline_at.has_value());
    EXPECT_FALSE(awake->now->suspended_at.has_value());
    EXPECT_GT(*awake->now->started_at, *row->started_at);
    auto used = co_await used_by(store, *world);
    ASSERT_OK(used);
    EXPECT_EQ(used->memory_mib, row->memory_mib);
  });
}

TEST(Lives, DueSuspendsAreClaimedOnceWithTheirReason) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    wanted.on_timeout = "suspend";
    auto row = co_await running_sandbox_of(store, wanted);
    ASSERT_OK(row);
    auto set = co_await store.sandboxes.set_timeout(row->id, 0, false, "test", soon());
    ASSERT_OK(set);
    auto deleted = co_await store.sandboxes.claim_due("me", 30s, 10, soon());
    ASSERT_OK(deleted);
    EXPECT_TRUE(deleted->empty()) << "it is to be suspended, not deleted";
    auto next = co_await store.sandboxes.next_due(soon());
    ASSERT_OK(next);
    EXPECT_TRUE(next->has_value());
    async::TaskGroup group(co_await asio::this_coro::executor);
    std::vector<DueSandbox> claimed;
    auto one = [&]() -> asio::awaitable<void> {
      DueSuspends const which{.deadlines = true, .idle = true, .draining = true, .node = {}};
      auto due = co_await store.sandboxes.claim_suspends(which, "me", 30s, 10, soon());
      EXPECT_OK(due);
      if (due) std::ranges::move(*due, std::back_inserter(claimed));
    };
    for (int i = 0; i < 4; ++i)
      group.spawn("claim", one());
    co_await group.join();
    EXPECT_EQ(claimed.size(), 1u);
    if (claimed.empty()) co_return;
    EXPECT_EQ(claimed[0].actor, "deadline");
    EXPECT_EQ(claimed[0].sandbox.state, SandboxState::suspending);
    next = co_await store.sandboxes.next_due(soon());
    ASSERT_OK(next);
    EXPECT_FALSE(next->has_value()) << "it is being done";
    // One that fails goes on, and is not tried again at once.
    auto failed = change_of(claimed[0].sandbox, SandboxEvent::suspend_failed);
    failed.operation = claimed[0].operation;
    failed.error_code = "exhausted";
    failed.error_message = "the pool is full";
    auto back = co_await store.sandboxes.apply(failed, soon());
    ASSERT_OK(back);
    EXPECT_EQ(back->now->state, SandboxState::running);
    EXPECT_TRUE(back->now->deadline_at.has_value());
    claimed.clear();
    co_await one();
    EXPECT_TRUE(claimed.empty());
    auto all = co_await store.sandboxes.claim_suspends(
        {.node = "node-1", .at_once = true}, "me", 30s, 10, soon());
    ASSERT_OK(all);
    EXPECT_EQ(all->size(), 1u) << "an operator's word counts at once";
  });
}

std::vector<std::string> events_of(std::string const& sandbox, std::string const& type) {
  return testing::query(store_conninfo(),
                        "select data->>'expires_at' from events where sandbox = '" + sandbox +
                            "' and type = '" + type + "'");
}

TEST(Lives, WhatIsSuspendedForLongerThanItsProjectKeepsThoseGoesWithADaysNotice) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await running_sandbox(store, *world, 0);
    ASSERT_OK(row);
    auto older = co_await suspended(store, *row, false);
    ASSERT_OK(older);
    EXPECT_FALSE(older->expires_at.has_value())
        << "kept for good unless its project says otherwise";
    auto set = co_await store.projects.set_suspended_keep(world->project, 7200, "me", soon());
    ASSERT_OK(set);
    EXPECT_EQ((**set).suspended_keep_s, 7200u);
    row = co_await running_sandbox(store, *world, 0);
    ASSERT_OK(row);
    auto newer = co_await suspended(store, *row, false);
    ASSERT_OK(newer);
    auto const now = base::system_clock().wall_now();
    EXPECT_GT(newer->expires_at.value_or(now), now + 110min);
    EXPECT_LT(newer->expires_at.value_or(now), now + 130min);
    EXPECT_EQ(events_of(newer->public_id, "sandbox.suspended").size(), 1u);
    EXPECT_THAT(events_of(older->public_id, "sandbox.expiry_set").at(0), ::testing::EndsWith("Z"))
        << "one that slept already has a day, not two hours";
    auto told = co_await store.sandboxes.tell_expiries(24h, soon());
    ASSERT_OK(told);
    auto again = co_await store.sandboxes.tell_expiries(25h, soon());
    ASSERT_OK(again);
    EXPECT_EQ(*told + *again, 2u) << "each once";
    EXPECT_EQ(events_of(newer->public_id, "sandbox.expires_soon").size(), 1u);
    auto none = co_await store.sandboxes.claim_due("me", 30s, 10, soon());
    ASSERT_OK(none);
    EXPECT_TRUE(none->empty());
    testing::query(store_conninfo(),
                   "update sandboxes set expires_at = now() where public_id = '" +
                       newer->public_id + "' returning id");
    auto due = co_await store.sandboxes.claim_due("me", 30s, 10, soon());
    ASSERT_OK(due);
    EXPECT_EQ(due->size(), 1u);
    if (due->size() != 1) co_return;
    EXPECT_EQ(due->at(0).sandbox.public_id, newer->public_id);
    EXPECT_EQ(due->at(0).sandbox.end_reason, "idle");
    EXPECT_THAT(due->at(0).sandbox.end_detail, ::testing::HasSubstr("its project keeps"));
    set = co_await store.projects.set_suspended_keep(world->project, std::nullopt, "me", soon());
    ASSERT_OK(set);
    auto kept = co_await store.sandboxes.find_live(older->public_id, soon());
    ASSERT_OK(kept);
    EXPECT_FALSE((**kept).expires_at.has_value());
  });
}

TEST(Lives, OneThatWasResumedInTimeDoesNotExpire) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto set = co_await store.projects.set_suspended_keep(world->project, 3600, "me", soon());
    ASSERT_OK(set);
    auto row = co_await running_sandbox(store, *world, 0);
    ASSERT_OK(row);
    auto asleep = co_await suspended(store, *row, false);
    ASSERT_OK(asleep);
    EXPECT_TRUE(asleep->expires_at.has_value());
    auto begun = co_await store.sandboxes.begin(
        begin_of(*asleep, SandboxEvent::restore, "sandbox.resume"), soon());
    ASSERT_OK(begun);
    testing::query(store_conninfo(), "update sandboxes set expires_at = now() returning id");
    auto due = co_await store.sandboxes.claim_due("me", 30s, 10, soon());
    ASSERT_OK(due);
    EXPECT_TRUE(due->empty()) << "it is on its way back";
    auto awake =
        co_await store.sandboxes.apply(change_of(*begun->now, SandboxEvent::restore_done), soon());
    ASSERT_OK(awake);
    EXPECT_TRUE(awake->applied);
    EXPECT_FALSE(awake->now->expires_at.has_value());
  });
}

TEST(Lives, OnlyWhatNobodyUsesIsIdle) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto wanted = new_sandbox(*world);
    wanted.idle_timeout_s = 60;
    wanted.timeout_s = 3600;
    auto idle = co_await running_sandbox_of(store, wanted);
    ASSERT_OK(idle);
    wanted = new_sandbox(*world);
    wanted.idle_timeout_s = 60;
    wanted.timeout_s = 3600;
    auto used = co_await running_sandbox_of(store, wanted);
    ASSERT_OK(used);
    wanted = new_sandbox(*world);
    wanted.idle_timeout_s = 0;
    auto never = co_await running_sandbox_of(store, wanted);
    ASSERT_OK(never);
    testing::query(
        store_conninfo(),
        "update sandboxes set used_at = now() - interval '2 minutes', started_at = now() "
        "- interval '2 minutes' returning id");
    auto touched = co_await store.sandboxes.touch({used->public_id}, soon());
    ASSERT_OK(touched);
    auto due =
        co_await store.sandboxes.claim_suspends({.idle = true, .node = {}}, "me", 30s, 10, soon());
    ASSERT_OK(due);
    EXPECT_EQ(due->size(), 1u);
    if (due->size() != 1) co_return;
    EXPECT_EQ(due->at(0).sandbox.public_id, idle->public_id);
    EXPECT_EQ(due->at(0).actor, "idle");
    // The platform put it to sleep: the end that its owner asked for still comes.
    auto change = change_of(due->at(0).sandbox, SandboxEvent::suspend_done);
    change.deadline_grace = 0s;
    auto done = co_await store.sandboxes.apply(change, soon());
    ASSERT_OK(done);
    EXPECT_TRUE(idle->deadline_at.has_value());
    EXPECT_EQ(done->now->deadline_at, idle->deadline_at);
    // A host that stops leaves time to come back.
    auto begin = begin_of(*used, SandboxEvent::suspend, "sandbox.suspend");
    auto begun = co_await store.sandboxes.begin(begin, soon());
    ASSERT_OK(begun);
    change = change_of(*begun->now, SandboxEvent::suspend_done);
    change.deadline_grace = std::chrono::hours(24);
    done = co_await store.sandboxes.apply(change, soon());
    ASSERT_OK(done);
    EXPECT_GT(*done->now->deadline_at, *used->deadline_at + std::chrono::hours(20));
  });
}

TEST(Snapshots, KeepTheirFilesWhileSandboxesAreCreatedFromThem) {
  with_running([](Store& store,
                  testing::World const* world,
                  SandboxRow const* row) -> asio::awaitable<void> {
    NewSnapshot wanted;
    wanted.public_id = base::make_short_id('s');
    wanted.sandbox_id = row->id;
    wanted.operation = base::make_short_id('x');
    wanted.lease_owner = "test";
    auto snapshot = co_await store.snapshots.create(std::move(wanted), soon());
    ASSERT_OK(snapshot);
    auto ready = co_await store.snapshots.settle(snapshot->id, 1000, soon());
    ASSERT_OK(ready);
    auto begun =
        co_await store.snapshots.begun({snapshot->public_id, "sother"}, {row->public_id}, soon());
    ASSERT_OK(begun);
    EXPECT_EQ(*begun, std::vector<std::string>{snapshot->public_id});
    begun = co_await store.snapshots.begun({snapshot->public_id}, {""}, soon());
    ASSERT_OK(begun);
    EXPECT_TRUE(begun->empty());
    auto copy = new_sandbox(*world);
    copy.snapshot = snapshot->public_id;
    auto const operation = copy.operation_public_id;
    auto creating = co_await store.sandboxes.create(std::move(copy), soon());
    ASSERT_OK(creating);
    auto going = co_await store.snapshots.begin_delete(snapshot->id, soon());
    ASSERT_OK(going);
    EXPECT_TRUE(*going);
    auto starts = co_await store.snapshots.has_starts(snapshot->public_id, soon());
    ASSERT_OK(starts);
    EXPECT_TRUE(*starts);
    auto due = co_await store.snapshots.claim_due(10, soon());
    ASSERT_OK(due);
    EXPECT_TRUE(due->empty());
    Change change;
    change.id = creating->id;
    change.actor = "test";
    change.operation = operation;
    auto started = co_await store.sandboxes.apply(std::move(change), soon());
    ASSERT_OK(started);
    starts = co_await store.snapshots.has_starts(snapshot->public_id, soon());
    ASSERT_OK(starts);
    EXPECT_FALSE(*starts);
    due = co_await store.snapshots.claim_due(10, soon());
    ASSERT_OK(due);
    EXPECT_EQ(due->size(), 1u);
  });
}

/// Of `row`, and there.
async::Task<SnapshotRow> ready_snapshot(Store& store, SandboxRow row) {
  NewSnapshot wanted;
  wanted.public_id = base::make_short_id('s');
  wanted.sandbox_id = row.id;
  wanted.operation = base::make_short_id('x');
  wanted.lease_owner = "test";
  auto made = co_await store.snapshots.create(std::move(wanted), soon());
  if (!made) co_return base::passing(made);
  auto ready = co_await store.snapshots.settle(made->id, 1000, soon());
  if (!ready) co_return base::passing(ready);
  co_return made;
}

TEST(Snapshots, ACreateThatReadOneBeforeItsDeleteIsRefusedAndCostsNothing) {
  with_running([](Store& store,
                  testing::World const* world,
                  SandboxRow const* row) -> asio::awaitable<void> {
    auto snapshot = co_await ready_snapshot(store, *row);
    ASSERT_OK(snapshot);
    auto copy = new_sandbox(*world);
    copy.snapshot = snapshot->public_id;
    auto going = co_await store.snapshots.begin_delete(snapshot->id, soon());
    ASSERT_OK(going);
    auto refused = co_await store.sandboxes.create(std::move(copy), soon());
    EXPECT_FALSE(refused.has_value());
    if (refused) co_return;
    EXPECT_EQ(refused.error().code(), base::Code::not_found) << refused.error().message();
    auto used = co_await used_by(store, *world);
    ASSERT_OK(used);
    EXPECT_EQ(used->sandboxes, 1u);
  });
}

// Either the create sees the delete, or the delete sees the create: files that nobody waits for are
// never removed from under one.
TEST(Snapshots, OfACreateAndADeleteAtOnceOneSeesTheOther) {
  with_running([](Store& store,
                  testing::World const* world,
                  SandboxRow const* row) -> asio::awaitable<void> {
    for (int round = 0; round < 20; ++round) {
      auto snapshot = co_await ready_snapshot(store, *row);
      ASSERT_OK(snapshot);
      auto copy = new_sandbox(*world);
      copy.snapshot = snapshot->public_id;
      std::optional<base::Result<SandboxRow>> created;
      std::optional<base::Result<bool>> starts;
      auto const create = [&]() -> asio::awaitable<void> {
        created = co_await store.sandboxes.create(copy, soon());
      };
      auto const remove = [&]() -> asio::awaitable<void> {
        auto const going = co_await store.snapshots.begin_delete(snapshot->id, soon());
        EXPECT_TRUE(going.has_value());
        starts = co_await store.snapshots.has_starts(snapshot->public_id, soon());
      };
      async::TaskGroup group(co_await asio::this_coro::executor);
      group.spawn("create", create());
      group.spawn("remove", remove());
      co_await group.join();
      EXPECT_TRUE(created && starts && *starts);
      if (!created || !starts || !*starts) co_return;
      EXPECT_EQ(created->has_value(), **starts) << "in round " << round;
    }
  });
}

TEST(Snapshots, AreMadeWithinTheQuotaFoundAndRemoved) {
  with_running([](Store& store,
                  testing::World const* world,
                  SandboxRow const* row) -> asio::awaitable<void> {
    testing::query(store_conninfo(), "update projects set quota_snapshots = 2 returning id");
    auto wanted = [&](std::string name) {
      NewSnapshot one;
      one.public_id = base::make_short_id('s');
      one.sandbox_id = row->id;
      one.name = std::move(name);
      one.operation = base::make_short_id('x');
      one.lease_owner = "test";
      return one;
    };
    auto first = co_await store.snapshots.create(wanted("a"), soon());
    ASSERT_OK(first);
    EXPECT_EQ(first->state, "creating");
    EXPECT_EQ(first->node, "node-1");
    EXPECT_EQ(first->source, row->public_id);
    auto none = co_await store.snapshots.find(world->project_id, first->public_id, soon());
    ASSERT_OK(none);
    EXPECT_FALSE(none->has_value()) << "nothing starts from what is not there yet";
    auto ready = co_await store.snapshots.settle(first->id, 1000, soon());
    ASSERT_OK(ready);
    EXPECT_TRUE(*ready);
    auto found = co_await store.snapshots.find(world->project_id, "a", soon());
    ASSERT_OK(found);
    EXPECT_EQ((*found)->public_id, first->public_id);
    auto stranger = co_await store.snapshots.find(base::make_uuid7(), "a", soon());
    ASSERT_OK(stranger);
    EXPECT_FALSE(stranger->has_value());
    auto second = co_await store.snapshots.create(wanted("a"), soon());
    ASSERT_OK(second);
    auto third = co_await store.snapshots.create(wanted("c"), soon());
    EXPECT_FALSE(third.has_value());
    EXPECT_EQ(third.error().code(), base::Code::exhausted);
    auto failed =
        co_await store.snapshots.fail(second->id, "exhausted", "the pool is full", soon());
    ASSERT_OK(failed);
    auto operation = co_await store.operations.find(world->project_id, second->operation, soon());
    ASSERT_OK(operation);
    EXPECT_EQ((*operation)->error_message, "the pool is full");
    SnapshotFilter mine;
    mine.project_id = world->project_id;
    auto list = co_await store.snapshots.list(mine, soon());
    ASSERT_OK(list);
    EXPECT_EQ(list->size(), 1u);
    auto going = co_await store.snapshots.begin_delete(first->id, soon());
    ASSERT_OK(going);
    EXPECT_TRUE(*going);
    going = co_await store.snapshots.begin_delete(first->id, soon());
    ASSERT_OK(going);
    EXPECT_FALSE(*going);
    auto due = co_await store.snapshots.claim_due(10, soon());
    ASSERT_OK(due);
    EXPECT_EQ(due->size(), 1u) << "whoever began the delete may have died";
    auto removed = co_await store.snapshots.remove(first->id, soon());
    ASSERT_OK(removed);
    auto without = co_await store.snapshots.without_row({first->public_id}, soon());
    ASSERT_OK(without);
    EXPECT_EQ(without->size(), 1u);
  });
}

}  // namespace
}  // namespace store
