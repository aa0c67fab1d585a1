#include "worker/audit_feed.hpp"

#include "async/testing.hpp"
#include "worker/gateway_link.hpp"
#include "worker/testing/fakes.hpp"

#include <gmock/gmock.h>

namespace worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;

TEST(AuditRecord, SaysWhoAndLeavesOutWhatSaysNothing) {
  wire::GatewayDecision decision;
  decision.kind = "dns";
  decision.decision = "denied";
  decision.host = "a.example";
  auto const text = audit_record("node-1", "s1", 2, "2026-01-01T00:00:00Z", decision);
  EXPECT_THAT(text, HasSubstr(R"("sandbox":"s1")"));
  EXPECT_THAT(text, HasSubstr(R"("epoch":2)"));
  EXPECT_THAT(text, HasSubstr(R"("node":"node-1")"));
  EXPECT_THAT(text, HasSubstr(R"("monotonic_us":)"));
  EXPECT_THAT(text, HasSubstr(R"("host":"a.example")"));
  EXPECT_THAT(text, Not(HasSubstr("credential")));
  EXPECT_THAT(text, Not(HasSubstr("status")));
}

TEST(AuditFeed, WritesAChainThatVerifiesAndTellsFollowers) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    TempDir const dir;
    AuditFeed feed(co_await boost::asio::this_coro::executor, dir.path() + "/audit");
    auto const opened = co_await feed.open();
    EXPECT_TRUE(opened);
    feed.add("a", R"({"n":1})");
    feed.add("b", R"({"n":2})");
    feed.add("a", R"({"n":3})");
    EXPECT_EQ(feed.after(0, "a").size(), 2U);
    EXPECT_EQ(feed.after(1, "a").size(), 1U);
    co_await feed.close();
    EXPECT_FALSE(feed.broken());
    auto const verdict = audit::verify(dir.path() + "/audit");
    EXPECT_TRUE(verdict);
    EXPECT_EQ(verdict->problem, "");
    EXPECT_EQ(verdict->lines, 3U);
  });
}

TEST(AuditFeed, WhoeverIsLoudWaitsAndBreaksItForNobody) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    TempDir const dir;
    auto const executor = co_await boost::asio::this_coro::executor;
    AuditFeed feed(executor, dir.path() + "/audit");
    auto const opened = co_await feed.open();
    EXPECT_TRUE(opened);
    std::size_t loud = 0;
    for (int i = 0; i < 500; ++i) {
      auto const sandbox = fmt::format("i{}", i);
      for (int n = 0; n < 5000 && !feed.crowded(sandbox); ++n, ++loud)
        feed.add(sandbox, "{}");
      EXPECT_TRUE(feed.crowded(sandbox));
    }
    EXPECT_EQ(loud, feed.waiting());
    EXPECT_FALSE(feed.broken());
    EXPECT_FALSE(feed.crowded("another"));
    async::TaskGroup tasks(executor);
    tasks.spawn("write", feed.run());
    auto const room = co_await feed.wait_room("i0");
    EXPECT_TRUE(room);
    EXPECT_FALSE(feed.crowded("i0"));
    tasks.cancel();
    co_await tasks.join();
  });
}

TEST(AuditFeed, SignsWhatItHasWrittenAtItsEndAndTheNextLifeGoesOnFromIt) {
  async::run_test([]() -> boost::asio::awaitable<void> {
    TempDir const dir;
    audit::Known known;
    for (std::uint64_t life = 1; life <= 2; ++life) {
      AuditFeed feed(co_await boost::asio::this_coro::executor, dir.path() + "/audit");
      auto const unsigned_yet = co_await feed.checkpoints(0);
      EXPECT_FALSE(unsigned_yet);
      auto const opened = co_await feed.open("node-1", dir.path() + "/audit.key");
      EXPECT_TRUE(opened);
      feed.add("a", R"({"n":1})");
      co_await feed.close();
      auto const told = co_await feed.checkpoints(known.latest ? known.latest->last_sequence : 0);
      EXPECT_TRUE(told);
      if (!told) co_return;
      if (known.public_key.empty()) known.public_key = told->public_key;
      auto const judged = audit::judge("node-1", known, *told);
      EXPECT_EQ(judged.problem, "");
      EXPECT_FALSE(judged.good.empty());
      if (judged.good.empty()) co_return;
      known.latest = judged.good.back();
      EXPECT_EQ(known.latest->last_sequence, life);
    }
  });
}

}  // namespace
}  // namespace worker
