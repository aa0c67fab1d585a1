#include "cli/selftest_catalogue.hpp"

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

namespace cli::selftest {
namespace {

constexpr std::string_view small = R"({
  "policies": {"base": {"posture": "allowlist", "rules": [
    {"id": "a", "hosts": ["a.example"]}, {"id": "k", "hosts": ["k.example"], "inject": [{"credential": "key"}]}]}},
  "controls": {"web": {"step": {"do": "http", "to": "a.example"}, "sees": ["status 200"], "arrives": "servers"}},
  "cases": [
    {"id": "X1", "what": "one", "control": "web", "attack": {"do": "http", "send": "Host: {to}"},
     "vary": {"to": ["b\"c", "d"]}, "sees": ["refused"]},
    {"id": "X2", "what": "two", "control": {"step": {"do": "frame"}, "sees": ["sent"], "arrives": "guard"},
     "attack": {"do": "frame"}, "vary": {"*": [{"ip": {"src": "1"}}]}, "sees": ["sent"]},
    {"id": "X3", "what": "three", "control": "web", "attack": {"do": "http", "to": "api.example"}, "sees": ["refused"]}]})";

Catalogue loaded() {
  int next = 0;
  auto catalogue = load_catalogue(small, [&] { return fmt::format("tk{:010}", next++); });
  EXPECT_TRUE(catalogue);
  return std::move(*catalogue);
}

void answer(Case& one, std::vector<std::string> const& saw) {
  std::string printed = "noise\n";
  for (std::size_t i = 0; i < saw.size(); ++i)
    printed += fmt::format("{{\"token\":\"{}\",\"saw\":\"{}\"}}\n", one.steps[i].token, saw[i]);
  take_results(printed, {&one});
}

TEST(SelftestCatalogue, TheRealOneIsCompiledIn) {
  auto const catalogue = load_catalogue(catalogue_text(), [] { return std::string("tk"); });
  ASSERT_TRUE(catalogue) << catalogue.error().message();
  EXPECT_GE(catalogue->cases.size(), 100U);
  EXPECT_EQ(catalogue->policies.front().first, "base");
  EXPECT_NE(attack_program().find("def frame("), std::string_view::npos);
  auto const here =
      std::ranges::count_if(catalogue->cases, [](Case const& one) { return one.not_here.empty(); });
  EXPECT_GE(here, 70);
}

TEST(SelftestCatalogue, OneFieldMayHaveManyValues) {
  auto const catalogue = loaded();
  EXPECT_EQ(catalogue.policies.front().second.at("rules").as_array().size(), 1U);
  auto const& one = catalogue.cases[0];
  ASSERT_EQ(one.steps.size(), 3U);
  EXPECT_TRUE(one.steps[0].control);
  EXPECT_EQ(one.steps[1].step.at("send").as_string(), "Host: b\"c");
  EXPECT_EQ(one.steps[2].step.at("to").as_string(), "d");
  EXPECT_EQ(catalogue.cases[1].steps[1].step.at("ip").at("src").as_string(), "1");
  EXPECT_NE(catalogue.cases[2].not_here, "");
  auto const text = boost::json::parse(text_for_guest({&one}));
  EXPECT_EQ(text.at(0).at("steps").as_array().size(), 3U);
}

TEST(SelftestCatalogue, HoldsOnlyWhenAllSidesAgree) {
  auto catalogue = loaded();
  auto& one = catalogue.cases[0];
  auto const control = one.steps[0].token;
  Outside fine{[&](std::string const& token) { return token == control; },
               [](std::string const&) { return 0U; }};
  EXPECT_EQ(judge(one, fine).verdict, "broken");  // nothing ran
  answer(one, {"status 200", "refused", "refused"});
  EXPECT_EQ(judge(one, fine).verdict, "held") << judge(one, fine).why;
  Outside leaky{[](std::string const&) { return true; }, fine.passed};
  EXPECT_EQ(judge(one, leaky).verdict, "broken");
  Outside dead{[](std::string const&) { return false; }, fine.passed};
  EXPECT_EQ(judge(one, dead).verdict, "broken");
  answer(one, {"status 200", "refused", "status 200"});
  EXPECT_EQ(judge(one, fine).verdict, "broken");
  EXPECT_EQ(judge(catalogue.cases[2], fine).verdict, "not tried");
}

TEST(SelftestCatalogue, AFrameMustNotPassTheGuard) {
  auto catalogue = loaded();
  auto& two = catalogue.cases[1];
  answer(two, {"sent", "sent"});
  auto const control = two.steps[0].token;
  auto const never = [](std::string const&) { return false; };
  EXPECT_EQ(
      judge(two, {never, [&](std::string const& token) { return token == control ? 1U : 0U; }})
          .verdict,
      "held");
  EXPECT_EQ(judge(two, {never, [](std::string const&) { return 1U; }}).verdict, "broken");
  EXPECT_EQ(judge(two, {never, [](std::string const&) { return 0U; }}).verdict, "broken");
}

}  // namespace
}  // namespace cli::selftest
