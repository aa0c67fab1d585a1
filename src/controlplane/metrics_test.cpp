#include "controlplane/metrics.hpp"

#include "controlplane/testing.hpp"

namespace controlplane {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ApiMetrics, AreForTheInstallationsKeyAndHoldWhatWorkersCounted) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    bench.worker.samples =
        R"([{"name":"space_sandbox_ends_total","labels":["deleted"],"value":3,"buckets":[]},
            {"name":"space_node_up","labels":[],"value":7,"buckets":[]},
            {"name":"evil\n","labels":[],"value":7,"buckets":[]},
            {"name":"space_sandbox_ends_total","labels":["a\"} 1\n"],"value":3,"buckets":[]}])";
    auto const project_admin = co_await bench.make_key_of(bench.world.project, store::Role::admin);
    auto const denied = co_await bench.ask("GET", "/metrics", "", project_admin);
    EXPECT_EQ(denied.status, 403);
    auto const stranger = co_await bench.ask("GET", "/metrics", "", "");
    EXPECT_EQ(stranger.status, 401);
    auto const got = co_await bench.ask("GET", "/metrics");
    EXPECT_EQ(got.status, 200);
    EXPECT_THAT(std::string(got.headers.get("content-type")), HasSubstr("text/plain"));
    EXPECT_THAT(got.text,
                HasSubstr("space_sandbox_ends_total{node=\"node-1\",cause=\"deleted\"} 3\n"));
    EXPECT_THAT(got.text, HasSubstr("space_node_up{node=\"node-1\"} 1\n"));
    EXPECT_THAT(got.text, HasSubstr("space_node_slots{node=\"node-1\",kind=\"total\"} 1000\n"));
    EXPECT_THAT(got.text, HasSubstr("space_api_requests_total{status=\"4xx\"}"));
    EXPECT_THAT(got.text, HasSubstr("space_metric_samples_refused_total 3\n"));
    EXPECT_THAT(got.text, Not(HasSubstr("evil")));
    EXPECT_THAT(got.text, Not(HasSubstr(bench.world.project)));
    auto const unknown = co_await bench.ask("GET", "/metrics?x=1");
    EXPECT_EQ(unknown.status, 400);
  });
}

TEST(ApiMetrics, AWorkerThatIsSilentOrTalksNonsenseIsDownAndNoMore) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    bench.worker.samples = "{";
    auto const nonsense = co_await bench.ask("GET", "/metrics");
    EXPECT_EQ(nonsense.status, 200);
    EXPECT_THAT(nonsense.text, HasSubstr("space_node_up{node=\"node-1\"} 0\n"));
    EXPECT_THAT(nonsense.text, Not(HasSubstr("space_node_slots")));
    co_await bench.worker.stop();
    auto const silent = co_await bench.ask("GET", "/metrics");
    EXPECT_EQ(silent.status, 200);
    EXPECT_THAT(silent.text, HasSubstr("space_node_up{node=\"node-1\"} 0\n"));
    bench.worker.start();
  });
}

}  // namespace
}  // namespace controlplane
