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
    {"id": "X3", "what": "three", "control": "web", "attack": {"do": "http", "to": "hostile.example", "send": "GET /unheard_of/x HTTP/1.1\r\n\r\n"}, "sees": ["refused"]},
    {"id": "X4", "what": "four", "control": "web", "attack": {"do": "http", "to": "a.example", "send": "GET /v1/reflect/hex HTTP/1.1\r\n\r\n"},
     "vary": {"port": [1, 2]}, "sees": ["status 200"], "unseen": true, "servers": {"with": ["k=1"], "without": ["EVIL"], "only_at": "1.2.3.4:80", "bytes_below": 40},
     "audit": {"reason": "r", "scrub_hits": "some"}, "tracked": 0}]})";

Catalogue loaded() {
  int next = 0;
  auto catalogue = load_catalogue(small, [&] { return fmt::format("tk{:010}", next++); });
  EXPECT_TRUE(catalogue);
  return std::move(*catalogue);
}

std::vector<Arrival> read(std::string const& token,
                          std::string const& where = "1.2.3.4:80",
                          std::string_view more = "") {
  return {{where, fmt::format("GET /{} {}", token, more)}, {"5.6.7.8:80", "something else"}};
}

std::size_t none_passed(std::string const&) {
  return 0;
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
  int reflecting = 0;
  for (auto const& one : catalogue->cases) {
    EXPECT_EQ(one.not_here, "") << one.id;
    reflecting += reflects(one) ? 1 : 0;
  }
  EXPECT_EQ(reflecting, 2);  // K01, K09
}

TEST(SelftestCatalogue, OneFieldMayHaveManyValues) {
  auto const catalogue = loaded();
  EXPECT_EQ(catalogue.policies.front().second.at("rules").as_array().size(), 2U);
  auto const& one = catalogue.cases[0];
  ASSERT_EQ(one.steps.size(), 3U);
  EXPECT_TRUE(one.steps[0].control);
  EXPECT_EQ(one.steps[1].step.at("send").as_string(), "Host: b\"c");
  EXPECT_EQ(one.steps[2].step.at("to").as_string(), "d");
  EXPECT_EQ(catalogue.cases[1].steps[1].step.at("ip").at("src").as_string(), "1");
  EXPECT_EQ(catalogue.cases[2].not_here, "no server here answers with \"unheard_of\"");
  auto const text = boost::json::parse(text_for_guest({&one}));
  EXPECT_EQ(text.at(0).at("steps").as_array().size(), 3U);
}

TEST(SelftestCatalogue, HoldsOnlyWhenAllSidesAgree) {
  auto catalogue = loaded();
  auto& one = catalogue.cases[0];
  auto const control = one.steps[0].token;
  Outside const fine{read(control), none_passed};
  EXPECT_EQ(judge(one, fine).verdict, "broken");  // nothing ran
  answer(one, {"status 200", "refused", "refused"});
  EXPECT_EQ(judge(one, fine).verdict, "held") << judge(one, fine).why;
  Outside leaky = fine;
  leaky.arrived.push_back({"1.2.3.4:80", "x" + one.steps[2].token});
  EXPECT_EQ(judge(one, leaky).verdict, "broken");
  EXPECT_EQ(judge(one, Outside{{}, none_passed}).why, "the control did not arrive");
  answer(one, {"status 200", "refused", "status 200"});
  EXPECT_EQ(judge(one, fine).verdict, "broken");
  EXPECT_EQ(judge(catalogue.cases[2], fine).verdict, "not tried");
}

TEST(SelftestCatalogue, AFrameMustNotPassTheGuard) {
  auto catalogue = loaded();
  auto& two = catalogue.cases[1];
  answer(two, {"sent", "sent"});
  auto const control = two.steps[0].token;
  auto const only_control = [&](std::string const& token) {
    return token == control ? std::size_t{1} : std::size_t{0};
  };
  auto const all = [](std::string const&) { return std::size_t{1}; };
  EXPECT_EQ(judge(two, Outside{{}, only_control}).verdict, "held");
  EXPECT_EQ(judge(two, Outside{{}, all}).verdict, "broken");
  EXPECT_EQ(judge(two, Outside{{}, none_passed}).verdict, "broken");
}

TEST(SelftestCatalogue, LooksAtWhatServersReadTheAuditAndTheKernel) {
  auto catalogue = loaded();
  auto& four = catalogue.cases[3];
  answer(four, {"status 200", "status 200", "status 200"});
  Outside fine{read(four.steps[0].token), none_passed};
  for (std::size_t i : {1U, 2U}) {
    auto const more = read(four.steps[i].token, "1.2.3.4:80", "k=1");
    fine.arrived.insert(fine.arrived.end(), more.begin(), more.end());
  }
  fine.audited = {{{"reason", "other"}}, {{"reason", "r"}, {"scrub_hits", 2}}};
  EXPECT_EQ(judge(four, fine).verdict, "held") << judge(four, fine).why;
  auto const broken_by = [&](auto const& change) {
    auto worse = fine;
    change(worse);
    return judge(four, worse).why;
  };
  auto const of_last = [&](Outside& worse) -> Arrival& { return worse.arrived[4]; };
  EXPECT_TRUE(broken_by([&](Outside& worse) {
                of_last(worse).text = "x" + four.steps[2].token;
              }).contains("\"k=1\" did not arrive"));
  EXPECT_TRUE(broken_by([&](Outside& worse) {
                of_last(worse).text += "evil";
              }).contains("\"EVIL\" arrived"));
  EXPECT_TRUE(broken_by([&](Outside& worse) {
                of_last(worse).text += std::string(40, 'a');
              }).contains("bytes arrived"));
  EXPECT_TRUE(broken_by([&](Outside& worse) {
                of_last(worse).where = "5.6.7.8:80";
              }).contains("5.6.7.8:80"));
  EXPECT_TRUE(broken_by([](Outside& worse) { worse.tracked = 3; }).contains("remembers 3"));
  EXPECT_TRUE(broken_by([](Outside& worse) { worse.audited.pop_back(); }).contains("audit"));
  EXPECT_TRUE(
      broken_by([](Outside& worse) { worse.audited.back()["scrub_hits"] = 0; }).contains("audit"));
  answer(four, {"status 200", "status 200", "status 200 seen"});
  EXPECT_TRUE(judge(four, fine).why.contains("must not see"));
  answer(four, {"status 200", "status 200", "status 200"});
  four.unseen = "not quarantined";
  EXPECT_EQ(judge(four, fine).why, "not quarantined");
}

TEST(SelftestCatalogue, WhatReflectsIsTriedOneByOne) {
  auto const catalogue = loaded();
  EXPECT_FALSE(reflects(catalogue.cases[0]));
  auto const& four = catalogue.cases[3];
  ASSERT_TRUE(reflects(four));
  auto const parts = in_parts(four);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].steps.size(), 2U);
  EXPECT_TRUE(parts[0].steps[0].control);
  EXPECT_EQ(parts[1].steps.size(), 1U);
  EXPECT_EQ(parts[1].steps[0].token, four.steps[2].token);
}

}  // namespace
}  // namespace cli::selftest
