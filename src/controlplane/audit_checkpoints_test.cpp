// Checkpoints of the hosts' audit logs as an administrator sees them.
#include "store/audit_checkpoints.hpp"

#include "controlplane/testing.hpp"

namespace controlplane {
namespace {

using namespace testing;

TEST(AuditCheckpoints, AreShownAndForgottenOnAnAdministratorsWord) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    std::string const path = "/v1/nodes/node-1/audit/checkpoints";
    auto const none = co_await bench.ask("GET", path);
    EXPECT_EQ(none.status, 200) << none.text;
    EXPECT_EQ(none["public_key"], "");
    store::AuditCheckpoints kept(bench.api->store().database);
    auto const in = [] { return base::system_clock().in(std::chrono::seconds(10)); };
    auto enrolled = co_await kept.enroll("node-1", std::string(64, '1'), in());
    EXPECT_TRUE(enrolled);
    wire::AuditCheckpoint first{"node-1", 1, 5, std::string(64, 'a'), 1'000, std::string(128, 'f')};
    auto second = first;
    second.last_sequence = 9;
    auto added = co_await kept.add("node-1", {first, second}, in());
    EXPECT_TRUE(added);
    auto told = co_await kept.complain("node-1", "it ends early", in());
    EXPECT_TRUE(told);
    auto const all = co_await bench.ask("GET", path);
    EXPECT_EQ(all["checkpoints"].as_array().size(), 2U);
    EXPECT_EQ(all["problem"], "it ends early");
    EXPECT_FALSE(all["problem_at"].as_string().empty());
    auto const rest = co_await bench.ask("GET", path + "?after=5");
    EXPECT_EQ(rest["checkpoints"].as_array().size(), 1U);
    auto const wrong = co_await bench.ask("GET", path + "?after=x");
    EXPECT_EQ(wrong.status, 400);
    auto const nowhere = co_await bench.ask("GET", "/v1/nodes/nowhere/audit/checkpoints");
    EXPECT_EQ(nowhere.status, 404);
    auto const gone = co_await bench.ask("DELETE", path);
    EXPECT_EQ(gone.status, 204) << gone.text;
    auto const after = co_await bench.ask("GET", path);
    EXPECT_EQ(after["problem"], "");
    EXPECT_TRUE(after["checkpoints"].as_array().empty());
  });
}

}  // namespace
}  // namespace controlplane
