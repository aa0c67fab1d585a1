#include "controlplane/e2b_schema.hpp"

#include "base/id.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace controlplane::e2b {
namespace {

using namespace std::chrono_literals;
using domain::SandboxState;
using ::testing::UnorderedElementsAre;

std::vector<std::string> keys_of(json::value const& value) {
  std::vector<std::string> keys;
  for (auto const& pair : value.as_object())
    keys.emplace_back(pair.key());
  return keys;
}

base::WallTime at(std::string_view text) {
  return parse_rfc3339(text).value();
}

store::SandboxRow row() {
  store::SandboxRow one;
  one.public_id = "iabcdefghij0123456789";
  one.template_public_id = "tabcdefghij0123456789";
  one.template_name = "base";
  one.state = SandboxState::running;
  one.metadata = {{"a", "b"}};
  one.created_at = at("2030-01-01T00:00:00Z");
  one.started_at = at("2030-01-01T00:00:01.5Z");
  one.deadline_at = at("2030-01-01T00:05:01.5Z");
  one.auto_resume = false;
  return one;
}

NewSandbox request(std::string_view network, std::optional<bool> internet = {}) {
  NewSandbox one;
  one.templateID = "base";
  if (!network.empty()) one.network = wire::parse_json(network).value();
  one.allow_internet_access = internet;
  return one;
}

TEST(E2bRequests, TheCapturedBodiesOfClientsAreRead) {
  auto const old = wire::decode_text<NewSandbox>(
      R"({"templateID":"base","allow_internet_access":true,"autoPause":false,"envVars":{},"metadata":{},"secure":true,"timeout":60})",
      wire::UnknownKeys::ignore);
  ASSERT_TRUE(old) << old.error().message();
  EXPECT_EQ(old->timeout, 60);
  EXPECT_EQ(old->secure, true);
  auto const newest = wire::decode_text<NewSandbox>(
      R"({"templateID":"base","timeout":60,"autoPause":true,"autoResume":{"enabled":true},"network":{"allowOut":["1.1.1.1"],)"
      R"("denyOut":["0.0.0.0/0"],"rules":{"api.x.com":[{"transform":{"headers":{"A":"b"}}}]}},"metadata":{},"envVars":{},"mcp":null})",
      wire::UnknownKeys::ignore);
  ASSERT_TRUE(newest) << newest.error().message();
  EXPECT_TRUE(newest->autoResume->enabled);
  EXPECT_FALSE(wire::decode_text<NewSandbox>("{}", wire::UnknownKeys::ignore));
  EXPECT_FALSE(wire::decode_text<NewSandbox>(R"({"templateID":"base","metadata":{"a":1}})",
                                             wire::UnknownKeys::ignore));
  EXPECT_FALSE(wire::decode_text<NewSandbox>(R"({"templateID":"base","timeout":1.5})",
                                             wire::UnknownKeys::ignore));
}

TEST(E2bReplies, HoldWhatClientsRequire) {
  auto const reply = sandbox_reply(row(), "token", "", "sbx.test:7443");
  EXPECT_THAT(keys_of(reply),
              UnorderedElementsAre("templateID",
                                   "sandboxID",
                                   "clientID",
                                   "envdVersion",
                                   "alias",
                                   "domain",
                                   "envdAccessToken"));
  EXPECT_EQ(reply.at("domain"), "sbx.test:7443");
  EXPECT_EQ(reply.at("clientID"), "6532622b");
  EXPECT_THAT(keys_of(sandbox_reply(row(), "", "traffic", "d")),
              UnorderedElementsAre("templateID",
                                   "sandboxID",
                                   "clientID",
                                   "envdVersion",
                                   "alias",
                                   "domain",
                                   "trafficAccessToken"));
  auto const listed = listed_reply(row());
  EXPECT_THAT(keys_of(listed),
              UnorderedElementsAre("templateID",
                                   "sandboxID",
                                   "clientID",
                                   "startedAt",
                                   "endAt",
                                   "cpuCount",
                                   "memoryMB",
                                   "diskSizeMB",
                                   "state",
                                   "envdVersion",
                                   "alias",
                                   "metadata",
                                   "volumeMounts"));
  EXPECT_EQ(listed.at("startedAt"), "2030-01-01T00:00:01.500000Z");
  EXPECT_EQ(listed.at("endAt"), "2030-01-01T00:05:01.500000Z");
  EXPECT_EQ(wire::to_text(listed.at("metadata")), R"({"a":"b"})");
}

TEST(E2bReplies, ASandboxWithoutADeadlineStillHasAnEndThatParses) {
  auto endless = row();
  endless.deadline_at.reset();
  EXPECT_TRUE(parse_rfc3339(listed_reply(endless).at("endAt").as_string()));
}

TEST(E2bReplies, DetailTellsLifecycleNetworkAndInternet) {
  auto one = row();
  auto plain = detail_reply(one, "token", "d");
  EXPECT_EQ(wire::to_text(plain.at("lifecycle")), R"({"autoResume":false,"onTimeout":"kill"})");
  EXPECT_TRUE(plain.at("allowInternetAccess").is_null());
  EXPECT_FALSE(plain.contains("network"));
  EXPECT_EQ(plain.at("envdAccessToken"), "token");
  one.network =
      network_of(
          request(R"({"allowPublicTraffic":false,"maskRequestHost":"localhost:${PORT}"})", false),
          true)
          .value();
  one.on_timeout = "suspend";
  one.auto_resume = true;
  one.state = SandboxState::suspended;
  auto const full = detail_reply(one, "", "d");
  EXPECT_EQ(full.at("allowInternetAccess"), false);
  EXPECT_EQ(
      full.at("network"),
      wire::parse_json(R"({"allowPublicTraffic":false,"maskRequestHost":"localhost:${PORT}"})")
          .value());
  EXPECT_EQ(wire::to_text(full.at("lifecycle")), R"({"autoResume":true,"onTimeout":"pause"})");
  EXPECT_EQ(full.at("state"), "paused");
  EXPECT_TRUE(full.at("domain").is_null());
  EXPECT_FALSE(full.contains("envdAccessToken"));
}

TEST(E2bReplies, MetricsHoldMemCacheForTheNewestClients) {
  store::MetricRow sample;
  sample.at = at("2030-01-01T00:00:01Z");
  EXPECT_THAT(keys_of(metric_reply(sample)),
              UnorderedElementsAre("timestamp",
                                   "timestampUnix",
                                   "cpuCount",
                                   "cpuUsedPct",
                                   "memUsed",
                                   "memTotal",
                                   "memCache",
                                   "diskUsed",
                                   "diskTotal"));
  EXPECT_EQ(metric_reply(sample).at("timestampUnix"), 1'893'456'001);
}

TEST(E2bReplies, TemplatesHoldAllRequiredKeys) {
  store::TemplateRow one;
  one.name = "base";
  one.latest.emplace();
  EXPECT_THAT(keys_of(template_reply(one)),
              UnorderedElementsAre("templateID",
                                   "buildID",
                                   "cpuCount",
                                   "memoryMB",
                                   "diskSizeMB",
                                   "public",
                                   "aliases",
                                   "names",
                                   "createdAt",
                                   "updatedAt",
                                   "createdBy",
                                   "lastSpawnedAt",
                                   "spawnCount",
                                   "buildCount",
                                   "envdVersion",
                                   "buildStatus"));
  EXPECT_EQ(wire::to_text(template_reply(one).at("aliases")), R"(["base"])");
}

TEST(E2bStates, OnlyRunningAndPausedAreEverShown) {
  EXPECT_EQ(shown_state(SandboxState::running), "running");
  for (auto const state : {SandboxState::pausing,
                           SandboxState::paused,
                           SandboxState::resuming,
                           SandboxState::suspending,
                           SandboxState::suspended,
                           SandboxState::restoring}) {
    EXPECT_EQ(shown_state(state), "paused") << domain::name_of(state);
  }
  for (auto const state : {SandboxState::creating,
                           SandboxState::deleting,
                           SandboxState::deleted,
                           SandboxState::failed}) {
    EXPECT_FALSE(shown_state(state)) << domain::name_of(state);
  }
  EXPECT_THAT(states_shown_as("running"), ::testing::ElementsAre(SandboxState::running));
  EXPECT_EQ(states_shown_as("paused").size(), 6U);
  EXPECT_TRUE(states_shown_as("other").empty());
}

TEST(E2bNetwork, IsRememberedAsItCame) {
  EXPECT_TRUE(network_of(request(""), true).value().is_null());
  EXPECT_EQ(wire::to_text(network_of(request("", true), true).value()),
            R"({"allowInternetAccess":true})");
  EXPECT_EQ(
      wire::to_text(
          network_of(
              request(
                  R"({"allowOut":["api.x.com","*.y.org","1.1.1.1","::1/128"],"denyOut":["0.0.0.0/0"]})"),
              true)
              .value()),
      R"({"allowOut":["api.x.com","*.y.org","1.1.1.1","::1/128"],"denyOut":["0.0.0.0/0"]})");
}

TEST(E2bNetwork, WhatCannotBeMeantIsRefusedInTheClientsWords) {
  auto const why = [](std::string_view network, bool secure = true) {
    auto const refused = network_of(request(network), secure);
    return refused ? std::string("accepted") : refused.error().message();
  };
  EXPECT_EQ(why(R"({"denyOut":["example.com"]})"), "invalid denied CIDR example.com");
  EXPECT_EQ(why(R"({"denyOut":["0.0.0.0"]})"), "invalid denied CIDR 0.0.0.0");
  EXPECT_EQ(why(R"({"denyOut":["10.0.0.0/33"]})"), "invalid denied CIDR 10.0.0.0/33");
  EXPECT_THAT(why(R"({"allowOut":["example.com"]})"),
              ::testing::StartsWith("When specifying allowed domains in allow out"));
  EXPECT_THAT(why(R"({"allowOut":["exa mple.com"],"denyOut":["0.0.0.0/0"]})"),
              ::testing::StartsWith("invalid allowed"));
  EXPECT_THAT(why(R"({"allowPublicTraffic":false})", false),
              ::testing::HasSubstr("needs secure true"));
  EXPECT_THAT(why(R"({"maskRequestHost":"a b"})"),
              ::testing::StartsWith("network.maskRequestHost"));
  EXPECT_THAT(why(R"({"maskRequestHost":"a\r\nX: y"})"),
              ::testing::StartsWith("network.maskRequestHost"));
  EXPECT_THAT(why(R"({"maskRequestHost":""})"), ::testing::StartsWith("network.maskRequestHost"));
  EXPECT_THAT(why(R"("x")"), ::testing::HasSubstr("network"));
  EXPECT_THAT(why(R"({"allowOut":"x"})"), ::testing::HasSubstr("allowOut"));
}

TEST(E2bCursor, GoesRoundAndFitsOneOrderOnly) {
  Cursor const cursor{at("2030-01-01T00:00:00.123456Z"), base::SandboxId::make().str()};
  for (bool const oldest_first : {false, true}) {
    auto const text = cursor_text(cursor, oldest_first);
    auto const back = parse_cursor(text, oldest_first);
    ASSERT_TRUE(back) << text;
    EXPECT_EQ(back->time, cursor.time);
    EXPECT_EQ(back->sandbox, cursor.sandbox);
    EXPECT_FALSE(parse_cursor(text, !oldest_first));
    EXPECT_EQ(text.find_first_of("+/= "), std::string::npos);
  }
  for (auto const* text :
       {"", "x", "====", "!!", "MTIzX19pYWJj", "LTFfX2lhYmNkZWZnaGlqMDEyMzQ1Njc4OQ"}) {
    EXPECT_FALSE(parse_cursor(text, false)) << text;
  }
}

TEST(Rfc3339, TimesBeyondOurClockSelectTheSame) {
  EXPECT_EQ(base::to_rfc3339(at("2999-01-01T00:00:00Z")), "2200-01-01T00:00:00.000000Z");
  EXPECT_EQ(base::to_rfc3339(at("9999-12-31T23:59:59Z")), "2200-01-01T00:00:00.000000Z");
  EXPECT_EQ(base::to_rfc3339(at("0001-01-01T00:00:00Z")), "1970-01-01T00:00:00.000000Z");
  auto const huge =
      parse_cursor(cursor_text({base::WallTime(), base::SandboxId::make().str()}, false), false);
  EXPECT_TRUE(huge);
}

TEST(Rfc3339, TimesOfAllKindsAreReadAndOthersAreNot) {
  EXPECT_EQ(base::to_rfc3339(at("2030-01-02T03:04:05Z")), "2030-01-02T03:04:05.000000Z");
  EXPECT_EQ(base::to_rfc3339(at("2030-01-02T03:04:05.1Z")), "2030-01-02T03:04:05.100000Z");
  EXPECT_EQ(base::to_rfc3339(at("2030-01-02T03:04:05.123456789Z")), "2030-01-02T03:04:05.123456Z");
  EXPECT_EQ(base::to_rfc3339(at("2030-01-02T03:04:05+02:30")), "2030-01-02T00:34:05.000000Z");
  EXPECT_EQ(base::to_rfc3339(at("2030-01-02T03:04:05.5-01:00")), "2030-01-02T04:04:05.500000Z");
  for (auto const* text : {"",
                           "2030-01-02",
                           "2030-01-02T03:04:05",
                           "2030-02-30T00:00:00Z",
                           "2030-01-02T24:00:00Z",
                           "2030-01-02T03:04:05.Z",
                           "2030-01-02T03:04:05z0",
                           "2030-01-02T03:04:05+2:00",
                           "-030-01-02T03:04:05Z",
                           "2030-1-02T03:04:055Z"}) {
    EXPECT_FALSE(parse_rfc3339(text)) << text;
  }
}

}  // namespace
}  // namespace controlplane::e2b
