#include "cli/policy_verbs.hpp"

#include "wire/codec.hpp"
#include "wire/policy.hpp"

#include <gtest/gtest.h>

namespace cli {
namespace {

TEST(Allow, SaysHostPortMethodsAndPath) {
  struct Case {
    std::string_view text;
    std::string_view json;
  };

  for (
      auto const& [text, wanted] :
      {Case{"packages.example", R"({"hosts":["packages.example"]})"},
       Case{"db.example:8443", R"({"hosts":["db.example"],"ports":[8443]})"},
       Case{
           "api.llm.example:POST:/v1/messages",
           R"({"hosts":["api.llm.example"],"http":{"paths":["/v1/messages"],"methods":["POST"]}})"},
       Case{
           "*.a.example:8080:GET,HEAD:/x:y/**",
           R"({"hosts":["*.a.example"],"http":{"paths":["/x:y/**"],"methods":["GET","HEAD"]},"ports":[8080]})"},
       Case{"a.example:/p", R"({"hosts":["a.example"],"http":{"paths":["/p"]}})"}}) {
    auto const rule = parse_allow(text);
    ASSERT_TRUE(rule) << text;
    auto expected = wire::parse_json(wanted);
    EXPECT_EQ(json::value(*rule), *expected) << text << ": " << wire::to_text(*rule);
    EXPECT_TRUE(wire::decode<wire::PolicyRule>(*rule)) << text;
    EXPECT_EQ(allow_text(*rule), text);
  }
  for (std::string_view const bad : {"",
                                     ":POST",
                                     "https://a.example",
                                     "a.example:post",
                                     "a.example:0",
                                     "a.example:70000",
                                     "a.example:GET,",
                                     "a b.example",
                                     "a.example:"})
    EXPECT_FALSE(parse_allow(bad)) << bad;
}

TEST(Allow, BecomesAPolicyThatAllowsNothingElse) {
  auto const none = policy_of({}, "");
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
  auto const two = policy_of({"a.example", "b.example:GET"}, "");
  ASSERT_TRUE(two && *two);
  auto const policy = wire::decode<wire::Policy>(**two);
  ASSERT_TRUE(policy) << policy.error().message();
  EXPECT_EQ(policy->posture, wire::Posture::allowlist);
  EXPECT_EQ(policy->rules.size(), 2U);
  EXPECT_NE(policy->rules[0].id, policy->rules[1].id);
  auto const network = policy_of({"203.0.113.0/28", "a.example", "203.0.113.99"}, "");
  ASSERT_TRUE(network && *network);
  auto const with_network = wire::decode<wire::Policy>(**network);
  ASSERT_TRUE(with_network) << with_network.error().message();
  EXPECT_EQ(with_network->cidr.allow, (std::vector<std::string>{"203.0.113.0/28", "203.0.113.99"}));
  EXPECT_EQ(with_network->rules.size(), 1U);
  EXPECT_FALSE(policy_of({"a.example"}, "also-a-file"));
  EXPECT_FALSE(policy_of({}, "/nonexistent/policy.json"));
}

}  // namespace
}  // namespace cli
