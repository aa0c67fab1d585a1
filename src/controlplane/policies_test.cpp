// Policies and credentials over HTTP: stored, explained, brought into force, and nothing of a value
// anywhere.
#include "controlplane/native_policies.hpp"
#include "controlplane/testing.hpp"

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto two_rules =
    R"({"posture":"allowlist","rules":[{"id":"pkg","hosts":["packages.example"]},)"
    R"({"id":"llm","hosts":["api.llm.example"],"http":{"methods":["POST"],"paths":["/v1/**"]}}]})";

/// The test's API again, on an installation that has an uplink.
asio::awaitable<void> with_uplink(Bench& bench) {
  co_await bench.stop_api();
  bench.config.uplink = "/run/netns/none-of-ours";
  bench.start_api();
  co_await bench.api->nodes().refresh();
}

TEST(Policy, ExplainNamesTheRulesThatLimitARequest) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox(
        R"({"policy":{"posture":"allowlist","rules":[{"id":"few","hosts":["a.example"],"limits":{"requests_per_s":2}},
                                                     {"id":"free","hosts":["b.example"]}]}})");
    auto const at = "/v1/sandboxes/" + id + "/policy/explain?url=https://";
    auto const few = co_await bench.ask("GET", at + "a.example/");
    EXPECT_EQ(few.status, 200) << few.text;
    EXPECT_EQ(few["limits"].at(0).at("rule"), "few");
    EXPECT_EQ(few["limits"].at(0).at("limits").at("requests_per_s"), 2);
    auto const free = co_await bench.ask("GET", at + "b.example/");
    EXPECT_TRUE(free["limits"].as_array().empty()) << free.text;
  });
}

TEST(Policy, OfASandboxIsStoredExplainedAndKeptInVersions) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox(fmt::format(R"({{"policy":{}}})", two_rules));
    EXPECT_EQ(bench.worker.starts.back().policy->generation, 1u);
    auto const at = "/v1/sandboxes/" + id + "/policy";
    auto const shown = co_await bench.ask("GET", at);
    EXPECT_EQ(shown.status, 200) << shown.text;
    EXPECT_EQ(shown["generation"], 1);
    EXPECT_EQ(shown["levels"].at(0).at("policy").at("rules").at(1).at("id"), "llm");
    EXPECT_THAT(shown.str("note"), HasSubstr("no uplink"));
    struct Case {
      char const* query;
      bool allowed;
      char const* reason;
      char const* rule;
    };
    for (auto const& [query, allowed, reason, rule] :
         {Case{"url=https://packages.example/x", true, "allowed", "pkg"},
          Case{"url=https://api.llm.example/v1/messages&method=POST", true, "allowed", "llm"},
          Case{"url=https://api.llm.example/v1/messages", false, "method_not_allowed", "llm"},
          Case{"url=https://api.llm.example/v2&method=POST", false, "path_not_allowed", "llm"},
          Case{"url=https://api.llm.example:8443/v1/x&method=POST", false, "no_rule", ""},
          Case{"url=http://203.0.113.9/", false, "no_rule", ""}}) {
      auto const said = co_await bench.ask("GET", fmt::format("{}/explain?{}", at, query));
      EXPECT_EQ(said.status, 200) << said.text;
      EXPECT_EQ(said["allowed"], allowed) << query;
      EXPECT_EQ(said.str("reason"), reason) << query;
      EXPECT_EQ(said.str("rule"), rule) << query;
    }
    for (auto const* bad :
         {"", "url=packages.example", "url=https://a%20b/", "url=https://x/&method=get"}) {
      auto const said = co_await bench.ask("GET", fmt::format("{}/explain?{}", at, bad));
      EXPECT_EQ(said.status, 400) << bad << said.text;
    }
    auto const changed = co_await bench.ask(
        "PUT",
        at + "?if_version=1",
        R"({"posture":"allowlist","rules":[{"id":"pkg","hosts":["*.github.io"]}]})");
    EXPECT_EQ(changed.status, 200) << changed.text;
    EXPECT_EQ(changed["version"], 2);
    EXPECT_EQ(changed["diff"].as_array().size(), 2u) << changed.text;
    EXPECT_THAT(changed.text, HasSubstr("anybody can have a name below"));
    EXPECT_EQ(changed["sandboxes"].at(0).at("in_force"), false);
    auto const late = co_await bench.ask("PUT", at + "?if_version=1", "{}");
    EXPECT_EQ(late.status, 409) << late.text;
    auto const bad = co_await bench.ask("PUT", at, R"({"rules":[{"hosts":["10.0.0.1"]}]})");
    EXPECT_EQ(bad.status, 400);
    EXPECT_THAT(bad.message(), HasSubstr("10.0.0.1"));
    auto const gone = co_await bench.ask("DELETE", at);
    EXPECT_EQ(gone["version"], 3) << gone.text;
    auto const history = co_await bench.ask("GET", "/v1/policies/sandbox/" + id + "/versions");
    EXPECT_EQ(history["versions"].as_array().size(), 3u) << history.text;
    auto const elsewhere = co_await bench.ask("PUT", "/v1/policies/sandbox/" + id, "{}");
    EXPECT_EQ(elsewhere.status, 404) << elsewhere.text;
    auto const none = co_await bench.ask("GET", at);
    EXPECT_TRUE(none["levels"].as_array().empty());
    EXPECT_EQ(none["generation"], 3);
  });
}

TEST(Policy, LevelsNarrowAndChangesReachSandboxesThatRun) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    auto const project = "/v1/policies/project/" + bench.world.project;
    auto const first = co_await bench.ask("PUT", project, two_rules);
    EXPECT_EQ(first.status, 200) << first.text;
    EXPECT_TRUE(first["sandboxes"].as_array().empty());
    auto const id = co_await bench.sandbox();
    EXPECT_EQ(bench.worker.starts.back().policy->levels.at(0).level, "project")
        << "a sandbox without a policy of its own has its project's";
    auto const platform = co_await bench.ask(
        "PUT",
        "/v1/policies/platform/-",
        R"({"posture":"open","rules":[{"id":"never","hosts":["packages.example"],"action":"deny"}]})");
    EXPECT_EQ(platform.status, 200) << platform.text;
    EXPECT_EQ(platform["sandboxes"].at(0).at("in_force"), true) << platform.text;
    EXPECT_EQ(platform["sandboxes"].at(0).at("cut"), 1);
    EXPECT_EQ(bench.worker.policies.back().first, id);
    EXPECT_EQ(bench.worker.policies.back().second.policy.generation, 2u);
    auto const said = co_await bench.ask(
        "GET", "/v1/sandboxes/" + id + "/policy/explain?url=https://packages.example/");
    EXPECT_EQ(said.str("level"), "platform") << said.text;
    EXPECT_EQ(said.str("rule"), "never");
    // What only limits gives nothing.
    auto const gone = co_await bench.ask("DELETE", project);
    EXPECT_EQ(gone.status, 200) << gone.text;
    EXPECT_EQ(bench.worker.policies.back().second.policy.levels.back().policy.posture,
              wire::Posture::blocked);
    bench.worker.policy_refusal =
        base::Error(base::Code::unavailable, "the sandbox's network is off: not acknowledged");
    auto const seen = co_await bench.ask("PUT", project, two_rules);
    EXPECT_EQ(seen.status, 200) << "of a level, failures are told one by one";
    EXPECT_EQ(seen["sandboxes"].at(0).at("in_force"), false);
    EXPECT_THAT(seen.text, HasSubstr("the sandbox's network is off"));
    auto const own = co_await bench.ask("PUT", "/v1/sandboxes/" + id + "/policy", two_rules);
    EXPECT_EQ(own.status, 503) << own.text;
    EXPECT_THAT(own.message(), HasSubstr("stored as version 1, but it is not in force"));
    auto const history = co_await bench.ask("GET", project + "/versions");
    EXPECT_EQ(history["versions"].as_array().size(), 3u) << history.text;
    auto const admin = co_await bench.make_key_of(bench.world.project, store::Role::admin);
    auto const denied = co_await bench.ask("PUT", "/v1/policies/platform/-", "{}", admin);
    EXPECT_EQ(denied.status, 403);
    auto const own_project = co_await bench.ask("PUT", project, "{}", admin);
    EXPECT_EQ(own_project.status, 200);
    for (auto const* nowhere :
         {"/v1/policies/planet/x", "/v1/policies/platform/x", "/v1/policies/project/p0"}) {
      auto const answer = co_await bench.ask("PUT", nowhere, "{}");
      EXPECT_EQ(answer.status, 404) << nowhere;
    }
  });
}

TEST(Policy, ATextThatCannotBeInForceDoesNotKeepALimitOut) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    auto const id = co_await bench.sandbox(fmt::format(R"({{"policy":{}}})", two_rules));
    // Too many rules together, say, or of a newer version of the program.
    store::testing::query(bench.database.conninfo,
                          "update policies set policy = '{\"odd\":1}' where level = 'sandbox' "
                          "returning subject");
    auto const limit = co_await bench.ask(
        "PUT",
        "/v1/policies/platform/-",
        R"({"posture":"open","rules":[{"hosts":["packages.example"],"action":"deny"}]})");
    EXPECT_EQ(limit.status, 200) << limit.text;
    EXPECT_EQ(limit["sandboxes"].at(0).at("in_force"), false) << limit.text;
    EXPECT_THAT(limit.text, HasSubstr("cannot be in force, so it has no network: the stored"));
    EXPECT_EQ(bench.worker.policies.size(), 1u);
    if (bench.worker.policies.empty()) co_return;
    auto const& told = bench.worker.policies.back().second.policy;
    EXPECT_EQ(told.generation, 2u);
    EXPECT_EQ(told.levels.size(), 1u);
    EXPECT_EQ(told.levels.back().policy.posture, wire::Posture::blocked);
    auto const mended = co_await bench.ask("PUT", "/v1/sandboxes/" + id + "/policy", two_rules);
    EXPECT_EQ(mended.status, 200) << mended.text;
    EXPECT_EQ(mended["sandboxes"].at(0).at("in_force"), true) << mended.text;
    EXPECT_EQ(bench.worker.policies.back().second.policy.levels.size(), 2u);
  });
}

TEST(Policy, AMachineThatStandsStillGetsItAtOnceAndASuspendedOneWhenItComesBack) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    auto const id = co_await bench.sandbox();
    auto const at = "/v1/sandboxes/" + id;
    auto const paused = co_await bench.ask("POST", at + "/pause?wait=10");
    EXPECT_EQ(paused.status, 200) << paused.text;
    auto const changed = co_await bench.ask("PUT", at + "/policy", two_rules);
    EXPECT_EQ(changed["sandboxes"].at(0).at("in_force"), true) << changed.text;
    EXPECT_EQ(bench.worker.policies.size(), 1u);
    auto const suspended = co_await bench.ask("POST", at + "/suspend?wait=10");
    EXPECT_EQ(suspended.status, 200) << suspended.text;
    auto const later = co_await bench.ask("PUT", at + "/policy", "{}");
    EXPECT_EQ(later.status, 200) << later.text;
    EXPECT_EQ(bench.worker.policies.size(), 1u) << "there is no gateway to tell";
  });
}

TEST(Policy, WhatAnApiLeftUndoneIsDoneByTheNextOne) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    auto const id = co_await bench.sandbox();
    // Stored, and then the process was gone.
    auto const stored = co_await bench.api->store().policies.put(
        {"sandbox", id, taken(wire::parse_json(two_rules)), "k1", {}}, soon());
    EXPECT_TRUE(stored);
    EXPECT_TRUE(bench.worker.policies.empty());
    co_await with_uplink(bench);
    for (int i = 0; i < 100 && bench.worker.policies.empty(); ++i)
      co_await async::sleep_for(50ms);
    EXPECT_EQ(bench.worker.policies.size(), 1u);
    if (!bench.worker.policies.empty())
      EXPECT_EQ(bench.worker.policies.back().second.policy.generation, 1u);
  });
}

TEST(Policy, DecisionsAreStreamedAndSuggested) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    bench.worker.decisions =
        R"({"time":"t","sandbox":"x","kind":"dns","decision":"denied","reason":"name_not_allowed","host":"a.example","port":53})"
        "\n"
        R"({"kind":"request","decision":"denied","reason":"path_not_allowed","host":"b.example","port":8443,"method":"POST","path":"/v1/x"})"
        "\n"
        R"({"kind":"request","decision":"denied","reason":"denied_by_rule","host":"never.example"})"
        "\n\n"
        R"({"kind":"dns","decision":"denied","reason":"no_rule","host":"???"})"
        "\n"
        R"({"kind":"connection","decision":"allowed","host":"c.example"})"
        "\n";
    auto const said = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/policy/suggestions");
    EXPECT_EQ(said.status, 200) << said.text;
    EXPECT_EQ(said["rules"].as_array().size(), 2u) << said.text;
    EXPECT_EQ(said["rules"].at(0).at("hosts").at(0), "a.example");
    EXPECT_TRUE(said["rules"].at(0).at("ports").as_array().empty())
        << "asked by DNS, wanted by HTTP";
    EXPECT_EQ(said["rules"].at(1).at("http").at("paths").at(0), "/v1/x");
    EXPECT_EQ(said["rules"].at(1).at("ports").at(0), 8443);
    auto const allowed =
        co_await bench.ask("PUT",
                           "/v1/sandboxes/" + id + "/policy",
                           R"({"posture":"allowlist","rules":[{"hosts":["a.example"]}]})");
    EXPECT_EQ(allowed.status, 200);
    auto const less = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/policy/suggestions");
    EXPECT_EQ(less["rules"].as_array().size(), 1u)
        << "what was allowed since is not suggested again";
    auto const stream = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/decisions?follow=0");
    EXPECT_EQ(count_of(stream.text, "event: decision"), 5u) << stream.text;
    auto const page = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/audit?after=2&limit=10");
    EXPECT_EQ(page["records"].at(0).at("host"), "a.example") << page.text;
    auto const no_page = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/audit?after=x");
    EXPECT_EQ(no_page.status, 400);
    auto const odd = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/decisions?follow=2");
    EXPECT_EQ(odd.status, 400);
  });
}

TEST(Credential, IsSealedLeasedRotatedRevokedAndNeverShown) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    fs::create_directories(bench.config.run_dir + "/broker");
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    std::string const canary = "canary-7f3a-value";
    auto const put = co_await bench.ask(
        "PUT",
        "/v1/credentials/llm-key",
        R"({"value":")" + canary +
            R"(","profile":"anthropic","binding":{"hosts":["api.llm.example"]}})");
    EXPECT_EQ(put.status, 200) << put.text;
    EXPECT_EQ(put["binding"].at("header"), "x-api-key");
    EXPECT_EQ(put["binding"].at("hosts").at(0), "api.llm.example");
    auto const rule =
        R"({"posture":"allowlist","rules":[{"id":"llm","hosts":["api.llm.example"],"inject":[{"credential":"llm-key"}]}]})";
    auto const id = co_await bench.sandbox(fmt::format(R"({{"policy":{}}})", rule));
    EXPECT_EQ(bench.worker.starts.back().credentials.size(), 1u);
    EXPECT_EQ(bench.worker.starts.back().credentials.at(0).name, "llm-key");
    auto const rotated =
        co_await bench.ask("PUT", "/v1/credentials/llm-key/value", R"({"value":"canary-second"})");
    EXPECT_EQ(rotated["version"], 2) << rotated.text;
    EXPECT_EQ(rotated["sandboxes"].at(0).at("in_force"), true) << rotated.text;
    EXPECT_EQ(bench.worker.policies.back().second.credentials->at(0).sealed.version, 2u);
    auto const granted = co_await bench.ask(
        "PUT", "/v1/credentials/llm-key/grants", R"({"sandboxes":["i00000000000000000000"]})");
    EXPECT_EQ(granted.status, 200) << granted.text;
    EXPECT_TRUE(bench.worker.policies.back().second.credentials->empty());
    auto const refused =
        co_await bench.ask("POST", "/v1/sandboxes", fmt::format(R"({{"policy":{}}})", rule));
    EXPECT_EQ(refused.status, 400) << refused.text;
    EXPECT_THAT(refused.message(), HasSubstr("granted to other sandboxes"));
    auto const wide =
        co_await bench.ask("PUT", "/v1/credentials/llm-key/grants", R"({"sandboxes":[]})");
    EXPECT_EQ(bench.worker.policies.back().second.credentials->size(), 1u) << wide.text;
    auto const revoked = co_await bench.ask("POST", "/v1/credentials/llm-key/revoke");
    EXPECT_EQ(revoked.str("state"), "revoked") << revoked.text;
    EXPECT_TRUE(bench.worker.policies.back().second.credentials->empty());
    auto const shown = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/policy");
    EXPECT_THAT(shown.text, HasSubstr("it is revoked"));
    auto const list = co_await bench.ask("GET", "/v1/credentials");
    EXPECT_EQ(list["credentials"].as_array().size(), 1u);
    EXPECT_EQ(broker.seals.size(), 2u);
    for (auto const* table : {"credentials",
                              "credential_versions",
                              "policies",
                              "events",

                              "idempotency_keys"}) {
      auto const rows = store::testing::query(
          bench.database.conninfo, fmt::format("select row_to_json(t)::text from {} t", table));
      for (auto const& row : rows)
        EXPECT_THAT(row, Not(HasSubstr("canary"))) << table;
    }
    for (auto const* answer : {&put, &rotated, &list, &revoked})
      EXPECT_THAT(answer->text, Not(HasSubstr("canary")));
    auto const removed = co_await bench.ask("DELETE", "/v1/credentials/llm-key");
    EXPECT_EQ(removed.str("state"), "removed") << removed.text;
    co_await broker.close();
  });
}

TEST(Credential, OfATemplateIsNearerThanTheProjectsAndNotForOthers) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    fs::create_directories(bench.config.run_dir + "/broker");
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    auto const body =
        R"({"value":"v","binding":{"hosts":["api.llm.example"],"header":"x-api-key"}})";
    auto const put = co_await bench.ask("PUT", "/v1/credentials/llm-key?template=base", body);
    EXPECT_EQ(put.status, 200) << put.text;
    EXPECT_EQ(put.str("scope"), "template") << put.text;
    auto const of_template = put.str("template");
    EXPECT_TRUE(of_template.starts_with('t')) << put.text;
    auto const wide = co_await bench.ask("PUT", "/v1/credentials/llm-key", body);
    EXPECT_EQ(wide.str("scope"), "project") << wide.text;
    auto const rule =
        R"({"posture":"allowlist","rules":[{"id":"llm","hosts":["api.llm.example"],"inject":[{"credential":"llm-key"}]}]})";
    auto const id = co_await bench.sandbox(fmt::format(R"({{"policy":{}}})", rule));
    EXPECT_EQ(bench.worker.starts.back().credentials.size(), 1u);
    auto const nearest = bench.worker.starts.back().credentials.at(0).sealed.credential;
    EXPECT_EQ(broker.seals.at(0).credential, nearest);
    auto const revoked = co_await bench.ask("POST", "/v1/credentials/llm-key/revoke?template=base");
    EXPECT_EQ(revoked["sandboxes"].at(0).at("in_force"), true) << revoked.text;
    EXPECT_TRUE(bench.worker.policies.back().second.credentials->empty())
        << "the nearest is meant, also where it may not be used";
    auto const removed = co_await bench.ask(
        "DELETE", "/v1/credentials/llm-key?scope=template&template=" + of_template);
    EXPECT_EQ(removed.status, 200) << removed.text;
    auto const& last = bench.worker.policies.back().second;
    EXPECT_EQ(last.credentials->at(0).sealed.credential, broker.seals.at(1).credential)
        << "the project's is the nearest now";
    auto const shown = co_await bench.ask("GET", "/v1/credentials");
    EXPECT_EQ(shown["credentials"].as_array().size(), 1u) << shown.text;
    for (auto const* query :
         {"?template=nobodys", "?scope=template", "?scope=project&template=base"}) {
      auto const odd =
          co_await bench.ask("PUT", fmt::format("/v1/credentials/llm-key{}", query), body);
      EXPECT_GE(odd.status, 400) << query;
    }
    co_await broker.close();
  });
}

TEST(Credential, ASandboxHasNoMoreOfThemThanItMayHave) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    fs::create_directories(bench.config.run_dir + "/broker");
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    auto const put =
        co_await bench.ask("PUT",
                           "/v1/credentials/key-000",
                           R"({"value":"v","binding":{"hosts":["a.example"],"form":"bearer"}})");
    EXPECT_EQ(put.status, 200) << put.text;
    store::testing::query(
        bench.database.conninfo,
        "with c as (insert into credentials (id, organisation_id, project_id, name, binding, "
        "version, created_by) select gen_random_uuid(), organisation_id, project_id, 'key-' || "
        "lpad(n::text, 3, '0'), binding, version, '' from credentials, generate_series(1, 256) n "
        "returning *) insert into credential_versions (credential_id, version, binding, key_id, "
        "wrapped_key, ciphertext, actor) select c.id, c.version, c.binding, v.key_id, "
        "v.wrapped_key, v.ciphertext, '' from c, credential_versions v returning version::text");
    std::string rules;
    for (int i = 0; i < 257; ++i)
      rules += fmt::format(
          R"({}{{"hosts":["a.example"],"http":{{"paths":["/{}"]}},"inject":[{{"credential":"key-{:03}"}}]}})",
          i ? "," : "",
          i,
          i);
    auto const project = "/v1/policies/project/" + bench.world.project;
    auto const set = co_await bench.ask("PUT", project, fmt::format(R"({{"rules":[{}]}})", rules));
    EXPECT_EQ(set.status, 200) << set.text;
    auto const id = co_await bench.sandbox();
    EXPECT_EQ(bench.worker.starts.back().credentials.size(), 256u);
    auto const shown = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/policy");
    EXPECT_THAT(shown.text, HasSubstr("\\\"key-256\\\" cannot be used: the policies over this"));
    co_await broker.close();
  });
}

TEST(Policy, WhatAllSandboxesOfAProjectMayDoTogetherGoesToEachAsALease) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    co_await with_uplink(bench);
    auto const id = co_await bench.sandbox(R"({"policy":{"posture":"open"}})");
    EXPECT_TRUE(bench.worker.starts.back().credentials.empty());
    auto const project = bench.world.project;
    auto const set = co_await bench.ask(
        "PUT",
        "/v1/policies/project/" + project,
        R"({"posture":"open","budgets":{"together":{"requests_per_s":5,"requests_per_day":1000}}})");
    EXPECT_EQ(set.status, 200) << set.text;
    EXPECT_EQ(set["sandboxes"].at(0).at("in_force"), true) << set.text;
    auto const& told = bench.worker.policies.back().second;
    EXPECT_EQ(told.credentials->size(), 1u);
    auto const lease = told.credentials->at(0);
    EXPECT_EQ(lease.name, "budget:project");
    EXPECT_EQ(lease.sealed.credential, "budget:project:" + project);
    EXPECT_EQ(lease.budget->requests_per_s, 5u);
    auto const shown = co_await bench.ask("GET", "/v1/sandboxes/" + id + "/policy");
    EXPECT_TRUE(shown["credentials"].as_array().empty()) << "it is none";
    EXPECT_THAT(shown.text, HasSubstr("\"requests_per_day\":1000"));
    auto const explained = co_await bench.ask(
        "GET", "/v1/sandboxes/" + id + "/policy/explain?url=https%3A%2F%2Fa.example%2F");
    EXPECT_EQ(explained["limits"].at(0).at("together"), "project") << explained.text;
    auto const odd = co_await bench.ask(
        "PUT", "/v1/policies/project/" + project, R"({"budgets":{"together":{"concurrent":0}}})");
    EXPECT_EQ(odd.status, 400);
    EXPECT_THAT(odd.message(), HasSubstr("budgets.together: concurrent"));
    auto const gone = co_await bench.ask("DELETE", "/v1/policies/project/" + project);
    EXPECT_EQ(gone.status, 200) << gone.text;
    EXPECT_TRUE(bench.worker.policies.back().second.credentials->empty());
  });
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             base::system_clock().wall_now().time_since_epoch())
      .count();
}

/// As workers report them, until the API has looked.
asio::awaitable<void> report_reflected(Bench& bench, std::vector<wire::Reflected> told) {
  bench.worker.report.reflected = std::move(told);
  co_await bench.api->nodes().refresh();
  co_await bench.api->quarantine().look();
}

asio::awaitable<std::string> state_of_gh(Bench& bench) {
  auto const shown = co_await bench.ask("GET", "/v1/credentials/gh");
  co_return shown.str("state");
}

constexpr char with_gh[] =
    R"({"policy":{"posture":"allowlist","rules":[{"id":"gh","hosts":["api.github.com"],"inject":[{"credential":"gh"}]}]}})";
constexpr char put_gh[] = R"({"value":"ghp_secret","profile":"github"})";

TEST(Credential, WhatAServerSentBackIsQuarantinedEverywhere) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    fs::create_directories(bench.config.run_dir + "/broker");
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    auto const put = co_await bench.ask("PUT", "/v1/credentials/gh", put_gh);
    EXPECT_THAT(put.text, HasSubstr(R"("path":"/app/installations/*/access_tokens")"));
    auto const id = co_await bench.sandbox(with_gh);
    auto const other = co_await bench.sandbox(with_gh);
    auto const key = bench.worker.starts.back().credentials.at(0).sealed.credential;
    // Of a version that is no more, of somebody else's id, of none.
    co_await report_reflected(bench,
                              {{id, key, 7, "gh", "api.github.com", now_us()},
                               {id, base::make_uuid7(), 1, "gh", "api.github.com", now_us()},
                               {id, "none", 1, "gh", "api.github.com", now_us()}});
    EXPECT_EQ(co_await state_of_gh(bench), "active");
    EXPECT_EQ(bench.worker.taken.size(), 2u) << "what is no id is not even answered";
    // Others may use it that were not there then; and the worker's clock is behind.
    auto const granted =
        co_await bench.ask("PUT", "/v1/credentials/gh/grants", R"({"projects":[]})");
    EXPECT_EQ(granted.status, 200) << granted.text;
    auto const before = now_us() - 600'000'000;
    co_await report_reflected(bench, {{id, key, 1, "gh", "api.github.com", before}});
    EXPECT_EQ(co_await state_of_gh(bench), "quarantined");
    EXPECT_EQ(bench.worker.taken.size(), 3u);
    EXPECT_EQ(bench.worker.taken.back().at_us, before);
    co_await report_reflected(bench, {{id, key, 1, "gh", "api.github.com", now_us()}});
    EXPECT_EQ(co_await state_of_gh(bench), "quarantined");
    for (int i = 0; i < 100 && bench.worker.policies.size() < 2; ++i)
      co_await async::sleep_for(20ms);
    std::set<std::string> without;
    for (auto const& [sandbox, policy] : bench.worker.policies)
      if (policy.credentials->empty()) without.insert(sandbox);
    EXPECT_EQ(without, (std::set<std::string>{id, other}));
    auto const events = store::testing::query(
        bench.database.conninfo,
        "select data::text from events where type = 'credential.quarantined'");
    EXPECT_EQ(events.size(), 1u);
    if (!events.empty()) EXPECT_THAT(events.front(), HasSubstr("api.github.com"));
    auto const refused = co_await bench.ask("POST", "/v1/sandboxes", with_gh);
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.message(), HasSubstr("it is quarantined"));
    co_await broker.close();
  });
}

TEST(Credential, AQuarantinedOneIsLetOutByAnAdminOrByANewValue) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    fs::create_directories(bench.config.run_dir + "/broker");
    co_await with_uplink(bench);
    FakeBroker broker(co_await asio::this_coro::executor, bench.config.broker_socket());
    co_await bench.ask("PUT", "/v1/credentials/gh", put_gh);
    auto const early = co_await bench.ask("POST", "/v1/credentials/gh/release");
    EXPECT_EQ(early.status, 409) << early.text;
    auto const id = co_await bench.sandbox(with_gh);
    auto const key = bench.worker.starts.back().credentials.at(0).sealed.credential;
    std::vector<wire::Reflected> told{{id, key, 1, "gh", "api.github.com", now_us()}};
    co_await report_reflected(bench, told);
    EXPECT_EQ(co_await state_of_gh(bench), "quarantined");
    auto const member = co_await bench.make_key_of(bench.world.project, store::Role::member);
    auto const not_may = co_await bench.ask("POST", "/v1/credentials/gh/release", "", member);
    EXPECT_EQ(not_may.status, 403);
    auto const released = co_await bench.ask("POST", "/v1/credentials/gh/release");
    EXPECT_EQ(released.str("state"), "active") << released.text;
    EXPECT_EQ(released["version"], 1);
    EXPECT_EQ(bench.worker.policies.back().second.credentials->size(), 1u);
    // The worker goes on telling of it for minutes, also to an API that was not there before.
    co_await with_uplink(bench);
    co_await report_reflected(bench, told);
    EXPECT_EQ(co_await state_of_gh(bench), "active");
    told.push_back({id, key, 1, "gh", "api.github.com", now_us()});
    co_await report_reflected(bench, told);
    EXPECT_EQ(co_await state_of_gh(bench), "quarantined") << "it came back once more";
    auto const rotated =
        co_await bench.ask("PUT", "/v1/credentials/gh/value", R"({"value":"ghp_second"})");
    EXPECT_EQ(rotated.str("state"), "active") << "a new value was nobody's";
    co_await broker.close();
  });
}

TEST(Credential, BadOnesAreRefusedAndWithoutABrokerNothingIsStored) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    for (auto const* bad : {"{}",
                            R"({"value":"x","binding":{"hots":[]}})",
                            R"({"value":7})",
                            R"({"value":"x","profile":"nobody"})"}) {
      auto const answer = co_await bench.ask("PUT", "/v1/credentials/other", bad);
      EXPECT_EQ(answer.status, 400) << bad << answer.text;
    }
    auto const member = co_await bench.make_key_of(bench.world.project, store::Role::member);
    auto const not_may =
        co_await bench.ask("PUT", "/v1/credentials/other", R"({"value":"x"})", member);
    EXPECT_EQ(not_may.status, 403);
    auto const put =
        co_await bench.ask("PUT",
                           "/v1/credentials/k",
                           R"({"value":"canary","binding":{"hosts":["a.example"],"header":"x"}})");
    EXPECT_EQ(put.status, 503) << put.text;
    EXPECT_THAT(put.message(), HasSubstr("nothing was stored"));
    auto const list = co_await bench.ask("GET", "/v1/credentials");
    EXPECT_TRUE(list["credentials"].as_array().empty());
  });
}

}  // namespace
}  // namespace controlplane
