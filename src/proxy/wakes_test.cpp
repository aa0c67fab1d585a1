// Sandboxes that sleep are woken by visitors who may.
#include "proxy/testing.hpp"

namespace proxy {
namespace {

using namespace testing;

void fall_asleep(Host& host, std::string state = "suspended") {
  host.route().state = std::move(state);
  host.route().auto_resume = true;
}

TEST(Wakes, ARequestWakesASandboxOnceAndGoesOn) {
  with_host([](Host& host) -> Awaitable {
    fall_asleep(host);
    async::TaskGroup group(co_await asio::this_coro::executor);
    int served = 0;
    auto one = [&]() -> Awaitable {
      auto const answer = co_await host.ask("GET", "/hello", at("8080"));
      EXPECT_EQ(answer.status, 200) << answer.body;
      if (answer.status == 200) ++served;
    };
    for (int i = 0; i < 8; ++i)
      group.spawn("visitor", one());
    co_await group.join();
    EXPECT_EQ(served, 8);
    EXPECT_EQ(host.internal.wakes, 1);
    EXPECT_EQ(host.worker.asked.back().epoch, 8u) << "the new life";
  });
}

TEST(Wakes, EveryPortAndEveryStateOfSleepButNobodyWithoutTheToken) {
  for (std::string const state : {"paused", "suspending", "restoring"}) {
    with_host([&](Host& host) -> Awaitable {
      fall_asleep(host, state);
      auto const stranger = co_await host.ask("POST", "/x", at("49983"));
      EXPECT_EQ(stranger.status, 401);
      auto const exempt = co_await host.ask("GET", "/health", at("49983"));
      EXPECT_EQ(exempt.status, 403) << exempt.body;
      EXPECT_EQ(host.internal.wakes, 0) << "a denied token never wakes";
      auto const owner = co_await host.ask("GET", "/health", agent());
      EXPECT_EQ(owner.status, 200) << owner.body;
      EXPECT_EQ(host.internal.wakes, 1);
    });
  }
}

TEST(Wakes, PrivateTrafficNeedsItsTokenToo) {
  with_host([](Host& host) -> Awaitable {
    fall_asleep(host);
    host.route().public_traffic = false;
    host.route().traffic_token_sha256 = sha256_hex("traffic");
    auto const stranger = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(stranger.status, 403);
    EXPECT_EQ(host.internal.wakes, 0);
    auto const guest =
        co_await host.ask("GET", "/", at("8080", "e2b-traffic-access-token", "traffic"));
    EXPECT_EQ(guest.status, 200) << guest.body;
  });
}

TEST(Wakes, WithoutAutoResumeItIsNotThere) {
  with_host([](Host& host) -> Awaitable {
    fall_asleep(host);
    host.route().auto_resume = false;
    auto const answer = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(answer.status, 502);
    EXPECT_EQ(host.internal.wakes, 0);
  });
}

TEST(Wakes, AreLimitedPerSandboxAndSayWhyTheyFail) {
  with_host([](Host& host) -> Awaitable {
    fall_asleep(host);
    host.internal.wake_status = 409;
    for (int i = 0; i < 3; ++i) {
      auto const refused = co_await host.ask("GET", "/", at("8080"));
      EXPECT_EQ(refused.status, 409);
      EXPECT_TRUE(refused.body.contains("its memory is damaged")) << refused.body;
    }
    auto const often = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(often.status, 429) << often.body;
    EXPECT_FALSE(often.headers.get("Retry-After").empty());
    EXPECT_EQ(host.internal.wakes, 3);
  });
}

TEST(Wakes, ASuspendOfTheLifeBeforeDoesNotCutTheNextOne) {
  with_host([](Host& host) -> Awaitable {
    auto const before = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(before.status, 200);
    fall_asleep(host);
    auto visitor = co_await host.visitor();
    auto const woken = co_await host.ask_on(visitor, "GET", "/", at("8080"));
    EXPECT_EQ(woken.status, 200) << woken.body;
    EXPECT_EQ(host.proxy.visits().count(sandbox), 1u);
    // Told late, of epoch 7: the visit is one of epoch 8.
    wire::RouteChange const late{.sandbox = sandbox, .what = "suspended", .epoch = 7};
    host.internal.lines.push_back("\n" + wire::encode_text(late));
    host.internal.changed.notify_all();
    co_await async::sleep_for(milliseconds(100));
    EXPECT_EQ(host.proxy.visits().count(sandbox), 1u);
    auto const again = co_await host.ask_on(visitor, "GET", "/", at("8080"));
    EXPECT_EQ(again.status, 200) << again.body;
  });
}

TEST(Wakes, ARequestWaitsForTheEndOfAChangeThatIsUnderWay) {
  for (std::string const state : {"pausing", "suspending", "creating", "resuming", "restoring"}) {
    for (std::string const end : {"running", "suspended"}) {
      with_host([&](Host& host) -> Awaitable {
        host.route().state = state;
        auto ending = [](Host* of, std::string to) -> Awaitable {
          co_await async::sleep_for(milliseconds(60));
          of->route().state = std::move(to);
        };
        async::TaskGroup group(co_await asio::this_coro::executor);
        group.spawn("ending", ending(&host, end));
        auto const answer = co_await host.ask("GET", "/", at("8080"));
        EXPECT_EQ(answer.status, end == "running" ? 200 : 502) << state << answer.body;
        EXPECT_EQ(host.route().state, end) << "it was waited for";
        EXPECT_EQ(host.internal.wakes, 0);
        co_await group.join();
      });
    }
  }
}

TEST(Wakes, ButNotForEverAndNotForThoseWithoutTheToken) {
  with_host([](Host& host) -> Awaitable {
    host.route().state = "suspending";
    auto const stranger = co_await host.ask("GET", "/health", at("49983"));
    EXPECT_EQ(stranger.status, 502);
    auto const asked = host.internal.asked;
    EXPECT_LE(asked, 2) << "answered at once; the other one looks after its visit";
    auto const owner = co_await host.ask("GET", "/health", agent());
    EXPECT_EQ(owner.status, 502);
    EXPECT_GT(host.internal.asked, asked + 3);
    host.route().state = "restoring";
    auto const coming = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(coming.status, 409) << coming.body;
  });
}

/// As when a suspend begins between the route and the dial.
void fall_asleep_under_the_next_dial(Host& host, std::string refusal) {
  host.worker.before_answer = [&host, refusal, first = true]() mutable {
    if (host.route().state == "running") host.worker.refusal.code.clear();
    if (!std::exchange(first, false)) return;
    fall_asleep(host, "suspending");
    host.worker.refusal.code = refusal;
  };
}

TEST(Wakes, OneThatFallsAsleepUnderADialIsWokenForIt) {
  for (std::string const refusal : {"conflict", "not_found", "denied"}) {
    with_host([&](Host& host) -> Awaitable {
      fall_asleep_under_the_next_dial(host, refusal);
      auto const answer = co_await host.ask("POST", "/x", at("8080"), "body");
      EXPECT_EQ(answer.status, 200) << refusal << answer.body;
      EXPECT_EQ(host.internal.wakes, 1);
      EXPECT_EQ(host.worker.asked.back().epoch, 8u);
    });
  }
}

/// Falls asleep once the guest has the request.
Awaitable fall_asleep_under_a_request(Host* host) {
  while (host->origin.requests == 0)
    co_await async::sleep_for(milliseconds(5));
  fall_asleep(*host, "suspending");
  host->internal.change(sandbox, "suspended");
}

TEST(Wakes, ARequestThatMayBeSentTwiceOutlivesASuspend) {
  for (std::string const method : {"GET", "POST"}) {
    with_host([&](Host& host) -> Awaitable {
      host.origin.holds = 1;
      async::TaskGroup group(co_await asio::this_coro::executor);
      group.spawn("asleep", fall_asleep_under_a_request(&host));
      auto const answer = co_await host.ask(method, "/hold", at("8080"));
      EXPECT_EQ(answer.status, method == "GET" ? 200 : 502) << answer.body;
      EXPECT_EQ(host.internal.wakes, method == "GET" ? 1 : 0);
      EXPECT_EQ(host.origin.requests, method == "GET" ? 2 : 1);
      co_await group.join();
    });
  }
}

TEST(Wakes, WhoIsUsedIsTold) {
  with_host([](Host& host) -> Awaitable {
    auto const answer = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(answer.status, 200);
    auto const until = soon();
    while (host.internal.used.empty() && base::system_clock().steady_now() < until)
      co_await async::sleep_for(milliseconds(10));
    EXPECT_TRUE(host.internal.used.contains(sandbox));
  });
}

}  // namespace
}  // namespace proxy
