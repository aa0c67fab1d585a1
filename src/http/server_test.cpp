#include "http/server.hpp"

#include "async/testing.hpp"
#include "http/client.hpp"

#include <gtest/gtest.h>

namespace http {
namespace {

using std::chrono::milliseconds;

base::Deadline soon() {
  return base::system_clock().in(milliseconds(5000));
}

/// Routes of a small application that shows each way of answering.
class Application final : public Handler {
 public:
  explicit Application(asio::any_io_executor executor) : go_on(std::move(executor)) {}

  asio::awaitable<void> handle(Request& request, ResponseWriter& response) override {
    ++requests;
    auto const path = std::string(request.head.path());
    if (path == "/echo")
      co_await echo(request, response);
    else if (path == "/stream")
      co_await stream(response);
    else if (path == "/empty")
      (void)co_await response.send({.status = 204});
    else if (path == "/ignore")
      (void)co_await response.send({.status = 403, .body = "no"});
    else if (path == "/throw")
      throw std::runtime_error("broken");
    else if (path == "/begin-throw")
      co_await begin_and_throw(response);
    else if (path == "/upgrade")
      co_await upgrade(response);
    else if (path == "/wait")
      co_await wait(response);
    else if (path == "/length")
      co_await with_length(response);
    else if (path == "/inject")
      (void)co_await response.send({.status = 200, .headers = {{"X", "a\r\nY: b"}}});
    else if (path != "/nothing")
      (void)co_await response.send(
          {.status = 200, .headers = {{"X-Method", request.head.method}}, .body = path});
  }

  asio::awaitable<void> echo(Request& request, ResponseWriter& response) {
    auto body = co_await request.body.read_all(1 << 20);
    if (!body) {
      (void)co_await response.send(
          {.status = base::http_status_of(body.error().code()), .body = body.error().message()});
      co_return;
    }
    (void)co_await response.send({.status = 200, .body = std::move(*body)});
  }

  asio::awaitable<void> stream(ResponseWriter& response) {
    (void)co_await response.begin({.status = 200});
    (void)co_await response.write("first");
    while (!released)
      co_await go_on.wait();
    (void)co_await response.write("second");
    (void)co_await response.finish();
  }

  asio::awaitable<void> begin_and_throw(ResponseWriter& response) {
    (void)co_await response.begin({.status = 200});
    (void)co_await response.write("half");
    throw std::runtime_error("broken");
  }

  asio::awaitable<void> with_length(ResponseWriter& response) {
    (void)co_await response.begin({.status = 200, .headers = {{"Content-Length", "4"}}});
    auto const too_long = co_await response.write("12345");
    EXPECT_FALSE(too_long);
    auto const too_short = co_await response.finish();
    EXPECT_FALSE(too_short);
    (void)co_await response.write("1234");
    (void)co_await response.finish();
  }

  asio::awaitable<void> upgrade(ResponseWriter& response) {
    auto [stream, early] = response.upgrade();
    (void)co_await stream->write_text("HTTP/1.1 101 Switching Protocols\r\n\r\n" + early);
    std::array<char, 100> buffer{};
    for (;;) {
      auto const count = co_await stream->read_some(buffer);
      if (!count || *count == 0) co_return;
      (void)co_await stream->write_text(std::string_view(buffer.data(), *count));
    }
  }

  asio::awaitable<void> wait(ResponseWriter& response) {
    (void)co_await response.begin({.status = 200});
    co_await response.wait_client_gone();
    ++gone;
    go_on.notify_all();
  }

  int requests = 0;
  int gone = 0;
  bool released = false;
  async::Signal go_on;
};

/// A server on an in-memory connection, driven with raw bytes.
struct Wire {
  Wire(asio::any_io_executor executor, Limits limits = {})
      : application(executor), server(executor, application, limits) {
    auto [near, far] = net::make_pipe(executor);
    client = std::move(near);
    server.spawn(std::move(far));
  }

  asio::awaitable<void> say(std::string bytes) {
    auto const sent = co_await client->write_text(bytes);
    EXPECT_TRUE(sent);
  }

  /// What arrives until `end` has been seen, or the end of the connection.
  asio::awaitable<std::string> hear(std::string end = "\n--never--\n") {
    std::string out = std::exchange(kept, {});
    std::array<char, 4096> buffer{};
    for (;;) {
      auto const at = out.find(end);
      if (at != std::string::npos) {
        kept = out.substr(at + end.size());
        co_return out.substr(0, at + end.size());
      }
      auto const count = co_await client->read_some(buffer);
      if (!count || *count == 0) co_return out;
      out.append(buffer.data(), *count);
    }
  }

  Application application;
  Server server;
  net::Stream client;
  std::string kept;
};

template <class F> void with_wire(F test, Limits limits = {}) {
  async::run_test([&]() -> asio::awaitable<void> {
    Wire wire(co_await asio::this_coro::executor, limits);
    co_await test(wire);
    co_await wire.server.close(milliseconds(0));
  });
}

using Awaitable = asio::awaitable<void>;

TEST(Server, AnswersRequestsOneAfterTheOtherOnAKeptConnection) {
  with_wire([](Wire& wire) -> Awaitable {
    for (int i = 0; i < 3; ++i) {
      co_await wire.say("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
      EXPECT_EQ(co_await wire.hear("hello"), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    }
    co_await wire.say(
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
        "chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n");
    EXPECT_EQ(co_await wire.hear("hello"), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    co_await wire.say("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(
        co_await wire.hear(),
        "HTTP/1.1 200 OK\r\nX-Method: GET\r\nConnection: close\r\nContent-Length: 2\r\n\r\n/a");
  });
}

TEST(Server, KeepsPipelinedRequestsInOrder) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say(
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1"
        "POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nunread"
        "\r\nGET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /late HTTP/1.1\r\nHost: "
        "a\r\n\r\n");
    auto const all = co_await wire.hear();
    EXPECT_TRUE(
        all.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 403 "
                        "Forbidden\r\nContent-Length: 2\r\n\r\nnoHTTP/1.1 200 OK"));
    EXPECT_TRUE(all.ends_with("/c"));
    EXPECT_EQ(wire.application.requests, 3);
  });
}

TEST(Server, StreamsChunksAsTheyAreWritten) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(co_await wire.hear("5\r\nfirst\r\n"),
              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    wire.application.released = true;
    wire.application.go_on.notify_all();
    EXPECT_EQ(co_await wire.hear("0\r\n\r\n"), "6\r\nsecond\r\n0\r\n\r\n");
    co_await wire.say("GET /stream HTTP/1.0\r\n\r\n");
    EXPECT_EQ(co_await wire.hear(), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirstsecond");
  });
}

TEST(Server, SendsNoBodyWhereThereIsNone) {
  with_wire([](Wire& wire) -> Awaitable {
    wire.application.released = true;
    co_await wire.say("HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(co_await wire.hear("\r\n\r\n"),
              "HTTP/1.1 200 OK\r\nX-Method: HEAD\r\nContent-Length: 4\r\n\r\n");
    co_await wire.say("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(co_await wire.hear("\r\n\r\n"),
              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    co_await wire.say("GET /empty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(co_await wire.hear(), "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
  });
}

TEST(Server, InvitesABodyOnlyWhenItIsRead) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say(
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(co_await wire.hear("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    co_await wire.say("hi");
    EXPECT_EQ(co_await wire.hear("hi"), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    co_await wire.say(
        "POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    EXPECT_EQ(co_await wire.hear(),
              "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
  });
}

TEST(Server, AFailedHandlerIsA500OrACutStream) {
  with_wire([](Wire& wire) -> Awaitable {
    for (std::string const path : {"/throw", "/nothing", "/inject"}) {
      co_await wire.say("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n");
      EXPECT_EQ(co_await wire.hear("}"),
                "HTTP/1.1 500 Internal Server Error\r\nContent-Type: "
                "application/json\r\nContent-Length: 39\r\n\r\n"
                R"({"code":500,"message":"internal error"})");
    }
    co_await wire.say("GET /begin-throw HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_TRUE((co_await wire.hear()).ends_with("4\r\nhalf\r\n"));  // and no last chunk
  });
}

TEST(Server, HoldsAStreamToItsContentLength) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say("GET /length HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(co_await wire.hear("1234"), "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n1234");
  });
}

TEST(Server, MalformedRequestsGetAJsonAnswerAndTheConnectionEnds) {
  struct Case {
    std::string bytes;
    std::string status;
  };

  std::vector<Case> const cases = {
      {"GET / HTTP/1.1\r\n\r\n", "400"},
      {"nonsense\r\n\r\n", "400"},
      {"GET / HTTP/1.1\nHost: a\n\n", "400"},
      {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: "
       "chunked\r\n\r\n0\r\n\r\n",
       "400"},
      {"GET /" + std::string(17'000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", "414"},
      {"GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(70'000, 'a'), "431"},
  };
  for (auto const& one : cases) {
    with_wire([&one](Wire& wire) -> Awaitable {
      co_await wire.say(one.bytes);
      auto const answer = co_await wire.hear();
      EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + one.status)) << answer;
      EXPECT_TRUE(answer.contains("\r\nConnection: close\r\n")) << answer;
      EXPECT_TRUE(answer.contains(R"({"code":)" + one.status + R"(,"message":")")) << answer;
      EXPECT_EQ(wire.application.requests, 0);
    });
  }
}

TEST(Server, ABrokenChunkedBodyEndsTheConnection) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say(
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nGET /evil "
        "HTTP/1.1\r\nHost: a\r\n\r\n");
    auto const answer = co_await wire.hear();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400")) << answer;
    EXPECT_EQ(wire.application.requests, 1);
  });
}

TEST(Server, ABodyOverItsLimitIsTooLarge) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000000\r\n\r\n");
    async::TaskGroup group(co_await asio::this_coro::executor);
    auto flood = [](net::ByteStream* to) -> Awaitable {
      std::string const block(60'000, 'x');
      for (int i = 0; i < 40; ++i) {
        auto const sent = co_await to->write_text(block);
        if (!sent) co_return;
      }
    };
    group.spawn("flood", flood(wire.client.get()));
    auto const answer = co_await wire.hear("bytes");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 413")) << answer;
    group.cancel();
    co_await group.join();
  });
}

TEST(Server, SlowHeadsAndIdleConnectionsAreClosed) {
  Limits limits;
  limits.head_timeout = milliseconds(30);
  limits.idle_timeout = milliseconds(60);
  for (std::string const bytes : {"", "GET / HT"}) {
    with_wire(
        [&bytes](Wire& wire) -> Awaitable {
          co_await wire.say(bytes);
          EXPECT_EQ(co_await wire.hear(), "");
          EXPECT_EQ(wire.application.requests, 0);
        },
        limits);
  }
}

TEST(Server, NoticesAClientThatLeftAStream) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say("GET /wait HTTP/1.1\r\nHost: a\r\n\r\nGET /pipelined");
    (void)co_await wire.hear("\r\n\r\n");
    EXPECT_EQ(wire.application.gone, 0);
    wire.client->close();
    while (wire.application.gone == 0)
      co_await wire.application.go_on.wait();
  });
}

TEST(Server, GivesTheConnectionAwayWithItsEarlyBytes) {
  with_wire([](Wire& wire) -> Awaitable {
    co_await wire.say(
        "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nearly");
    EXPECT_EQ(co_await wire.hear("early"), "HTTP/1.1 101 Switching Protocols\r\n\r\nearly");
    co_await wire.say("ping");
    EXPECT_EQ(co_await wire.hear("ping"), "ping");
  });
}

TEST(Server, CloseEndsIdleConnectionsAtOnceAndRunningOnesAfterTheGrace) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Application application(executor);
    Server server(executor, application);
    auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
    auto const port = (*listener)->port();
    server.listen(std::move(*listener));
    auto idle = co_await net::connect_tcp("127.0.0.1", port);
    Connection busy(*co_await net::connect_tcp("127.0.0.1", port));
    auto exchange = co_await busy.start({.method = "GET", .target = "/stream"}, "");
    EXPECT_TRUE(exchange);
    while (server.connections() < 2)
      co_await async::sleep_for(milliseconds(1));
    co_await server.close(milliseconds(20));
    EXPECT_EQ(server.connections(), 0U);
    std::array<char, 10> buffer{};
    auto const end = co_await (*idle)->read_some(buffer);
    EXPECT_EQ(end.value_or(0), 0U);
    auto const body = co_await (*exchange)->body().read_all(100);
    EXPECT_EQ(body.error().code(), base::Code::unavailable);  // cut, not complete
    auto refused = co_await net::connect_tcp("127.0.0.1", port);
    EXPECT_FALSE(refused);
  });
}

TEST(Server, ClosesOneConnectionTooMany) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Application application(executor);
    Limits limits;
    limits.connections_max = 1;
    Server server(executor, application, limits);
    auto [first, first_far] = net::make_pipe(executor);
    auto [second, second_far] = net::make_pipe(executor);
    server.spawn(std::move(first_far));
    co_await async::sleep_for(milliseconds(1));
    server.spawn(std::move(second_far));
    std::array<char, 10> buffer{};
    EXPECT_EQ((co_await second->read_some(buffer)).value_or(1), 0U);
    EXPECT_EQ(server.connections(), 1U);
    co_await server.close(milliseconds(0));
  });
}

TEST(Sse, OneEventCannotBecomeTwo) {
  class Events final : public Handler {
   public:
    Awaitable handle(Request&, ResponseWriter& response) override {
      (void)co_await sse_begin(response);
      (void)co_await sse_event(response, "7\nid: 8", "a", "one\r\ntwo\n\nevent: x");
      (void)co_await sse_comment(response, "alive\ndata: no");
      (void)co_await response.finish();
    }
  };

  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Events events;
    Server server(executor, events);
    auto [near, far] = net::make_pipe(executor);
    server.spawn(std::move(far));
    Connection connection(std::move(near));
    auto exchange = co_await connection.start({.method = "GET", .target = "/"}, "");
    EXPECT_EQ((*exchange)->head.headers.get("content-type"), "text/event-stream");
    auto const body = co_await (*exchange)->body().read_all(1000);
    EXPECT_EQ(*body,
              "id: 7id: 8\nevent: a\ndata: one\ndata: two\ndata: \ndata: event: x\n\n: alivedata: "
              "no\n\n");
    co_await server.close(milliseconds(0));
  });
}

/// Client tests speak to the same application over TCP.
struct Host {
  explicit Host(asio::any_io_executor executor)
      : application(executor), server(executor, application) {
    auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
    port = (*listener)->port();
    server.listen(std::move(*listener));
  }

  Client::Connect connect() {
    return [this] {
      ++connects;
      return net::connect_tcp("127.0.0.1", port);
    };
  }

  Application application;
  Server server;
  std::uint16_t port = 0;
  int connects = 0;
};

TEST(Client, ReusesItsConnectionAndHeedsItsLimit) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Host host(executor);
    Client client(executor, host.connect(), 2);
    for (int i = 0; i < 5; ++i) {
      auto const answer =
          co_await client.request({.method = "POST", .target = "/echo"}, "hello", soon());
      EXPECT_EQ(answer->body, "hello");
    }
    EXPECT_EQ(host.connects, 1);
    auto const big = co_await client.request(
        {.method = "POST", .target = "/echo"}, std::string(500'000, 'x'), soon());
    EXPECT_EQ(big->body.size(), 500'000U);
    auto const limited =
        co_await client.request({.method = "POST", .target = "/echo"}, "hello", soon(), 4);
    EXPECT_EQ(limited.error().code(), base::Code::too_large);
    auto const empty =
        co_await client.request({.method = "DELETE", .target = "/empty"}, "", soon());
    EXPECT_EQ(empty->status, 204);
    auto const head = co_await client.request({.method = "HEAD", .target = "/x"}, "", soon());
    EXPECT_EQ(head->headers.get("content-length"), "2");
    EXPECT_EQ(head->body, "");

    async::TaskGroup group(executor);
    int done = 0;
    auto one = [](Client* with, int* count) -> Awaitable {
      auto const answer = co_await with->request({.method = "GET", .target = "/x"}, "", soon());
      if (answer && answer->body == "/x") ++*count;
    };
    for (int i = 0; i < 20; ++i)
      group.spawn("one", one(&client, &done));
    co_await group.join();
    EXPECT_EQ(done, 20);
    EXPECT_LE(host.connects, 4);  // the one that broke off its answer was not kept
    co_await host.server.close(milliseconds(0));
  });
}

TEST(Client, GivesUpAtTheDeadline) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Host host(executor);
    Client client(executor, host.connect());
    auto const answer = co_await client.request(
        {.method = "GET", .target = "/stream"}, "", base::system_clock().in(milliseconds(30)));
    EXPECT_EQ(answer.error().code(), base::Code::deadline_exceeded);
    co_await host.server.close(milliseconds(0));
  });
}

TEST(Client, ReadsAStreamAsItComes) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Host host(executor);
    Client client(executor, host.connect());
    auto exchange = co_await client.stream({.method = "GET", .target = "/stream"}, "", soon());
    std::array<char, 100> buffer{};
    auto const first = co_await (*exchange)->body().read_some(buffer);
    EXPECT_EQ(std::string(buffer.data(), *first), "first");
    host.application.released = true;
    host.application.go_on.notify_all();
    auto const rest = co_await (*exchange)->body().read_all(100);
    EXPECT_EQ(*rest, "second");
    co_await host.server.close(milliseconds(0));
  });
}

TEST(Client, StreamsARequestBody) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Host host(executor);
    Connection connection(*co_await net::connect_tcp("127.0.0.1", host.port));
    for (bool const chunked : {true, false}) {
      RequestHead head{.method = "PUT", .target = "/echo", .headers = {}};
      if (!chunked) head.headers.add("Content-Length", "6");
      auto begun = co_await connection.begin(std::move(head));
      EXPECT_TRUE(begun);
      for (std::string const part : {"abc", "", "def"}) {
        auto const written = co_await connection.write(part);
        EXPECT_TRUE(written);
      }
      auto exchange = co_await connection.finish_request();
      EXPECT_TRUE(exchange);
      EXPECT_FALSE(connection.reusable());
      EXPECT_EQ(*co_await (*exchange)->body().read_all(100), "abcdef");
      EXPECT_TRUE(connection.reusable());
    }
    co_await host.server.close(milliseconds(0));
  });
}

/// A server that answers each connection with the next of the given texts and closes it.
Awaitable serve_raw(net::Listener* listener, std::vector<std::string> answers, int* served) {
  for (auto const& answer : answers) {
    auto stream = co_await listener->accept();
    if (!stream) co_return;
    std::array<char, 4096> buffer{};
    (void)co_await (*stream)->read_some(buffer);
    ++*served;
    (void)co_await (*stream)->write_text(answer);
  }
}

async::Task<Response> ask_raw(std::string method, std::vector<std::string> answers, int* served) {
  auto executor = co_await asio::this_coro::executor;
  auto listener = net::listen_tcp(executor, "127.0.0.1", 0);
  async::TaskGroup group(executor);
  group.spawn("raw", serve_raw(listener->get(), std::move(answers), served));
  auto const port = (*listener)->port();
  Client client(executor, [port] { return net::connect_tcp("127.0.0.1", port); });
  auto first = co_await client.request({.method = method, .target = "/"}, "", soon());
  (*listener)->close();
  group.cancel();
  co_await group.join();
  co_return first;
}

TEST(Client, HostileAnswersAreErrorsNotMemory) {
  async::run_test([]() -> Awaitable {
    int served = 0;
    for (std::string const& answer : {
             std::string(""),
             std::string("garbage\r\n\r\n"),
             std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"),
             std::string("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: "
                         "chunked\r\n\r\n0\r\n\r\n"),
             std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
             "HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'),
             std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"),
         }) {
      auto const result = co_await ask_raw("POST", {answer}, &served);
      EXPECT_FALSE(result) << answer.substr(0, 100);
    }
    std::string interim;
    for (int i = 0; i < 100; ++i)
      interim += "HTTP/1.1 100 Continue\r\n\r\n";
    auto const endless = co_await ask_raw("GET", {interim}, &served);
    EXPECT_FALSE(endless);
    auto const fine = co_await ask_raw(
        "GET", {"HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end"}, &served);
    EXPECT_EQ(fine->body, "to the end");
  });
}

TEST(Client, RepeatsOnlyWhatMayBeRepeated) {
  // The first answer keeps the connection, which the server then closes without a word.
  std::string const keep = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1";
  for (std::string const method : {"GET", "POST"}) {
    async::run_test([&]() -> Awaitable {
      auto executor = co_await asio::this_coro::executor;
      auto [near, far] = net::make_pipe(
          executor);  // a pipe has no descriptor, so its end is not noticed before use
      std::vector<net::Stream> streams;
      auto [near2, far2] = net::make_pipe(executor);
      streams.push_back(std::move(near2));
      streams.push_back(std::move(near));
      auto connect = [&streams]() -> async::Task<net::Stream> {
        auto next = std::move(streams.back());
        streams.pop_back();
        co_return next;
      };
      Client client(executor, connect);
      auto serve = [](net::ByteStream* stream, std::string answer) -> Awaitable {
        std::array<char, 4096> buffer{};
        (void)co_await stream->read_some(buffer);
        (void)co_await stream->write_text(answer);
      };
      async::TaskGroup group(executor);
      group.spawn("first", serve(far.get(), keep));
      auto const first = co_await client.request({.method = method, .target = "/"}, "", soon());
      EXPECT_EQ(first->body, "1");
      far->close();
      group.spawn("second", serve(far2.get(), keep));
      auto const second = co_await client.request({.method = method, .target = "/"}, "", soon());
      EXPECT_EQ(second.has_value(), method == "GET");
      if (!second) EXPECT_EQ(second.error().code(), base::Code::unavailable);
      far2->close();
      group.cancel();
      co_await group.join();
    });
  }
}

TEST(Client, NeverSendsALineBreakInAField) {
  async::run_test([]() -> Awaitable {
    auto executor = co_await asio::this_coro::executor;
    Host host(executor);
    Client client(executor, host.connect());
    RequestHead const bad_heads[] = {
        {.method = "GET", .target = "/a b", .headers = {}},
        {.method = "GET", .target = "/a\r\nX: y", .headers = {}},
        {.method = "GET x", .target = "/", .headers = {}},
        {.method = "GET", .target = "/", .headers = {{"X", "a\nb"}}},
        {.method = "GET", .target = "/", .headers = {{"X y", "a"}}},
    };
    for (auto const& head : bad_heads) {
      auto const answer = co_await client.request(head, "", soon());
      EXPECT_EQ(answer.error().code(), base::Code::invalid_argument);
    }
    EXPECT_EQ(host.application.requests, 0);
    co_await host.server.close(milliseconds(0));
  });
}

}  // namespace
}  // namespace http
