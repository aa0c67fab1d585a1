#include "domain/credential_profiles.hpp"

#include "domain/egress_policy.hpp"

#include <set>

#include <gtest/gtest.h>

namespace domain {
namespace {

TEST(CredentialProfiles, TheFileIsSound) {
  std::set<std::string> names;
  for (auto const& profile : credential_profiles()) {
    EXPECT_TRUE(names.insert(profile.name).second) << profile.name << " is there twice";
    EXPECT_FALSE(profile.what.empty());
    EXPECT_FALSE(profile.binding.deny) << "minting says it";
    EXPECT_EQ(profile.binding.hosts, profile.rule.hosts) << profile.name;
    EXPECT_EQ(profile.rule.guest_auth, wire::GuestAuth::strip) << profile.name;
    EXPECT_FALSE(profile.minting.empty()) << profile.name;
    EXPECT_TRUE(is_carrier_header(profile.binding.header))
        << profile.name << ": what it injects is no carrier";
    for (auto const& host : profile.binding.hosts)
      EXPECT_EQ(HostName::parse(host).value().str(), host);
    auto rule = profile.rule;
    rule.inject = {{"key"}};
    wire::Policy policy;
    policy.posture = wire::Posture::allowlist;
    policy.rules = {rule};
    EXPECT_TRUE(EgressPolicy::compile({1, {{"sandbox", policy}}})) << profile.name;
    for (auto const& one : profile.minting) {
      EXPECT_TRUE(one.path.starts_with('/')) << profile.name << one.path;
      for (auto const& path : profile.binding.paths)
        EXPECT_FALSE(path_matches(one.path, path)) << profile.name << " is bound to " << path;
    }
    for (auto const* list : {&profile.carriers.headers, &profile.carriers.parameters})
      for (auto const& carrier : *list)
        EXPECT_TRUE(std::ranges::none_of(carrier, [](char c) { return c >= 'A' && c <= 'Z'; }))
            << carrier << ": in lower case";
  }
  for (std::string_view wanted : {"github", "github-git", "anthropic", "openai"})
    EXPECT_TRUE(find_profile(wanted)) << wanted;
  EXPECT_FALSE(find_profile("no-such"));
}

TEST(CredentialProfiles, WhereCredentialsStandAndWhereTheyAreMade) {
  for (std::string_view header :
       {"authorization", "x-api-key", "cookie", "openai-project", "x-github-token"})
    EXPECT_TRUE(is_carrier_header(header)) << header;
  EXPECT_FALSE(is_carrier_header("accept"));
  EXPECT_TRUE(is_carrier_parameter("access_token"));
  EXPECT_FALSE(is_carrier_parameter("page"));

  struct Case {
    std::string_view host, method, path;
    bool minting;
  };

  for (auto const& [host, method, path, minting] :
       {Case{"api.github.com", "POST", "/app/installations/7/access_tokens", true},
        Case{"api.github.com", "POST", "/repos/a/b/hooks", true},
        Case{"api.github.com", "PATCH", "/repos/a/b/hooks/1", true},
        Case{"api.github.com", "GET", "/repos/a/b/hooks", false},
        Case{"api.github.com", "PUT", "/repos/a/b/actions/secrets/X", true},
        Case{"api.github.com", "POST", "/repos/a/b/issues", false},
        Case{"github.com", "POST", "/login/oauth/access_token", true},
        Case{"api.openai.com", "POST", "/v1/realtime/client_secrets", true},
        Case{"api.openai.com", "GET", "/v1/organization/admin_api_keys", true},
        Case{"api.openai.com", "POST", "/v1/responses", false},
        Case{"api.anthropic.com", "GET", "/v1/Organizations/x/", true},
        Case{"api.anthropic.com", "POST", "/v1/messages", false},
        Case{"other.example", "POST", "/user/keys", false}})
    EXPECT_EQ(mints_credentials(host, method, path), minting) << host << path;
  EXPECT_TRUE(minting_for({"other.example"}, "").empty());
  EXPECT_EQ(minting_for({"api.github.com"}, "").size(), find_profile("github")->minting.size());
  EXPECT_EQ(minting_for({"ghe.example"}, "github").size(), find_profile("github")->minting.size());
}

TEST(CredentialProfiles, LintSaysWhereARuleAllowsWhatIsRefusedAnyway) {
  wire::Policy policy;
  policy.posture = wire::Posture::allowlist;
  auto rule = find_profile("github")->rule;
  rule.id = "gh";
  rule.inject = {{"key"}};
  policy.rules = {rule};
  auto const has = [&](std::string_view what) {
    auto const said = lint(policy);
    return std::ranges::any_of(
        said, [&](std::string const& one) { return one.find(what) != std::string::npos; });
  };
  EXPECT_TRUE(has("POST /app/installations/*/access_tokens"));
  EXPECT_TRUE(has("refused whatever the rule says"));
  policy.rules[0].http.emplace().paths = {"/repos/**"};
  EXPECT_TRUE(has("POST /repos/*/*/keys"));
  policy.rules[0].http->paths = {"/repos/*/*/issues"};
  EXPECT_FALSE(has("refused whatever"));
  policy.rules[0].http.reset();
  policy.rules[0].inject.clear();
  EXPECT_FALSE(has("refused whatever")) << "the guest's own account is its own affair";
}

}  // namespace
}  // namespace domain
