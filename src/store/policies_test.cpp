// The levels of egress policies, and credentials as rows.
#include "base/id.hpp"
#include "store/store_bench.hpp"

namespace store {
namespace {

json::value text(std::string_view posture) {
  return json::object{{"posture", posture}};
}

TEST(Policies, EveryChangeIsAVersionAndTheGenerationOnlyGrows) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await store.sandboxes.create(new_sandbox(*world), soon());
    ASSERT_OK(row);
    auto const over = [&]() {
      return store.policies.over(
          world->project_id, row->template_public_id, row->public_id, soon());
    };
    auto none = co_await over();
    ASSERT_OK(none);
    EXPECT_TRUE(none->empty());
    auto own =
        co_await store.policies.put({"sandbox", row->public_id, text("open"), "k1", {}}, soon());
    ASSERT_OK(own);
    EXPECT_EQ((*own)->version, 1u);
    auto project = co_await store.policies.put(
        {"project", world->project, text("allowlist"), "k1", {}}, soon());
    ASSERT_OK(project);
    auto platform = co_await store.policies.put({"platform", "", text("open"), "k1", {}}, soon());
    ASSERT_OK(platform);
    auto other = co_await store.policies.put({"project", "pother", text("open"), "k1", {}}, soon());
    ASSERT_OK(other);
    auto taken_away =
        co_await store.policies.put({"project", world->project, nullptr, "k2", 1}, soon());
    ASSERT_OK(taken_away);
    EXPECT_EQ((*taken_away)->version, 2u);
    auto late =
        co_await store.policies.put({"project", world->project, text("open"), "k3", 1}, soon());
    ASSERT_OK(late);
    EXPECT_FALSE(late->has_value()) << "somebody else was first";
    auto fresh = co_await store.policies.put(
        {"organisation", world->organisation, text("open"), "k3", 5}, soon());
    ASSERT_OK(fresh);
    EXPECT_FALSE(fresh->has_value()) << "there was no version 5";
    auto all = co_await over();
    ASSERT_OK(all);
    EXPECT_EQ(all->size(), 3u);
    if (::testing::Test::HasFailure()) co_return;
    EXPECT_EQ(all->at(0).level, "platform");
    EXPECT_EQ(all->at(1).level, "project");
    EXPECT_TRUE(all->at(1).policy.is_null());
    EXPECT_EQ(all->at(2).level, "sandbox");
    auto history = co_await store.policies.versions("project", world->project, 10, soon());
    ASSERT_OK(history);
    EXPECT_EQ(history->size(), 2u);
    if (::testing::Test::HasFailure()) co_return;
    EXPECT_EQ(history->at(0).actor, "k2");
    EXPECT_EQ(history->at(1).policy.at("posture"), "allowlist");
  });
}

TEST(Policies, AChangeConcernsTheLiveSandboxesBelowIt) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto row = co_await store.sandboxes.create(new_sandbox(*world), soon());
    ASSERT_OK(row);
    for (auto const& [level, subject] :
         std::vector<std::pair<std::string, std::string>>{{"platform", ""},
                                                          {"organisation", world->organisation},
                                                          {"project", world->project},
                                                          {"template", row->template_public_id},
                                                          {"sandbox", row->public_id}}) {
      auto found = co_await store.policies.live_under(level, subject, soon());
      ASSERT_OK(found);
      EXPECT_EQ(found->size(), 1u) << level;
      auto stranger = co_await store.policies.live_under(level, "nobody", soon());
      ASSERT_OK(stranger);
      EXPECT_EQ(stranger->size(), level == "platform" ? 1u : 0u) << level;
    }
  });
}

TEST(Policies, TextsGoWithTheirSandboxes) {
  DatabaseOptions options;
  options.conninfo = Postgres::instance().make_database();
  async::run_test(
      [&]() -> asio::awaitable<void> {
        Store store(co_await asio::this_coro::executor, options);
        auto world = co_await make_world(store);
        EXPECT_OK(world);
        auto row = co_await store.sandboxes.create(new_sandbox(*world), soon());
        EXPECT_OK(row);
        for (auto const& [level, subject] :
             std::vector<std::pair<std::string, std::string>>{{"sandbox", row->public_id},
                                                              {"sandbox", "i-was-never-made"},
                                                              {"project", "p-any"}}) {
          auto put = co_await store.policies.put({level, subject, text("open"), "k1", {}}, soon());
          EXPECT_OK(put);
        }
        auto early = co_await store.policies.trim(soon());
        EXPECT_EQ(early.value_or(99), 0U) << "of a create that is under way, perhaps";
        testing::query(options.conninfo,
                       "update policies set updated_at = now() - interval '2 days' returning 1");
        auto late = co_await store.policies.trim(soon());
        EXPECT_EQ(late.value_or(99), 1U);
        auto const left = testing::query(options.conninfo, "select subject from policy_versions");
        EXPECT_EQ(left.size(), 2U);
        co_await store.database.close();
      },
      60s);
}

TEST(Credentials, AreFoundByNameNearestFirstAndRotatedOnce) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    NewCredential wanted;
    wanted.id = base::make_uuid7();
    wanted.project_id = world->project_id;
    wanted.name = "llm";
    wanted.sealed = {wanted.id, 1, {}, "key-1", "aa", "bb"};
    wanted.sealed.binding.hosts = {"api.example"};
    wanted.sealed.binding.header = "x-api-key";
    wanted.actor = "k1";
    auto made = co_await store.credentials.create(wanted, soon());
    ASSERT_OK(made);
    EXPECT_EQ(made->project_public_id, world->project);
    EXPECT_EQ(made->binding.header, "x-api-key");
    auto wide = wanted;
    wide.id = base::make_uuid7();
    wide.scope.of_organisation = true;
    wide.grants = CredentialGrants{{"*"}, {}};
    wide.sealed.ciphertext = "cc";
    auto second = co_await store.credentials.create(wide, soon());
    ASSERT_OK(second);
    auto twice = co_await store.credentials.create(wanted, soon());
    EXPECT_FALSE(twice.has_value());
    auto found =
        co_await store.credentials.named(world->project_id, "t1", {"llm", "other"}, soon());
    ASSERT_OK(found);
    EXPECT_EQ(found->size(), 2u);
    if (::testing::Test::HasFailure()) co_return;
    EXPECT_EQ(found->at(0).sealed.ciphertext, "bb") << "the project's own is nearer";
    EXPECT_EQ(found->at(1).row.grants->projects.at(0), "*");
    auto next = wanted;
    next.sealed.version = 2;
    next.sealed.ciphertext = "dd";
    auto rotated = co_await store.credentials.rotate(next, soon());
    ASSERT_OK(rotated);
    EXPECT_EQ((*rotated)->version, 2u);
    auto again = co_await store.credentials.rotate(next, soon());
    ASSERT_OK(again);
    EXPECT_FALSE(again->has_value()) << "version 2 is there already";
    auto revoked = co_await store.credentials.set_state(wanted.id, "revoked", soon());
    ASSERT_OK(revoked);
    EXPECT_EQ((*revoked)->state, "revoked");
    auto gone = co_await store.credentials.remove(wanted.id, soon());
    ASSERT_OK(gone);
    auto left = co_await store.credentials.list(world->project_id, soon());
    ASSERT_OK(left);
    EXPECT_EQ(left->size(), 1u);
  });
}

TEST(Credentials, OfATemplateAreNearerAndAnotherTemplatesAreNobodyElses) {
  with_store([](Store& store) -> asio::awaitable<void> {
    auto world = co_await make_world(store);
    ASSERT_OK(world);
    auto const make = [&](std::string name, std::string of_template) {
      NewCredential wanted;
      wanted.id = base::make_uuid7();
      wanted.project_id = world->project_id;
      wanted.name = std::move(name);
      wanted.scope.template_public_id = std::move(of_template);
      wanted.sealed = {wanted.id, 1, {}, "key-1", "aa", wanted.scope.template_public_id + "!"};
      wanted.sealed.binding.hosts = {"api.example"};
      wanted.sealed.binding.header = "x-api-key";
      return store.credentials.create(wanted, soon());
    };
    for (auto const* of_template : {"", "t1", "t2"}) {
      auto made = co_await make("llm", of_template);
      ASSERT_OK(made);
      EXPECT_EQ(made->template_public_id, of_template);
    }
    auto twice = co_await make("llm", "t1");
    EXPECT_FALSE(twice.has_value());
    auto only = co_await make("only-t2", "t2");
    ASSERT_OK(only);
    auto const ciphertexts = [&](std::string of_template) -> asio::awaitable<std::string> {
      auto found = co_await store.credentials.named(
          world->project_id, std::move(of_template), {"llm", "only-t2"}, soon());
      std::string out = found ? "" : found.error().message();
      if (found)
        for (auto const& one : *found)
          out += one.row.name + one.sealed.ciphertext + " ";
      co_return out;
    };
    EXPECT_EQ(co_await ciphertexts("t1"), "llmt1! llm! ");
    EXPECT_EQ(co_await ciphertexts("t2"), "llmt2! llm! only-t2t2! ");
    EXPECT_EQ(co_await ciphertexts("t3"), "llm! ");
    auto found = co_await store.credentials.find(world->project_id, {false, "t2"}, "llm", soon());
    ASSERT_OK(found);
    EXPECT_EQ((*found)->template_public_id, "t2");
    auto all = co_await store.credentials.list(world->project_id, soon());
    ASSERT_OK(all);
    EXPECT_EQ(all->size(), 4u);
  });
}

}  // namespace
}  // namespace store
