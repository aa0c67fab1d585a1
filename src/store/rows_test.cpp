// Operations, keys, templates, nodes, idempotency.
#include "store/store_bench.hpp"

namespace store {
namespace {

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
