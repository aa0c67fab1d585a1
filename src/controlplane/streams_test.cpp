// Event streams, and what the proxy asks.
#include "controlplane/testing.hpp"

#include <set>

namespace controlplane {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using ::testing::HasSubstr;

TEST(Events, AStreamGoesOnWhereItWasCut) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    std::vector<std::string> made;
    for (int i = 0; i < 3; ++i) {
      auto const id = co_await bench.sandbox();
      made.push_back(id);
    }
    auto const two = [](std::string const& text) { return count_of(text, "\n\n") >= 2; };
    auto first = co_await read_stream(bench, "/v1/events", {{"Last-Event-ID", "0-0"}}, two);
    // Cut after two events, however many came at once.
    first.resize(first.find("\n\n", first.find("\n\n") + 2) + 2);
    EXPECT_THAT(first, HasSubstr("event: sandbox.creating"));
    auto const rest = co_await read_stream(
        bench, "/v1/events", {{"Last-Event-ID", last_id(first)}}, [first](std::string const& text) {
          return count_of(first + text, "event: sandbox.running") >= 3;
        });
    auto const whole = first + rest;
    for (auto const& id : made)
      EXPECT_GE(count_of(whole, id), 2u) << id;
    EXPECT_LE(count_of(whole, "event: sandbox.creating"), 3u) << "nothing comes twice";
    auto const one =
        co_await read_stream(bench,
                             "/v1/sandboxes/" + made[1] + "/events",
                             {{"Last-Event-ID", "0-0"}},
                             [](std::string const& text) { return count_of(text, "\n\n") >= 2; });
    EXPECT_EQ(count_of(one, made[0]), 0u);
    EXPECT_EQ(count_of(one, "event: "), 2u);
    Bench::Ask bad{"GET", "/v1/events", "", "own", {{"Last-Event-ID", "nonsense"}}};
    auto const refused = co_await bench.ask(bad);
    EXPECT_EQ(refused.status, 400);
  });
}

TEST(Events, ArriveWhileOneListens) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    async::TaskGroup group(co_await asio::this_coro::executor);
    std::string seen;
    auto listen = [&]() -> asio::awaitable<void> {
      seen = co_await read_stream(bench, "/v1/events", {}, [](std::string const& text) {
        return text.find("sandbox.deleted") != std::string::npos;
      });
    };
    group.spawn("listen", listen());
    co_await async::sleep_for(200ms);
    auto const id = co_await bench.sandbox();
    auto const deleted = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(deleted.status, 200);
    co_await group.join();
    for (auto const* type :
         {"sandbox.creating", "sandbox.running", "sandbox.deleting", "sandbox.deleted"}) {
      EXPECT_EQ(count_of(seen, std::string("event: ") + type + "\n"), 1u) << type << "\n" << seen;
    }
  });
}

TEST(Internal, RoutesAndChanges) {
  with_api([](Bench& bench) -> asio::awaitable<void> {
    auto const id = co_await bench.sandbox();
    auto connect = [path = bench.config.internal_socket()] { return net::connect_unix(path); };
    http::Client internal(co_await asio::this_coro::executor, connect);
    auto get = [&](std::string target) -> asio::awaitable<http::Response> {
      http::RequestHead head;
      head.method = "GET";
      head.target = std::move(target);
      head.headers.add("Host", "api");
      auto response = co_await internal.request(std::move(head), {}, soon());
      co_return taken(std::move(response));
    };
    auto const by_id = co_await get("/route?sandbox=" + id);
    EXPECT_EQ(by_id.status, 200);
    auto const route = taken(wire::decode_text<wire::Route>(by_id.body));
    EXPECT_EQ(route.sandbox, id);
    EXPECT_EQ(route.state, "running");
    EXPECT_TRUE(route.secure);
    EXPECT_TRUE(route.public_traffic);
    EXPECT_EQ(route.worker, bench.config.run_dir + "/worker");
    EXPECT_EQ(route.access_token_sha256, sha256_hex(bench.guest.token));
    auto const by_token = co_await get("/route?token_sha256=" + sha256_hex(bench.guest.token));
    EXPECT_EQ(by_token.status, 200);
    for (auto const* wrong : {"/route",
                              "/route?sandbox=",
                              "/route?sandbox=i00000000000000000000",
                              "/route?token_sha256=",
                              "/route?token_sha256=zz",
                              "/nope"}) {
      auto const none = co_await get(wrong);
      EXPECT_EQ(none.status, 404) << wrong;
    }
    http::RequestHead head;
    head.method = "GET";
    head.target = "/changes";
    head.headers.add("Host", "api");
    auto changes = taken(co_await internal.stream(std::move(head), {}, soon()));
    auto const rotated = co_await bench.ask("POST", "/v1/sandboxes/" + id + "/token");
    EXPECT_EQ(rotated.status, 200);
    auto const old = co_await get("/route?token_sha256=" + sha256_hex(bench.guest.token));
    EXPECT_EQ(old.status, 404) << "a rotated token is dead with the next request";
    auto const deleted = co_await bench.ask("DELETE", "/v1/sandboxes/" + id + "?wait=20");
    EXPECT_EQ(deleted.status, 200);
    std::string text;
    std::array<char, 1024> chunk{};
    while (count_of(text, "\"ended\"") == 0) {
      auto got = taken(co_await async::with_deadline(soon(), changes->body().read_some(chunk)));
      if (got == 0) break;
      text.append(chunk.data(), got);
    }
    EXPECT_EQ(count_of(text, "token_revoked"), 1u);
    auto const gone = co_await get("/route?sandbox=" + id);
    EXPECT_EQ(gone.status, 404);
  });
}

}  // namespace
}  // namespace controlplane
