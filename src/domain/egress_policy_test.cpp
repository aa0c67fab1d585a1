#include "domain/egress_policy.hpp"

#include <gtest/gtest.h>

namespace domain {
namespace {

std::shared_ptr<EgressPolicy const> policy_of(
    std::vector<std::pair<std::string, std::string>> levels) {
  wire::EffectivePolicy text;
  text.generation = 7;
  for (auto& [name, json] : levels) {
    auto policy = wire::decode_text<wire::Policy>(json);
    EXPECT_TRUE(policy) << policy.error().message();
    text.levels.push_back({name, policy.value()});
  }
  auto compiled = EgressPolicy::compile(std::move(text));
  EXPECT_TRUE(compiled) << compiled.error().message();
  return compiled.value();
}

std::string compile_error(std::string const& rule) {
  auto policy =
      wire::decode_text<wire::Policy>(R"({"posture":"allowlist","rules":[)" + rule + "]}");
  if (!policy) return policy.error().message();
  auto compiled = EgressPolicy::compile({1, {{"sandbox", *policy}}});
  return compiled ? "" : compiled.error().message();
}

HostName host(std::string_view text) {
  return HostName::parse(text).value();
}

Reason request(EgressPolicy const& policy,
               std::string_view name,
               std::string method,
               std::string path,
               std::uint16_t port = 443) {
  return policy.judge_request({host(name), port, std::move(method), std::move(path)}).reason;
}

TEST(EgressPolicy, NoLevelMeansNoNetwork) {
  auto const policy = policy_of({});
  EXPECT_FALSE(policy->judge_connection(host("a.example"), 443).allowed);
  EXPECT_FALSE(policy->judge_address(0xcb007109, 443).allowed);
  EXPECT_FALSE(policy->knows_name(host("a.example")));
}

TEST(EgressPolicy, AnAllowlistAllowsWhatItNamesAndNothingElse) {
  auto const policy = policy_of({{"sandbox", R"({"posture":"allowlist","rules":[
      {"id":"packages","hosts":["packages.example","*.files.example"],"http":{"methods":["GET","HEAD"]}},
      {"id":"llm","hosts":["api.llm.example"],"http":{"methods":["POST"],"paths":["/v1/messages","/v1/files/*"],"deny_paths":["/v1/files/secret"]}},
      {"id":"db","hosts":["db.example"],"ports":[5432],"protocol":"tcp"}]})"}});
  EXPECT_TRUE(policy->judge_connection(host("packages.example"), 443).allowed);
  EXPECT_TRUE(policy->judge_connection(host("packages.example"), 80).allowed);
  EXPECT_FALSE(policy->judge_connection(host("packages.example"), 8443).allowed);
  EXPECT_TRUE(policy->judge_connection(host("a.b.files.example"), 443).allowed);
  EXPECT_FALSE(policy->judge_connection(host("files.example"), 443).allowed);
  EXPECT_EQ(policy->judge_connection(host("db.example"), 5432).flow, Flow::tcp);
  EXPECT_FALSE(policy->judge_connection(host("db.example"), 443).allowed);
  EXPECT_EQ(request(*policy, "packages.example", "GET", "/x/../y"), Reason::allowed);
  EXPECT_EQ(request(*policy, "packages.example", "POST", "/"), Reason::method_not_allowed);
  EXPECT_EQ(request(*policy, "api.llm.example", "POST", "/v1/messages"), Reason::allowed);
  EXPECT_EQ(request(*policy, "api.llm.example", "POST", "/v1/files/a"), Reason::allowed);
  EXPECT_EQ(request(*policy, "api.llm.example", "POST", "/v1/files/secret"),
            Reason::path_not_allowed);
  EXPECT_EQ(request(*policy, "api.llm.example", "POST", "/v1/messages/../admin"),
            Reason::path_ambiguous);
  EXPECT_EQ(request(*policy, "api.llm.example", "POST", "/v1/messages%2f"), Reason::path_ambiguous);
  EXPECT_EQ(request(*policy, "evil.example", "GET", "/"), Reason::no_rule);
  EXPECT_TRUE(policy->knows_name(host("db.example")));
  EXPECT_FALSE(policy->knows_name(host("evil.example")));
}

TEST(EgressPolicy, ALevelCanOnlyNarrow) {
  auto const policy = policy_of(
      {{"organisation",
        R"({"posture":"allowlist","rules":[{"id":"o","hosts":["*.corp.example"],"http":{"methods":["GET"]}}]})"},
       {"sandbox", R"({"posture":"open"})"}});
  EXPECT_EQ(request(*policy, "a.corp.example", "GET", "/"), Reason::allowed);
  EXPECT_EQ(request(*policy, "a.corp.example", "POST", "/"), Reason::method_not_allowed);
  EXPECT_EQ(request(*policy, "a.other.example", "GET", "/"), Reason::no_rule);
  auto const narrowed = policy_of(
      {{"project", R"({"posture":"allowlist","rules":[{"id":"p","hosts":["*.corp.example"]}]})"},
       {"sandbox",
        R"({"posture":"allowlist","rules":[{"id":"s","hosts":["a.corp.example","b.other.example"]}]})"}});
  EXPECT_TRUE(narrowed->judge_connection(host("a.corp.example"), 443).allowed);
  auto const refused = narrowed->judge_connection(host("b.other.example"), 443);
  EXPECT_FALSE(refused.allowed);
  EXPECT_EQ(refused.level, "project");
  EXPECT_FALSE(narrowed->judge_connection(host("c.corp.example"), 443).allowed);
  EXPECT_FALSE(narrowed->knows_name(host("b.other.example")));
}

TEST(EgressPolicy, ADenyOfAnyLevelBeatsEveryAllow) {
  auto const policy = policy_of(
      {{"platform",
        R"({"posture":"open","rules":[{"id":"never","hosts":["*.tunnel.example"],"action":"deny"}]})"},
       {"sandbox",
        R"({"posture":"allowlist","rules":[{"id":"s","hosts":["x.tunnel.example","ok.example"]}]})"}});
  auto const refused = policy->judge_connection(host("x.tunnel.example"), 443);
  EXPECT_EQ(refused.reason, Reason::denied_by_rule);
  EXPECT_EQ(refused.rule, "never");
  EXPECT_TRUE(policy->judge_connection(host("ok.example"), 443).allowed);
}

TEST(EgressPolicy, ADenyOnRequestsLeavesTheRestOfTheHost) {
  auto const policy =
      policy_of({{"sandbox", R"({"posture":"allowlist","rules":[{"id":"a","hosts":["a.example"]},
      {"id":"mint","hosts":["a.example"],"action":"deny","http":{"methods":["POST"],"paths":["/tokens/**"]}}]})"}});
  EXPECT_EQ(request(*policy, "a.example", "POST", "/other"), Reason::allowed);
  EXPECT_EQ(request(*policy, "a.example", "POST", "/tokens/new"), Reason::denied_by_rule);
  EXPECT_EQ(request(*policy, "a.example", "POST", "/x/../tokens/new"), Reason::denied_by_rule);
  EXPECT_TRUE(policy->judge_connection(host("a.example"), 443).allowed);
}

TEST(EgressPolicy, TheMostSpecificRuleGivesTheCredential) {
  auto const policy = policy_of({{"sandbox", R"({"posture":"allowlist","rules":[
      {"id":"wide","hosts":["*.corp.example"]},
      {"id":"key","hosts":["api.corp.example"],"http":{"paths":["/v1/**"]},"inject":[{"credential":"k"}]},
      {"id":"deep","hosts":["api.corp.example"],"http":{"paths":["/v1/admin/**"]},"inject":[{"credential":"adm"}]}]})"}});
  EXPECT_EQ(policy->judge_request({host("api.corp.example"), 443, "GET", "/v1/a"}).rule, "key");
  EXPECT_EQ(policy->judge_request({host("api.corp.example"), 443, "GET", "/v1/admin/a"}).rule,
            "deep");
  // The wildcard does not give back what the exact rules leave out.
  EXPECT_EQ(policy->judge_request({host("api.corp.example"), 443, "GET", "/v2"}).reason,
            Reason::path_not_allowed);
  EXPECT_EQ(policy->judge_request({host("b.corp.example"), 443, "GET", "/v2"}).rule, "wide");
}

TEST(EgressPolicy, EqualRulesWithDifferentCredentialsAreRefused) {
  auto const policy = policy_of({{"sandbox", R"({"posture":"allowlist","rules":[
      {"id":"one","hosts":["a.example"],"inject":[{"credential":"k1"}]},
      {"id":"two","hosts":["a.example"],"inject":[{"credential":"k2"}]}]})"}});
  EXPECT_EQ(request(*policy, "a.example", "GET", "/"), Reason::conflicting_rules);
}

TEST(EgressPolicy, PassthroughNeverWinsOverInspection) {
  auto const policy = policy_of({{"sandbox", R"({"posture":"allowlist","rules":[
      {"id":"raw","hosts":["a.example"],"tls":"passthrough"},{"id":"seen","hosts":["a.example"]}]})"}});
  EXPECT_EQ(policy->judge_connection(host("a.example"), 443).flow, Flow::http);
}

TEST(EgressPolicy, WebSocketsNeedARuleThatSaysSo) {
  auto const policy =
      policy_of({{"sandbox", R"({"posture":"allowlist","rules":[{"id":"a","hosts":["a.example"]},
      {"id":"w","hosts":["w.example"],"http":{"websocket":true}}]})"}});
  EXPECT_FALSE(policy->judge_request({host("a.example"), 443, "GET", "/", true}).allowed);
  EXPECT_TRUE(policy->judge_request({host("w.example"), 443, "GET", "/", true}).allowed);
}

TEST(EgressPolicy, LiteralAddressesFollowTheCidrs) {
  auto const policy = policy_of(
      {{"sandbox",
        R"({"posture":"allowlist","cidr":{"allow":["203.0.113.0/28"],"deny":["203.0.113.0/24"]}})"}});
  EXPECT_TRUE(policy->judge_address(0xcb007101, 22).allowed);
  EXPECT_FALSE(policy->judge_address(0xcb0071ff, 22).allowed);
  EXPECT_FALSE(policy->judge_address(0x08080808, 53).allowed);
  auto const whole = policy_of(
      {{"sandbox", R"({"posture":"open","cidr":{"deny":["255.255.255.255/32","0.0.0.0/1"]}})"}});
  EXPECT_FALSE(whole->judge_address(0xffffffff, 1).allowed);
  EXPECT_FALSE(whole->judge_address(0x7fffffff, 1).allowed);
  EXPECT_TRUE(whole->judge_address(0x80000000, 1).allowed);
}

TEST(EgressPolicy, RefusesWhatCannotBeEnforcedAsWritten) {
  EXPECT_NE(compile_error(R"({"id":"x","hosts":[]})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["a.*.example"]})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["*.com"]})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["127.1"]})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["*.a.example"],"inject":[{"credential":"k"}]})"),
            "");
  EXPECT_NE(
      compile_error(
          R"({"id":"x","hosts":["a.example"],"tls":"passthrough","inject":[{"credential":"k"}]})"),
      "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["a.example"],"protocol":"tcp"})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["a.example"],"http":{"methods":["TRACE"]}})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["a.example"],"http":{"paths":["v1"]}})"), "");
  EXPECT_NE(compile_error(R"({"id":"x","hosts":["a.example"],"nonsense":1})"), "");
  EXPECT_EQ(compile_error(R"({"id":"x","hosts":["A.Example."]})"), "");
  // Each record of a decision repeats them.
  auto const named = [](std::size_t id, std::size_t credential) {
    return compile_error(
        fmt::format(R"({{"id":"{}","hosts":["a.example"],"inject":[{{"credential":"{}"}}]}})",
                    std::string(id, 'x'),
                    std::string(credential, 'k')));
  };
  EXPECT_EQ(named(512, 512), "");
  EXPECT_NE(named(513, 512), "");
  EXPECT_NE(named(512, 513), "");
}

TEST(PathGlob, StarsStayInTheirSegmentAndDoubleStarsCross) {
  EXPECT_TRUE(path_matches("/v1/*", "/v1/a"));
  EXPECT_FALSE(path_matches("/v1/*", "/v1/a/b"));
  EXPECT_TRUE(path_matches("/v1/**", "/v1/a/b"));
  EXPECT_TRUE(path_matches("/**/x", "/a/b/x"));
  EXPECT_TRUE(path_matches("/a*c/**/z", "/abc/d/e/z"));
  EXPECT_FALSE(path_matches("/v1", "/v1/"));
  EXPECT_FALSE(path_matches("/v1", "/v10"));
  EXPECT_TRUE(path_matches("/*", "/"));
  std::string const hostile(1000, 'a');
  EXPECT_FALSE(path_matches("/*a*a*a*a*a*a*a*b", "/" + hostile));
  EXPECT_FALSE(path_matches("/**a**a**a**a**b", "/" + hostile));
}

/// What a glob means, in as many steps as it takes.
bool means(std::string_view glob, std::string_view path) {
  if (glob.empty()) return path.empty();
  if (glob[0] != '*')
    return !path.empty() && glob[0] == path[0] && means(glob.substr(1), path.substr(1));
  auto const rest = std::min(glob.find_first_not_of('*'), glob.size());
  for (std::size_t i = 0; i <= path.size(); ++i) {
    if (means(glob.substr(rest), path.substr(i))) return true;
    if (i < path.size() && path[i] == '/' && rest == 1) return false;
  }
  return false;
}

TEST(PathGlob, MatchesWhatItMeansAndTakesNoLongTimeWhateverItGets) {
  std::vector<std::string> words{""};
  for (std::size_t i = 0; words[i].size() < 5; ++i)
    for (char const c : {'/', 'a', '*'})
      words.push_back(words[i] + c);
  std::string const tail(70, 'x');  // makes a glob one of the long ones
  for (auto const& glob : words) {
    for (auto const& path : words) {
      if (path.contains('*') || path.size() >= 5) continue;
      ASSERT_EQ(path_matches(glob, path), means(glob, path)) << glob << " " << path;
      ASSERT_EQ(path_matches(glob + tail, path + tail), means(glob + tail, path + tail))
          << glob << " " << path;
    }
  }
  std::string const long_tail =
      "/b***" + std::string(100, 'x') + "*" + std::string(100, 'x') + "**c/*d";
  EXPECT_TRUE(path_matches(long_tail, "/b/" + std::string(333, 'x') + "/c/dd"));
  EXPECT_FALSE(path_matches(long_tail, "/b/" + std::string(199, 'x') + "/c/dd"));
  // Minutes, when a star within a segment begins again for each beginning of `**`.
  std::string const path = "/" + std::string(16'000, 'a');
  EXPECT_FALSE(path_matches("/***b*" + std::string(900, 'a') + "b", path));
  EXPECT_FALSE(path_matches("/**a*" + std::string(900, 'a') + "b", path));
  EXPECT_FALSE(path_matches("/**" + std::string(2'000, 'a'), path)) << "longer than any is";
}

TEST(PathGlob, AmbiguousPathsAreTold) {
  for (std::string_view bad :
       {"/a/../b",    "/a/./b",  "/..",   "/a//b", "/a%2fb",    "/a%2Fb",   "/a%5Cb",
        "/%2e%2e/",   "/a%252f", "/a\\b", "/a;x",  "/a%0d",     "/a%",      "/a%zz",
        "a",          "",        "/a b",  "/\x7f", "/%73ecret", "/%7euser", "/%c0%ae%c0%ae/x",
        "/%ed%a0%80", "/%ff",    "/%c3",  "/%c3x"}) {
    EXPECT_TRUE(is_ambiguous_path(bad)) << bad;
  }
  for (std::string_view fine :
       {"/", "/a", "/a/b.c", "/a/..b", "/a%20b", "/v1/x:y@z", "/%c3%a4", "/%F0%9F%98%80", "/a%2Bb"})
    EXPECT_FALSE(is_ambiguous_path(fine)) << fine;
}

TEST(EgressPolicy, JudgesAPathInBothOfItsReadings) {
  auto const policy = policy_of({{"sandbox", R"({"posture":"allowlist","rules":[
      {"id":"a","hosts":["a.example"],"http":{"paths":["/pub/**","/x+y/**"],"deny_paths":["/pub/@keys/**"]}}]})"}});
  EXPECT_EQ(request(*policy, "a.example", "GET", "/pub/a%2Bb"), Reason::allowed);
  EXPECT_EQ(request(*policy, "a.example", "GET", "/pub/%40keys/x"), Reason::path_not_allowed);
  EXPECT_EQ(request(*policy, "a.example", "GET", "/x%2By/z"), Reason::path_not_allowed);
}

TEST(PolicyLint, SaysWhatIsProbablyNotMeant) {
  auto const policy = wire::decode_text<wire::Policy>(R"({"posture":"allowlist","rules":[
      {"id":"w","hosts":["*.github.io"]},{"id":"p","hosts":["a.example"],"tls":"passthrough"},
      {"id":"k","hosts":["b.example"],"inject":[{"credential":"k"}]},
      {"id":"d","hosts":["*.c.example"],"action":"deny"},{"id":"s","hosts":["x.c.example"]}]})");
  auto const text = fmt::format("{}", fmt::join(lint(policy.value()), "\n"));
  for (std::string_view part : {"rule w", "rule p", "rule k", "rule s: never allows"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(PolicyLint, SaysThatNetworksAreTcpAlone) {
  auto const networks = wire::decode_text<wire::Policy>(
      R"({"posture":"allowlist","cidr":{"allow":["203.0.113.0/28"]}})");
  auto const said = fmt::format("{}", fmt::join(lint(networks.value()), "\n"));
  EXPECT_NE(said.find("UDP stays closed"), std::string::npos) << said;
  EXPECT_TRUE(lint(wire::Policy{}).empty());
  // Whoever asks for it by name is refused.
  auto const asked = wire::decode_text<wire::Policy>(
      R"({"posture":"allowlist","rules":[{"hosts":["a.example"],"protocol":"udp"}]})");
  ASSERT_FALSE(asked);
  EXPECT_NE(asked.error().message().find("protocol"), std::string::npos);
  EXPECT_NE(asked.error().message().find("http, tcp"), std::string::npos)
      << asked.error().message();
}

TEST(EgressPolicy, LimitsAreThoseOfWhateverAdmitsAndNothingIsAcceptedThatNobodyHolds) {
  auto const policy = policy_of(
      {{"platform", R"({"posture":"open","budgets":{"host_requests_per_s":9,"up_bytes":5}})"},
       {"project",
        R"({"posture":"allowlist","budgets":{"host_requests_per_s":4},
            "rules":[{"id":"p","hosts":["*"],"limits":{"down_bytes":1}}]})"},
       {"sandbox",
        R"({"posture":"allowlist","rules":[{"id":"free","hosts":["a.example"]},
            {"id":"s","hosts":["b.example"],"limits":{"requests_per_s":1}}]})"}});
  EXPECT_EQ(policy->budgets().host_requests_per_s, 4U);
  EXPECT_EQ(policy->budgets().up_bytes, 5U);
  auto const limiting = [&](Decision const& decision) {
    std::string out;
    for (auto const* rule : decision.limited)
      if (rule) out += rule->id;
    return out;
  };
  EXPECT_EQ(limiting(policy->judge_request({host("a.example"), 443, "GET", "/"})), "p");
  EXPECT_EQ(limiting(policy->judge_request({host("b.example"), 443, "GET", "/"})), "ps");
  EXPECT_EQ(limiting(policy->judge_connection(host("b.example"), 443)), "ps");
  EXPECT_EQ(limiting(policy->judge_request({host("c.example"), 443, "GET", "/"})), "");
  EXPECT_NE(compile_error(R"({"hosts":["a.example"],"ports":[7],"protocol":"tcp",
                              "limits":{"requests_per_s":1}})"),
            "");
  EXPECT_EQ(compile_error(R"({"hosts":["a.example"],"ports":[7],"protocol":"tcp",
                              "limits":{"up_bytes":1}})"),
            "");
  EXPECT_NE(compile_error(R"({"hosts":["a.example"],"action":"deny","limits":{"up_bytes":1}})"),
            "");
  EXPECT_NE(compile_error(R"({"hosts":["a.example"],"limits":{"a_day":1}})"), "");
}

TEST(Lint, TellsOfBudgetsThatAdmitNothingOrHaveNoEffect) {
  auto const said = [](std::string const& text) {
    return lint(wire::decode_text<wire::Policy>(text).value()).size();
  };
  EXPECT_EQ(said(R"({"posture":"allowlist","budgets":{"host_requests_per_s":5}})"), 0U);
  EXPECT_EQ(said(R"({"posture":"allowlist","budgets":{"host_requests_per_s":501}})"), 1U);
  EXPECT_EQ(said(R"({"posture":"allowlist","budgets":{"host_requests_per_s":0}})"), 1U);
  EXPECT_EQ(said(R"({"posture":"allowlist",
                     "rules":[{"hosts":["a.example"],"limits":{"requests_per_s":0}}]})"),
            1U);
}

TEST(PolicyDiff, NamesTheRules) {
  auto const before = wire::decode_text<wire::Policy>(
      R"({"posture":"allowlist","rules":[{"id":"a","hosts":["a.example"]},{"id":"b","hosts":["b.example"]}]})");
  auto const after = wire::decode_text<wire::Policy>(
      R"({"posture":"open","rules":[{"id":"a","hosts":["a2.example"]},{"id":"c","hosts":["c.example"]}]})");
  EXPECT_EQ(diff(before.value(), after.value()),
            (std::vector<std::string>{
                "~ rule a", "- rule b", "+ rule c", "~ posture: \"allowlist\" -> \"open\""}));
}

TEST(Lint, TakesNoLongTimeWhateverItGets) {
  wire::Policy policy;
  policy.posture = wire::Posture::allowlist;
  for (int i = 0; i < 3'000; ++i) {
    auto& rule = policy.rules.emplace_back();
    rule.id = std::to_string(i);
    rule.action = i % 2 == 0 ? wire::RuleAction::deny : wire::RuleAction::allow;
    for (int host = 0; host < 4; ++host)
      rule.hosts.push_back(fmt::format("h{}-{}.example", i, host));
  }
  auto const said = lint(policy);
  EXPECT_EQ(said.size(), 1U);
}

}  // namespace
}  // namespace domain
