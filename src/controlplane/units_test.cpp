// The parts without I/O.
#include "controlplane/testing.hpp"

#include <fstream>
#include <set>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

TEST(Cors, OnlyListedOrigins) {
  Cors const cors({"https://a.example"});
  EXPECT_EQ(cors.headers({{"Origin", "https://a.example"}}).get("access-control-allow-origin"),
            "https://a.example");
  EXPECT_FALSE(cors.headers({{"Origin", "https://b.example"}})
                   .find("access-control-allow-origin")
                   .has_value());
  EXPECT_EQ(cors.headers({{"Origin", "https://b.example"}}).get("vary"), "Origin");
}

TEST(Tokens, SameSecretSameTokensAndSealedEnvironments) {
  auto const path = fmt::format("/tmp/space-token-{}", base::random_hex(6));
  auto const first = taken(Tokens::load(path));
  auto const second = taken(Tokens::load(path));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0600));
  EXPECT_EQ(first.access_token("i1", 1), second.access_token("i1", 1));
  EXPECT_NE(first.access_token("i1", 1), first.access_token("i1", 2));
  EXPECT_NE(first.access_token("i1", 1), first.access_token("i2", 1));
  EXPECT_NE(first.access_token("i1", 1), first.traffic_token("i1", 1));
  std::map<std::string, std::string> const env{{"A", "b"}, {"C", ""}};
  auto sealed = first.seal("i1", env);
  EXPECT_EQ(taken(second.open("i1", sealed)), env);
  EXPECT_FALSE(second.open("i2", sealed).has_value()) << "bound to its sandbox";
  sealed[30] = sealed[30] == '0' ? '1' : '0';
  EXPECT_FALSE(second.open("i1", sealed).has_value());
  EXPECT_FALSE(second.open("i1", "00").has_value());
  EXPECT_FALSE(second.open("i1", "zz").has_value());
  EXPECT_TRUE(taken(second.open("i1", "")).empty());
  std::ofstream(path) << "short";
  EXPECT_FALSE(Tokens::load(path).has_value());
  fs::remove(path);
}

TEST(RateLimit, FillsAgainAndForgetsTheIdle) {
  RateLimit limit({10, 5});
  base::ManualClock clock;
  clock.advance(1h);
  for (int i = 0; i < 5; ++i)
    EXPECT_FALSE(limit.take("k", clock.steady_now()).has_value());
  auto const wait = limit.take("k", clock.steady_now());
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(*wait, 100ms);
  clock.advance(100ms);
  EXPECT_FALSE(limit.take("k", clock.steady_now()).has_value());
  clock.advance(1min);
  EXPECT_FALSE(limit.take("other", clock.steady_now()).has_value());
  EXPECT_EQ(limit.size(), 1u) << "a full bucket is dropped";
}

TEST(Router, LiteralsWinAndGreedySegmentsTakeSlashes) {
  Router router;
  auto const add = [&](std::string method, std::string pattern) {
    Route route;
    route.method = std::move(method);
    route.pattern = std::move(pattern);
    route.handler = [](Call&) -> async::Task<Reply> { co_return empty_reply(); };
    router.add(std::move(route));
  };
  add("DELETE", "/templates/{id*}");
  add("DELETE", "/templates/tags");
  add("GET", "/templates/{id*}/tags");
  add("GET", "/templates/{id}");
  auto const pattern = [&](std::string method, std::string path) {
    auto const match = router.match(method, path);
    return match && match->route ? match->route->pattern : std::string("none");
  };
  EXPECT_EQ(pattern("DELETE", "/templates/tags"), "/templates/tags");
  EXPECT_EQ(pattern("DELETE", "/templates/team/snap:default"), "/templates/{id*}");
  EXPECT_EQ(pattern("GET", "/templates/team/x/tags"), "/templates/{id*}/tags");
  EXPECT_EQ(pattern("GET", "/templates/x"), "/templates/{id}");
  EXPECT_EQ(pattern("GET", "/templates/"), "none");
  EXPECT_EQ(pattern("GET", "/templates"), "none");
  EXPECT_EQ(pattern("GET", "//templates/x"), "none");
  auto const match = router.match("DELETE", "/templates/team%2Fsnap%3Adefault");
  ASSERT_TRUE(match && match->route);
  EXPECT_EQ(match->params.front().second, "team/snap:default");
  auto const slashes = router.match("DELETE", "/templates/team/snap:default");
  EXPECT_EQ(slashes->params.front().second, "team/snap:default");
  auto const wrong = router.match("PATCH", "/templates/x");
  EXPECT_EQ(wrong->route, nullptr);
  EXPECT_THAT(wrong->allowed, ::testing::UnorderedElementsAre("DELETE", "GET", "HEAD"));
  EXPECT_EQ(pattern("HEAD", "/templates/x"), "/templates/{id}");
  EXPECT_EQ(pattern("HEAD", "/templates/team/x"), "none") << "it has DELETE only";
}

}  // namespace
}  // namespace controlplane
