#include "proxy/testing.hpp"

#include <gtest/gtest.h>

namespace proxy {
namespace {

using namespace testing;

TEST(Proxy, CarriesARequestToThePortItsHostNames) {
  with_host([](Host& host) -> Awaitable {
    auto const answer = co_await host.ask("GET", "/a%2Fb//c?x=%20&y=+", at("8080"));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "/a%2Fb//c?x=%20&y=+");
    EXPECT_EQ(host.origin.last.headers.get("Host"), "8080-" + sandbox + ".space.localhost:7443");
    EXPECT_EQ(host.worker.asked.at(0).sandbox, sandbox);
    EXPECT_EQ(host.worker.asked.at(0).epoch, 7U);
    EXPECT_EQ(host.worker.asked.at(0).port, 8080);
  });
}

TEST(Proxy, RoutesByHeadersAndByTokenOnAPlainAddress) {
  with_host([](Host& host) -> Awaitable {
    http::Headers by_headers{{"Host", "127.0.0.1:7380"},
                             {"E2b-Sandbox-Id", sandbox},
                             {"E2b-Sandbox-Port", "49983"},
                             {"X-Access-Token", "secret"}};
    EXPECT_EQ((co_await host.ask("GET", "/one", by_headers)).body, "/one");
    http::Headers by_token{{"Host", "localhost"}, {"X-Access-Token", "secret"}};
    EXPECT_EQ((co_await host.ask("GET", "/two", by_token)).body, "/two");
    http::Headers unknown{{"Host", "localhost"}, {"X-Access-Token", "dead"}};
    auto const gone = co_await host.ask("GET", "/health", unknown);
    EXPECT_EQ(gone.status, 502);
    EXPECT_EQ(gone.body, R"({"sandboxId":"","message":"The sandbox was not found","code":502})");
    auto const api = co_await host.ask(
        "POST",
        "/sandboxes?x=1",
        {{"Host", "127.0.0.1"}, {"X-API-KEY", "k"}, {"X-Forwarded-For", "8.8.8.8"}},
        "body");
    EXPECT_EQ(api.body, "api /sandboxes?x=1 body");
    EXPECT_EQ(host.api.last.headers.get("X-Forwarded-For"), "127.0.0.1");
    EXPECT_EQ((co_await host.ask("GET", "/health", {{"Host", "127.0.0.1"}})).body, "api /health ");
    EXPECT_EQ((co_await host.ask("GET", "/v1", {{"Host", "api.space.localhost:7443"}})).body,
              "api /v1 ");
  });
}

TEST(Proxy, SaysWhatIsWrongInTheDocumentedWords) {
  with_host([](Host& host) -> Awaitable {
    auto const invalid = co_await host.ask("GET", "/", {{"Host", "nonsense.space.localhost"}});
    EXPECT_EQ(invalid.status, 400);
    EXPECT_EQ(invalid.body, R"({"message":"Invalid host","code":400})");

    auto const unknown = co_await host.ask("GET", "/", {{"Host", "8080-iother.space.localhost"}});
    EXPECT_EQ(unknown.status, 502);
    EXPECT_EQ(unknown.body,
              R"({"sandboxId":"iother","message":"The sandbox was not found","code":502})");

    auto const closed = co_await host.ask("GET", "/", at("8081"));
    EXPECT_EQ(closed.status, 502);
    EXPECT_EQ(
        closed.body,
        R"({"sandboxId":")" + sandbox +
            R"(","message":"The sandbox is running but port is not open","port":8081,"code":502})");

    auto const token = co_await host.ask("POST", "/process.Process/List", at("49983"), "{}");
    EXPECT_EQ(token.status, 401);
    EXPECT_EQ(
        token.body,
        R"({"message":"The access token is missing or not the one of this sandbox","code":401})");

    for (std::string const path :
         {"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"}) {
      auto const host_only = co_await host.ask("POST", path, agent(), "{}");
      EXPECT_EQ(host_only.status, 404);
      EXPECT_EQ(
          host_only.body,
          R"({"message":"This call is the host's alone","path":")" + path + R"(","code":404})");
    }
    EXPECT_EQ((co_await host.ask("POST", "/init", at("8080"), "")).status,
              200);  // only the agent's

    host.route().public_traffic = false;
    host.route().traffic_token_sha256 = sha256_hex("traffic");
    auto const traffic = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(traffic.status, 403);
    EXPECT_TRUE(traffic.body.starts_with(R"({"sandboxId":")" + sandbox + R"(","message":")"))
        << traffic.body;
    EXPECT_TRUE(traffic.body.ends_with(R"(","code":403})")) << traffic.body;
    EXPECT_EQ(
        (co_await host.ask("GET", "/", at("8080", "e2b-traffic-access-token", "traffic"))).status,
        200);

    host.route().state = "resuming";
    EXPECT_EQ((co_await host.ask("GET", "/health", at("49983"))).status, 409);
    host.route().state = "suspended";
    auto const suspended = co_await host.ask("GET", "/health", at("49983"));
    EXPECT_EQ(suspended.status, 502);
    EXPECT_TRUE(suspended.body.contains("was not found"));
  });
}

TEST(Proxy, ShowsABrowserAPage) {
  with_host([](Host& host) -> Awaitable {
    auto headers = at("8081", "User-Agent", "Mozilla/5.0");
    headers.add("Sec-Fetch-Mode", "navigate");
    auto const page = co_await host.ask("GET", "/", headers);
    EXPECT_EQ(page.status, 502);
    EXPECT_EQ(page.headers.get("Content-Type"), "text/html; charset=utf-8");
    EXPECT_TRUE(page.body.contains("port is not open"));
    EXPECT_EQ((co_await host.ask("GET",
                                 "/",
                                 {{"Host", "8081-x.space.localhost"},
                                  {"User-Agent", "Mozilla/5.0"},
                                  {"Accept", "application/json"}}))
                  .headers.get("Content-Type"),
              "application/json");
  });
}

TEST(Proxy, TheAgentSeesItsTokenAndOtherProgramsNoSecret) {
  with_host([](Host& host) -> Awaitable {
    (void)co_await host.ask("GET", "/x", agent());
    EXPECT_EQ(host.origin.last.headers.get("X-Access-Token"), "secret");
    auto headers = at("8080", "X-Access-Token", "secret");
    headers.add("E2b-Sandbox-Id", sandbox);
    headers.add("X-API-KEY", "k");
    headers.add("Cookie", "mine");
    (void)co_await host.ask("GET", "/x", headers);
    EXPECT_FALSE(host.origin.last.headers.find("X-Access-Token"));
    EXPECT_FALSE(host.origin.last.headers.find("E2b-Sandbox-Id"));
    EXPECT_FALSE(host.origin.last.headers.find("X-API-KEY"));
    EXPECT_EQ(host.origin.last.headers.get("Cookie"), "mine");
  });
}

TEST(Proxy, PassesEncodedBytesAndRepeatedFieldsAsTheyAre) {
  with_host([](Host& host) -> Awaitable {
    auto const answer = co_await host.ask("GET", "/gzip", at("8080"));
    EXPECT_EQ(answer.body, std::string("\x1f\x8b\0\xff", 4));
    EXPECT_EQ(answer.headers.get("Content-Encoding"), "gzip");
    EXPECT_EQ(answer.headers.count("Set-Cookie"), 2U);
    auto const head = co_await host.ask("HEAD", "/abc", at("8080"));
    EXPECT_EQ(head.headers.get("Content-Length"), "4");
    EXPECT_EQ(head.body, "");
  });
}

TEST(Proxy, StreamsBothWaysWithoutWaitingForTheEnd) {
  with_host([](Host& host) -> Awaitable {
    auto connection = co_await host.visitor();
    auto begun =
        co_await connection.begin({.method = "POST", .target = "/echo", .headers = at("8080")});
    EXPECT_TRUE(begun);
    auto first = co_await connection.write("first");
    auto exchange = co_await connection.response();
    EXPECT_EQ((*exchange)->head.status, 200);
    std::vector<char> buffer(100);
    auto const heard = co_await (*exchange)->body().read_some(buffer);
    EXPECT_EQ(std::string(buffer.data(), *heard), "first");  // and only then the second is sent
    auto second = co_await connection.write("second");
    auto ended = co_await connection.end_request();
    EXPECT_EQ(*co_await (*exchange)->body().read_all(100), "second");
    EXPECT_TRUE(connection.reusable());
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/again", at("8080"))).body, "/again");
  });
}

TEST(Proxy, CarriesLargeBodiesWithBoundedMemory) {
  with_host([](Host& host) -> Awaitable {
    std::string big(3'000'000, 'x');
    for (std::size_t i = 0; i < big.size(); i += 1000)
      big[i] = static_cast<char>('a' + (i / 1000) % 26);
    auto connection = co_await host.visitor();
    // An echo is read while it is written, or both sides would hold each other back.
    async::TaskGroup writing(host.executor);
    auto begun = co_await connection.begin(
        {.method = "POST",
         .target = "/echo",
         .headers = at("8080", "Content-Length", std::to_string(big.size()))});
    auto write = [](http::Connection* to, std::string const* text) -> Awaitable {
      auto sent = co_await to->write(*text);
      auto ended = co_await to->end_request();
    };
    writing.spawn("write", write(&connection, &big));
    auto exchange = co_await connection.response();
    auto const back = co_await (*exchange)->body().read_all(4'000'000);
    EXPECT_EQ(back.value_or(""), big);
    co_await writing.join();
  });
}

TEST(Proxy, ARefusalBeforeTheEndOfTheBodyArrives) {
  with_host([](Host& host) -> Awaitable {
    auto const answer = co_await host.ask("POST", "/refuse", at("8080"), std::string(200'000, 'x'));
    EXPECT_EQ(answer.status, 413);
    EXPECT_EQ(answer.body, "too much");
  });
}

TEST(Proxy, KeepsAGuestConnectionForItsVisitorAlone) {
  with_host([](Host& host) -> Awaitable {
    auto one = co_await host.visitor();
    auto two = co_await host.visitor();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ((co_await host.ask_on(one, "GET", "/1", at("8080"))).status, 200);
      EXPECT_EQ((co_await host.ask_on(two, "GET", "/2", at("8080"))).status, 200);
    }
    EXPECT_EQ(host.worker.asked.size(), 2U);
    EXPECT_EQ(host.origin.peers[0], host.origin.peers[2]);
    EXPECT_NE(host.origin.peers[0], host.origin.peers[1]);
    EXPECT_EQ(host.proxy.visits().count(sandbox), 2U);
    // A body that cannot be sent twice goes over a fresh connection unless the agent is asked.
    EXPECT_EQ((co_await host.ask_on(one, "POST", "/3", at("8080"), "x")).status, 200);
    EXPECT_EQ(host.worker.asked.size(), 3U);
    host.route().epoch = 8;  // another life: the old connection is not used
    EXPECT_EQ((co_await host.ask_on(one, "GET", "/4", at("8080"))).status, 200);
    EXPECT_EQ(host.worker.asked.back().epoch, 8U);
    one.close();
    two.close();
    while (host.proxy.visits().count(sandbox) > 0)
      co_await async::sleep_for(milliseconds(1));
  });
}

TEST(Proxy, ForgetsNothingThatWasRevokedBetweenTwoRequests) {
  with_host([](Host& host) -> Awaitable {
    auto connection = co_await host.visitor();
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/x", agent())).status, 200);
    host.route().access_token_sha256 = sha256_hex("new");
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/x", agent())).status, 401);
    host.internal.routes.clear();
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/x", agent())).status, 502);
  });
}

TEST(Proxy, RelaysAnUpgradedConnectionByteForByte) {
  with_host([](Host& host) -> Awaitable {
    auto connection = co_await host.visitor();
    auto headers = at("8080", "Connection", "Upgrade");
    headers.add("Upgrade", "websocket");
    headers.add("Sec-WebSocket-Key", "k");
    auto exchange = co_await connection.start(
        {.method = "GET", .target = "/websocket", .headers = headers}, "");
    EXPECT_EQ((*exchange)->head.status, 101);
    EXPECT_EQ((*exchange)->head.headers.get("Upgrade"), "websocket");
    EXPECT_EQ((*exchange)->head.headers.get("Sec-WebSocket-Accept"), "x");
    std::string heard = connection.take_unread();
    std::string const frame("\x81\0\xff\r\n\r\n", 7);
    auto sent = co_await connection.stream().write_text(frame);
    std::array<char, 100> buffer{};
    while (heard.size() < 5 + frame.size()) {
      auto const count = co_await connection.stream().read_some(buffer);
      if (!count || *count == 0) break;
      heard.append(buffer.data(), *count);
    }
    EXPECT_EQ(heard, "hello" + frame);
    host.internal.change(sandbox, "ended");
    auto const end = co_await connection.stream().read_some(buffer);
    EXPECT_EQ(end.value_or(0), 0U);
    while (!host.origin.gone)
      co_await host.origin.go_on.wait();
  });
}

}  // namespace
}  // namespace proxy
