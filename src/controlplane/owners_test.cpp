// Keys, roles, tenancy, organisations, projects, templates, audit.
#include "controlplane/admin_key.hpp"
#include "controlplane/testing.hpp"

#include <set>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

TEST(Keys, RevocationAndExpiryActAtOnce) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const made = co_await bench.ask("POST", "/v1/keys", R"({"name":"short","role":"member"})");
    auto const secret = made.str("key");
    auto const before = co_await bench.ask("GET", "/v1/sandboxes", "", secret);
    EXPECT_EQ(before.status, 200);
    auto const revoked = co_await bench.ask("DELETE", "/v1/keys/" + made.str("id"));
    EXPECT_EQ(revoked.status, 200);
    EXPECT_TRUE(revoked.body.as_object().contains("revoked_at"));
    auto const after = co_await bench.ask("GET", "/v1/sandboxes", "", secret);
    EXPECT_EQ(after.status, 401);
    auto const brief =
        co_await bench.ask("POST", "/v1/keys", R"({"name":"brief","expires_in_s":1})");
    auto const alive = co_await bench.ask("GET", "/v1/me", "", brief.str("key"));
    EXPECT_EQ(alive.status, 200);
    co_await async::sleep_for(1100ms);
    auto const expired = co_await bench.ask("GET", "/v1/me", "", brief.str("key"));
    EXPECT_EQ(expired.status, 401);
    auto const listed = co_await bench.ask("GET", "/v1/keys");
    EXPECT_THAT(listed.text, ::testing::Not(HasSubstr(secret)));
    auto const stored = store::testing::query(bench.database.conninfo,
                                              "select row_to_json(k)::text from api_keys k");
    for (auto const& row : stored)
      EXPECT_THAT(row, ::testing::Not(HasSubstr(secret)));
  });
}

TEST(Keys, AProjectsAdminDoesNotRevokeOneOfTheInstallation) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const admin = co_await bench.make_key_of(bench.world.project, store::Role::admin);
    auto const made = co_await bench.ask(
        "POST", "/v1/keys", R"({"name":"operator","role":"admin","installation":true})");
    EXPECT_EQ(made.status, 201) << made.text;
    auto const at = "/v1/keys/" + made.str("id");
    auto const refused = co_await bench.ask("DELETE", at, "", admin);
    EXPECT_EQ(refused.status, 404) << refused.text;
    auto const still = co_await bench.ask("GET", "/v1/organisations", "", made.str("key"));
    EXPECT_EQ(still.status, 200) << still.text;
    auto const revoked = co_await bench.ask("DELETE", at);
    EXPECT_EQ(revoked.status, 200) << revoked.text;
  });
}

TEST(Keys, RolesDecide) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const reader = co_await bench.make_key_of(bench.world.project, store::Role::reader);
    auto const member = co_await bench.make_key_of(bench.world.project, store::Role::member);
    auto const admin = co_await bench.make_key_of(bench.world.project, store::Role::admin);
    auto const id = co_await bench.sandbox();
    auto const seen = co_await bench.ask("GET", "/v1/sandboxes/" + id, "", reader);
    EXPECT_EQ(seen.status, 200);
    EXPECT_FALSE(seen.body.as_object().contains("access_token")) << "a reader may not enter";
    for (auto const* target :
         {"/v1/sandboxes", "/v1/sandboxes/{}/commands", "/v1/keys", "/v1/projects"}) {
      auto const denied =
          co_await bench.ask("POST", fmt::format(fmt::runtime(target), id), "{}", reader);
      EXPECT_EQ(denied.status, 403) << target;
      EXPECT_EQ(denied.code(), "denied");
    }
    auto const kill = co_await bench.ask("DELETE", "/v1/sandboxes/" + id, "", reader);
    EXPECT_EQ(kill.status, 403);
    auto const key = co_await bench.ask("POST", "/v1/keys", R"({"name":"x"})", member);
    EXPECT_EQ(key.status, 403);
    auto const up =
        co_await bench.ask("POST", "/v1/keys", R"({"name":"x","installation":true})", admin);
    EXPECT_EQ(up.status, 403);
    auto const project = co_await bench.ask("POST", "/v1/projects", R"({"name":"x"})", admin);
    EXPECT_EQ(project.status, 403);
    auto const nodes = co_await bench.ask("GET", "/v1/nodes", "", admin);
    EXPECT_EQ(nodes.status, 403);
    auto const mine = co_await bench.ask("GET", "/v1/nodes");
    EXPECT_EQ(mine["nodes"].at(0).at("name"), "node-1");
    auto const node = co_await bench.ask("GET", "/v1/nodes/node-1");
    EXPECT_EQ(node.str("state"), "ready");
  });
}

// Generated from the route table, so that a new route is covered by itself.
TEST(Tenancy, AStrangerSeesNothingOnAnyRoute) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto const operations = co_await bench.ask("GET", "/v1/operations");
    auto const keys = co_await bench.ask("GET", "/v1/keys");
    auto const theirs = co_await bench.ask("POST", "/v1/projects", R"({"name":"stranger"})");
    EXPECT_EQ(theirs.status, 201) << theirs.text;
    auto const stranger = co_await bench.make_key_of(theirs.str("id"), store::Role::admin);
    std::map<std::string, std::string> const ids{
        {"sandbox", id},
        {"command", "77"},
        {"operation", std::string(operations["operations"].at(0).at("id").as_string())},
        {"key", std::string(keys["keys"].at(0).at("id").as_string())},
        {"project", bench.world.project},
        {"organisation", "o00000000000000000000"},
        {"node", "node-1"},
        {"snapshot", "not-mine"},
        {"level", "project"},
        {"subject", bench.world.project},
        {"credential", "theirs"},
        {"template", "not-mine"}};
    auto const before = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    int tried = 0;
    for (auto const& route : bench.api->router().routes()) {
      if (route.dialect != Dialect::native || route.pattern.find('{') == std::string::npos)
        continue;
      // A name that is put is one's own: the stranger's, of a project of its own.
      if (route.operation_id == "putCredential") continue;
      auto target = route.pattern;
      for (auto const& [name, value] : ids) {
        auto const at = target.find("{" + name + "}");
        if (at != std::string::npos) target.replace(at, name.size() + 2, value);
      }
      EXPECT_EQ(target.find('{'), std::string::npos) << "no id for " << target;
      auto const answer =
          co_await bench.ask(route.method,
                             target,
                             route.method == "GET" || route.method == "DELETE" ? "" : "{}",
                             stranger);
      EXPECT_EQ(answer.status, 404) << route.method << ' ' << target << ": " << answer.text;
      EXPECT_FALSE(answer.message().empty());
      ++tried;
    }
    EXPECT_GE(tried, 25);
    auto const after = co_await bench.ask("GET", "/v1/sandboxes/" + id);
    EXPECT_EQ(before.text, after.text);
    EXPECT_TRUE(bench.guest.calls.empty());
    auto const list = co_await bench.ask("GET", "/v1/sandboxes", "", stranger);
    EXPECT_TRUE(list["sandboxes"].as_array().empty());
    auto const projects = co_await bench.ask("GET", "/v1/projects", "", stranger);
    EXPECT_EQ(projects["projects"].as_array().size(), 1u);
    auto const foreign =
        co_await bench.ask("POST",
                           "/v1/keys",
                           fmt::format(R"({{"name":"x","project":"{}"}})", bench.world.project),
                           stranger);
    EXPECT_EQ(foreign.status, 404);
  });
}

TEST(Owners, OrganisationsProjectsTemplatesAudit) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const organisation = co_await bench.ask("POST", "/v1/organisations", R"({"name":"acme"})");
    EXPECT_EQ(organisation.status, 201) << organisation.text;
    auto const twice = co_await bench.ask("POST", "/v1/organisations", R"({"name":"acme"})");
    EXPECT_EQ(twice.status, 409);
    auto const got = co_await bench.ask("GET", "/v1/organisations/" + organisation.str("id"));
    EXPECT_EQ(got.str("name"), "acme");
    auto const project = co_await bench.ask(
        "POST",
        "/v1/projects",
        fmt::format(R"({{"name":"p","organisation":"{}","quota":{{"vcpus":4}}}})",
                    organisation.str("id")));
    EXPECT_EQ(project.status, 201) << project.text;
    EXPECT_EQ(project["quota"].as_object().at("vcpus"), 4);
    auto const all = co_await bench.ask("GET", "/v1/organisations");
    EXPECT_EQ(all["organisations"].as_array().size(), 2u);
    auto const templates = co_await bench.ask("GET", "/v1/templates");
    EXPECT_EQ(templates["templates"].at(0).at("name"), "base");
    auto const detail = co_await bench.ask("GET", "/v1/templates/base");
    EXPECT_EQ(detail["tags"].at(0).at("tag"), "default");
    for (auto const* name : {"", " x", "a/b", "x\\u0000"}) {
      auto const bad =
          co_await bench.ask("POST", "/v1/projects", fmt::format(R"({{"name":"{}"}})", name));
      EXPECT_EQ(bad.status, 400) << name;
    }
    co_await async::sleep_for(1200ms);
    auto const audit = co_await bench.ask("GET", "/v1/audit?limit=3");
    EXPECT_EQ(audit["uses"].as_array().size(), 3u) << audit.text;
    EXPECT_TRUE(audit.body.as_object().contains("next_cursor"));
    auto const rest =
        co_await bench.ask("GET", "/v1/audit?limit=100&cursor=" + audit.str("next_cursor"));
    EXPECT_FALSE(rest["uses"].as_array().empty());
    for (auto const& use : rest["uses"].as_array())
      EXPECT_NE(use.at("method"), "GET");
    auto const keys = co_await bench.ask("GET", "/v1/keys");
    EXPECT_TRUE(keys["keys"].at(0).as_object().contains("last_used_at"));
  });
}

TEST(AdminKey, IsMadeOnceAndReplaced) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    store::DatabaseOptions fresh;
    fresh.conninfo = Postgres::instance().make_database();
    store::Store store(co_await asio::this_coro::executor, fresh);
    auto first = co_await make_admin_key(&store, Replace::no, soon());
    EXPECT_TRUE(first && is_key(*first));
    auto second = co_await make_admin_key(&store, Replace::no, soon());
    EXPECT_TRUE(second && second->empty());
    auto third = co_await make_admin_key(&store, Replace::yes, soon());
    EXPECT_TRUE(third && is_key(*third));
    auto old = co_await store.keys.authenticate(sha256_hex(*first), soon());
    EXPECT_TRUE(old && !*old);
    auto now = co_await store.keys.authenticate(sha256_hex(*third), soon());
    EXPECT_TRUE(now && (*now)->installation);
    co_await store.database.close();
    EXPECT_FALSE(bench.key.empty());
  });
}

}  // namespace
}  // namespace controlplane
