#include "proxy/doors.hpp"

#include "proxy/testing.hpp"

#include <gtest/gtest.h>

namespace proxy {
namespace {

using namespace testing;

TEST(Doors, OnlyKnownUsersMayUseTheInternalSocket) {
  async::run_test([]() -> Awaitable {
    TempDir const dir;
    auto executor = co_await asio::this_coro::executor;
    FakeApi handler;
    http::Server server(executor, handler);
    server.listen(only_users(*net::listen_unix(executor, dir.path + "/a.sock"), {::getuid() + 1}));
    server.listen(only_users(*net::listen_unix(executor, dir.path + "/b.sock"),
                             {::getuid() + 1, ::getuid()}));
    for (std::string const name : {"/a.sock", "/b.sock"}) {
      http::Connection connection(*co_await net::connect_unix(dir.path + name));
      auto exchange = co_await connection.start({.method = "GET", .target = "/"}, "");
      EXPECT_EQ(exchange.has_value(), name == "/b.sock");
    }
    co_await server.close(milliseconds(0));
  });
}

TEST(Doors, TlsVisitorsReachTheSameHandler) {
  async::run_test([]() -> Awaitable {
    TempDir const dir;
    auto executor = co_await asio::this_coro::executor;
    EXPECT_TRUE(tls::ensure_certificates(dir.path, "space.localhost"));
    FakeApi handler;
    http::Server server(executor, handler);
    TlsDoor door(executor,
                 *tls::ServerContext::load(dir.path + "/server.pem", dir.path + "/server.key"),
                 server);
    auto listener = *net::listen_tcp(executor, "127.0.0.1", 0);
    auto const port = listener->port();
    door.listen(std::move(listener));
    auto silent = *co_await net::connect_tcp("127.0.0.1", port);  // must not hold up the others
    auto raw = *co_await net::connect_tcp("127.0.0.1", port);
    auto stream = co_await tls::connect(*tls::ClientContext::make(dir.path + "/ca.pem"),
                                        std::move(raw),
                                        "49983-iabc.space.localhost",
                                        soon());
    EXPECT_TRUE(stream);
    http::Connection connection(std::move(*stream));
    auto exchange = co_await connection.start({.method = "GET", .target = "/x"}, "");
    EXPECT_EQ(*co_await (*exchange)->body().read_all(100), "api /x ");
    co_await door.close();
    co_await server.close(milliseconds(0));
  });
}

}  // namespace
}  // namespace proxy
