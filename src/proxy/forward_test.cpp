#include "proxy/testing.hpp"

#include <gtest/gtest.h>

namespace proxy {
namespace {

using namespace testing;

TEST(Proxy, AHostileGuestIsA502AndNothingElse) {
  std::string const flood = "HTTP/1.1 200 OK\r\n" + [] {
    std::string fields;
    for (int i = 0; i < 2000; ++i)
      fields += "a: b\r\n";
    return fields;
  }();
  std::vector<std::string> const answers = {
      "garbage\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 "
      "200 OK\r\n\r\nsmuggled",
      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\na",
      "HTTP/1.1 200 OK\nContent-Length: 1\n\na",
      "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 1\r\n\r\na",
      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",  // nobody
                                                                                        // asked
      "HTTP/1.1 200 OK\r\nX: " + std::string(200'000, 'a'),
      flood,
      "HTTP/1.1 999 Odd\r\n\r\n",
      "",
      "HTTP/1.1 200 OK\r\nContent-Le",
  };
  for (auto const& answer : answers) {
    with_host([&answer](Host& host) -> Awaitable {
      auto listener = *net::listen_tcp(host.executor, "127.0.0.1", 0);
      host.worker.ports[9000] = listener->port();
      async::TaskGroup guest(host.executor);
      int served = 0;
      guest.spawn("guest", hostile_guest(listener.get(), answer, &served));
      auto connection = co_await host.visitor();
      auto const reply = co_await host.ask_on(connection, "GET", "/", at("9000"));
      EXPECT_EQ(reply.status, 502) << answer.substr(0, 60);
      EXPECT_TRUE(reply.body.contains("\"code\":502")) << reply.body;
      EXPECT_EQ(served, 1);
      // The visitor's connection goes on and was not poisoned.
      EXPECT_EQ((co_await host.ask_on(connection, "GET", "/fine", at("8080"))).body, "/fine");
      listener->close();
      guest.cancel();
      co_await guest.join();
    });
  }
}

TEST(Proxy, HopByHopFieldsOfAGuestGoNoFurther) {
  with_host([](Host& host) -> Awaitable {
    auto listener = *net::listen_tcp(host.executor, "127.0.0.1", 0);
    host.worker.ports[9000] = listener->port();
    async::TaskGroup guest(host.executor);
    int served = 0;
    guest.spawn("guest",
                hostile_guest(listener.get(),
                              "HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nUpgrade: "
                              "h2c\r\nKeep-Alive: 5\r\nSet-Cookie: a=1; Domain=space.test\r\n"
                              "X-Kept: 2\r\nContent-Length: 1\r\n\r\na",
                              &served));
    auto const answer = co_await host.ask("GET", "/", at("9000"));
    std::string names;
    for (auto const& [name, value] : answer.headers)
      names += name + " ";
    EXPECT_EQ(names, "Set-Cookie X-Kept Content-Length ");
    EXPECT_EQ(answer.headers.get("Set-Cookie"), "a=1");
    listener->close();
    guest.cancel();
    co_await guest.join();
  });
}

TEST(Proxy, BytesBehindAnAnswerAreNeverTheNextVisitorsAnswer) {
  with_host([](Host& host) -> Awaitable {
    auto listener = *net::listen_tcp(host.executor, "127.0.0.1", 0);
    host.worker.ports[9000] = listener->port();
    async::TaskGroup guest(host.executor);
    int served = 0;
    guest.spawn("guest",
                hostile_guest(listener.get(),
                              "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 "
                              "OK\r\nContent-Length: 4\r\n\r\nevil",
                              &served));
    auto connection = co_await host.visitor();
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/", at("9000"))).body, "a");
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/fine", at("8080"))).body, "/fine");
    EXPECT_EQ((co_await host.ask_on(connection, "GET", "/", at("9000"))).body, "a");
    EXPECT_EQ(served, 2);
    listener->close();
    guest.cancel();
    co_await guest.join();
  });
}

TEST(Proxy, AnAnswerThatBreaksOffDoesNotLookComplete) {
  with_host([](Host& host) -> Awaitable {
    auto listener = *net::listen_tcp(host.executor, "127.0.0.1", 0);
    host.worker.ports[9000] = listener->port();
    async::TaskGroup guest(host.executor);
    int served = 0;
    guest.spawn("guest",
                hostile_guest(listener.get(),
                              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
                              &served));
    auto const reply = co_await host.ask("GET", "/", at("9000"));
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.body.starts_with("broken: ")) << reply.body;
    listener->close();
    guest.cancel();
    co_await guest.join();
  });
}

TEST(Proxy, AChangeCutsOpenStreamsAtOnce) {
  for (std::string const what : {"ended", "token_revoked", "suspended"}) {
    with_host([&what](Host& host) -> Awaitable {
      auto connection = co_await host.visitor();
      auto exchange =
          co_await connection.start({.method = "GET", .target = "/stream", .headers = agent()}, "");
      std::vector<char> buffer(100);
      auto first = co_await (*exchange)->body().read_some(buffer);
      EXPECT_EQ(first.value_or(0), 7U);
      while (host.internal.streams == 0)
        co_await host.internal.changed.wait();
      host.internal.change("iother", what);
      host.internal.change(sandbox, what);
      auto reading = (*exchange)->body().read_all(100);
      auto const rest = co_await async::with_deadline(base::system_clock().in(milliseconds(1000)),
                                                      std::move(reading));
      EXPECT_EQ(rest.error().code(), base::Code::unavailable) << what;  // broken off, not timed out
      while (!host.origin.gone)
        co_await host.origin.go_on.wait();
    });
  }
}

TEST(Proxy, AConnectStreamEndsWithAnErrorOfItsOwn) {
  with_host([](Host& host) -> Awaitable {
    auto connection = co_await host.visitor();
    auto exchange = co_await connection.start(
        {.method = "POST", .target = "/connect", .headers = agent()}, "{}");
    std::vector<char> buffer(100);
    auto first = co_await (*exchange)->body().read_some(buffer);
    while (host.internal.streams == 0)
      co_await host.internal.changed.wait();
    host.internal.change(sandbox, "ended");
    auto const rest = co_await (*exchange)->body().read_all(1000);
    EXPECT_TRUE(rest) << rest.error().message();
    EXPECT_TRUE(rest.value_or("").contains(
        R"({"error":{"code":"unavailable","message":"The sandbox was not found)"));
  });
}

TEST(Proxy, ARequestThatIsJustBeingDialledIsCutToo) {
  with_host([](Host& host) -> Awaitable {
    while (host.internal.streams == 0)
      co_await host.internal.changed.wait();
    auto connection = co_await host.visitor();
    host.worker.ports[8080] = 1;  // nobody listens there, so it is tried for a second
    host.worker.before_answer = [&host] {
      if (host.worker.asked.size() != 1) return;
      host.internal.routes.clear();
      host.internal.change(sandbox, "ended");
    };
    auto const reply = co_await host.ask_on(connection, "GET", "/", at("8080"));
    EXPECT_EQ(reply.status, 502);
    EXPECT_TRUE(reply.body.contains("The sandbox was not found")) << reply.body;
    EXPECT_LE(host.worker.asked.size(), 2U);
  });
}

TEST(Proxy, AfterALostChangeStreamEverySandboxIsCheckedAgain) {
  with_host([](Host& host) -> Awaitable {
    auto connection = co_await host.visitor();
    auto exchange =
        co_await connection.start({.method = "GET", .target = "/stream", .headers = agent()}, "");
    while (host.internal.streams == 0)
      co_await host.internal.changed.wait();
    auto const before = host.internal.streams;
    host.internal.cut_stream = true;
    host.internal.changed.notify_all();
    while (host.internal.streams == before)
      co_await host.internal.changed.wait();
    co_await async::sleep_for(milliseconds(50));
    std::vector<char> buffer(100);
    auto first = co_await (*exchange)->body().read_some(buffer);
    EXPECT_EQ(first.value_or(0), 7U);  // nothing has changed: the stream lives on
    host.route().access_token_sha256 = sha256_hex("another");  // and nobody tells
    host.internal.cut_stream = true;
    host.internal.changed.notify_all();
    auto const rest = co_await (*exchange)->body().read_all(100);
    EXPECT_FALSE(rest);
  });
}

TEST(Proxy, AStuckReaderDoesNotKeepADeadSandboxesConnection) {
  with_host([](Host& host) -> Awaitable {
    auto listener = *net::listen_tcp(host.executor, "127.0.0.1", 0);
    host.worker.ports[9000] = listener->port();
    async::TaskGroup guest(host.executor);
    int served = 0;
    std::string const endless = "HTTP/1.1 200 OK\r\n\r\n" + std::string(40'000'000, 'x');
    guest.spawn("guest", hostile_guest(listener.get(), endless, &served));
    auto connection = co_await host.visitor();
    auto exchange =
        co_await connection.start({.method = "GET", .target = "/", .headers = at("9000")}, "");
    co_await async::sleep_for(
        milliseconds(100));  // all buffers between here and there are full now
    EXPECT_EQ(host.proxy.visits().count(sandbox), 1U);
    host.internal.change(sandbox, "ended");
    auto const deadline = base::system_clock().in(milliseconds(3000));
    while (host.proxy.visits().count(sandbox) > 0 && base::system_clock().steady_now() < deadline)
      co_await async::sleep_for(milliseconds(5));
    EXPECT_EQ(host.proxy.visits().count(sandbox), 0U);
    listener->close();
    guest.cancel();
    co_await guest.join();
  });
}

TEST(Proxy, AVisitorThatLeavesEndsItsGuestConnection) {
  with_host([](Host& host) -> Awaitable {
    auto connection = co_await host.visitor();
    auto exchange = co_await connection.start(
        {.method = "GET", .target = "/stream", .headers = at("8080")}, "");
    EXPECT_TRUE(exchange);
    connection.close();
    while (!host.origin.gone)
      co_await host.origin.go_on.wait();
    while (host.proxy.visits().count(sandbox) > 0)
      co_await async::sleep_for(milliseconds(1));
  });
}

TEST(Proxy, LimitsTheConnectionsOfOneSandbox) {
  with_host(
      [](Host& host) -> Awaitable {
        auto one = co_await host.visitor();
        auto two = co_await host.visitor();
        EXPECT_EQ((co_await host.ask_on(one, "GET", "/", at("8080"))).status, 200);
        EXPECT_EQ((co_await host.ask_on(two, "GET", "/", at("8080"))).status, 200);
        auto const third = co_await host.ask("GET", "/", at("8080"));
        EXPECT_EQ(third.status, 429);
        EXPECT_TRUE(third.body.starts_with(R"({"sandboxId":")" + sandbox)) << third.body;
        EXPECT_EQ(
            (co_await host.ask_on(two, "GET", "/", at("49983", "X-Access-Token", "secret"))).status,
            200);  // its place, another port
      },
      2);
}

TEST(Proxy, WaitsForAServerThatIsJustStarting) {
  with_host([](Host& host) -> Awaitable {
    auto real = host.worker.ports[8080];
    host.worker.ports[8080] = 1;  // nobody listens there
    host.worker.before_answer = [&host, real] {
      if (host.worker.asked.size() == 3) host.worker.ports[8080] = real;
    };
    EXPECT_EQ((co_await host.ask("GET", "/late", at("8080"))).body, "/late");
    EXPECT_EQ(host.worker.asked.size(), 3U);
  });
}

TEST(Proxy, TheWorkersRefusalsHaveTheirAnswers) {
  struct Case {
    std::string code;
    int status;
    std::string text;
  };

  for (auto const& one : {Case{"not_found", 502, "was not found"},
                          Case{"conflict", 502, "was not found"},
                          Case{"exhausted", 429, "Too many"},
                          Case{"unavailable", 503, "does not answer"}}) {
    with_host([&one](Host& host) -> Awaitable {
      host.worker.refusal = {.ok = false, .code = one.code, .message = "no"};
      auto const reply = co_await host.ask("GET", "/", at("8080"));
      EXPECT_EQ(reply.status, one.status);
      EXPECT_TRUE(reply.body.contains(one.text)) << reply.body;
    });
  }
  with_host([](Host& host) -> Awaitable {
    host.worker.hangs_up = true;  // each line serves one dial: a kept one is stale the next time
    EXPECT_EQ((co_await host.ask("GET", "/1", at("8080"))).body, "/1");
    EXPECT_EQ((co_await host.ask("GET", "/2", at("8080"))).body, "/2");
    host.dial_listener->close();
    auto const reply = co_await host.ask("GET", "/", at("8080"));
    EXPECT_EQ(reply.status, 503);
    EXPECT_EQ(reply.headers.get("Retry-After"), "1");
  });
}

TEST(Proxy, AWorkerThatIsBeingRestartedIsWaitedFor) {
  with_host([](Host& host) -> Awaitable {
    host.dial_listener->close();
    auto restart = [](Host* at) -> Awaitable {
      co_await async::sleep_for(milliseconds(250));
      std::filesystem::remove(at->dir.path + "/dial.sock");
      at->dial_listener = *net::listen_unix(at->executor, at->dir.path + "/dial.sock");
      at->group.spawn("worker again", at->worker.serve(at->dial_listener.get()));
    };
    host.group.spawn("restart", restart(&host));
    auto const reply = co_await host.ask("POST", "/once", at("8080"));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(host.worker.asked.size(), 1U);
  });
}

TEST(Proxy, WithoutTheApiNothingIsLetThrough) {
  with_host([](Host& host) -> Awaitable {
    co_await host.internal_server.close(milliseconds(0));
    co_await host.api_server.close(milliseconds(0));
    for (auto const& headers : {agent(),
                                http::Headers{{"Host", "localhost"}, {"X-Access-Token", "secret"}},
                                http::Headers{{"Host", "api.space.localhost"}}}) {
      auto const reply = co_await host.ask("GET", "/x", headers);
      EXPECT_EQ(reply.status, 503);
      EXPECT_EQ(reply.headers.get("Retry-After"), "1");
      EXPECT_TRUE(reply.body.contains("\"code\":503")) << reply.body;
    }
    EXPECT_EQ(host.origin.requests, 0);
  });
}

TEST(Proxy, AVisitorCannotSmuggleASecondRequestPastTheChecks) {
  with_host([](Host& host) -> Awaitable {
    auto stream = *co_await net::connect_tcp("127.0.0.1", host.port);
    auto const name = "8080-" + sandbox + ".space.localhost";
    auto sent = co_await stream->write_text("POST / HTTP/1.1\r\nHost: " + name +
                                            "\r\nContent-Length: 4\r\nTransfer-Encoding: "
                                            "chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\nHost: " +
                                            name + "\r\n\r\n");
    std::string heard;
    std::array<char, 4096> buffer{};
    for (;;) {
      auto const count = co_await stream->read_some(buffer);
      if (!count || *count == 0) break;
      heard.append(buffer.data(), *count);
    }
    EXPECT_TRUE(heard.starts_with("HTTP/1.1 400 ")) << heard;
    EXPECT_EQ(host.origin.requests, 0);
    auto other = *co_await net::connect_tcp("127.0.0.1", host.port);
    auto broken = co_await other->write_text("POST /echo HTTP/1.1\r\nHost: " + name +
                                             "\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
    heard.clear();
    for (;;) {
      auto const count = co_await other->read_some(buffer);
      if (!count || *count == 0) break;
      heard.append(buffer.data(), *count);
    }
    EXPECT_TRUE(heard.starts_with("HTTP/1.1 400 ") || heard.starts_with("HTTP/1.1 200 ")) << heard;
    EXPECT_FALSE(heard.contains("0\r\n\r\n"))
        << heard;  // whatever was begun does not look complete
  });
}

}  // namespace
}  // namespace proxy
