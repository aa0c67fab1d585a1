#include "proxy/proxy.hpp"

#include "async/testing.hpp"
#include "proxy/digest.hpp"
#include "proxy/doors.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>

#include <gtest/gtest.h>

namespace proxy {
namespace {

using std::chrono::milliseconds;
using Awaitable = asio::awaitable<void>;

base::Deadline soon() {
  return base::system_clock().in(milliseconds(8000));
}

struct TempDir {
  TempDir() {
    std::string name = "/tmp/proxy_test_XXXXXX";
    path = ::mkdtemp(name.data());
  }

  ~TempDir() { std::filesystem::remove_all(path); }

  TempDir(TempDir const&) = delete;
  TempDir& operator=(TempDir const&) = delete;
  std::string path;
};

/// The API's internal socket: routes from a table, and a stream of changes the test writes to.
class FakeInternal final : public http::Handler {
 public:
  explicit FakeInternal(asio::any_io_executor executor) : changed(std::move(executor)) {}

  Awaitable handle(http::Request& request, http::ResponseWriter& response) override {
    if (request.head.path() == "/changes") co_return co_await stream(response);
    ++asked;
    auto const query = *http::parse_query(request.head.query());
    for (auto const& [id, route] : routes) {
      bool const named = query[0].first == "sandbox" && query[0].second == id;
      bool const by_token =
          query[0].first == "token_sha256" && query[0].second == route.access_token_sha256;
      if (named || by_token) {
        auto sent = co_await response.send({.status = 200, .body = wire::encode_text(route)});
        co_return;
      }
    }
    auto sent =
        co_await response.send({.status = 404, .body = R"({"code":"not_found","message":"no"})"});
  }

  Awaitable stream(http::ResponseWriter& response) {
    ++streams;
    auto begun = co_await response.begin({.status = 200});
    changed.notify_all();
    std::size_t sent = lines.size();
    auto const life = streams;
    while (life == streams && !cut_stream) {
      while (sent < lines.size()) {
        auto const line = lines[sent++] + "\n";
        auto written = co_await response.write(line);
      }
      co_await changed.wait();
    }
    cut_stream = false;
  }

  void change(std::string const& sandbox, std::string const& what) {
    lines.push_back("\n" + wire::encode_text(wire::RouteChange{.sandbox = sandbox, .what = what}));
    changed.notify_all();
  }

  std::map<std::string, wire::Route> routes;
  std::vector<std::string> lines;
  int asked = 0;
  int streams = 0;
  bool cut_stream = false;
  async::Signal changed;
};

class FakeApi final : public http::Handler {
 public:
  Awaitable handle(http::Request& request, http::ResponseWriter& response) override {
    auto body = co_await request.body.read_all(1 << 20);
    last = request.head;
    auto sent = co_await response.send({.status = 200,
                                        .headers = {{"X-From", "api"}},
                                        .body = "api " + request.head.target + " " + *body});
  }

  http::RequestHead last;
};

/// A server in a guest. Whatever a test needs it to do.
class Origin final : public http::Handler {
 public:
  explicit Origin(asio::any_io_executor executor) : go_on(std::move(executor)) {}

  Awaitable handle(http::Request& request, http::ResponseWriter& response) override {
    ++requests;
    last = request.head;
    peers.push_back(request.connection.peer_name());
    auto const path = request.head.path();
    if (path == "/stream") co_return co_await stream(response, "text/plain");
    if (path == "/connect") co_return co_await stream(response, "application/connect+json");
    if (path == "/echo") co_return co_await echo(request, response);
    if (path == "/refuse") {
      auto sent = co_await response.send({.status = 413, .body = "too much"});
      co_return;
    }
    if (path == "/websocket") co_return co_await websocket(response);
    if (path == "/gzip") {
      http::Headers headers{
          {"Content-Encoding", "gzip"}, {"Set-Cookie", "a=1"}, {"Set-Cookie", "b=2"}};
      auto sent = co_await response.send(
          {.status = 200, .headers = std::move(headers), .body = std::string("\x1f\x8b\0\xff", 4)});
      co_return;
    }
    auto sent = co_await response.send(
        {.status = 200, .headers = {{"X-From", "origin"}}, .body = request.head.target});
  }

  Awaitable stream(http::ResponseWriter& response, std::string type) {
    auto begun = co_await response.begin({.status = 200, .headers = {{"Content-Type", type}}});
    auto first = co_await response.write(std::string("\0\0\0\0\x02{}", 7));
    while (!released && !gone) {
      auto left = response.wait_client_gone();
      auto right = go_on.wait();
      gone = co_await async::race(std::move(left), std::move(right)) == async::First::left;
    }
    if (gone) co_return go_on.notify_all();
    auto second = co_await response.write("second");
    auto finished = co_await response.finish();
  }

  /// Answers each piece of the body as it comes.
  Awaitable echo(http::Request& request, http::ResponseWriter& response) {
    auto begun = co_await response.begin({.status = 200});
    std::vector<char> buffer(16 * 1024);
    for (;;) {
      auto const count = co_await request.body.read_some(buffer);
      if (!count || *count == 0) break;
      auto sent = co_await response.write(std::string_view(buffer.data(), *count));
    }
    auto finished = co_await response.finish();
  }

  Awaitable websocket(http::ResponseWriter& response) {
    auto [stream, early] = response.upgrade();
    auto hello = co_await stream->write_text(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: "
        "Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello" +
        early);
    std::array<char, 1000> buffer{};
    for (;;) {
      auto const count = co_await stream->read_some(buffer);
      if (!count || *count == 0) break;
      auto sent = co_await stream->write_text(std::string_view(buffer.data(), *count));
    }
    gone = true;
    go_on.notify_all();
  }

  int requests = 0;
  bool released = false;
  bool gone = false;
  http::RequestHead last;
  std::vector<std::string> peers;
  async::Signal go_on;
};

/// dial.sock: connects to 127.0.0.1 at `ports[guest port]` and passes the descriptor, its connect()
/// under way.
class FakeWorker {
 public:
  Awaitable serve(net::Listener* listener) {
    async::TaskGroup lines(co_await asio::this_coro::executor);
    for (;;) {
      auto stream = co_await listener->accept();
      if (!stream) break;
      lines.spawn("line", serve_line(std::move(*stream)));
    }
    // Cancelled itself by now: the lines are to be waited for all the same.
    co_await asio::this_coro::throw_if_cancelled(false);
    lines.cancel();
    co_await lines.join();
  }

  Awaitable serve_line(net::Stream stream) {
    std::string text;
    std::array<char, 1000> buffer{};
    for (;;) {
      auto const count = co_await stream->read_some(buffer);
      if (!count || *count == 0) co_return;
      text.append(buffer.data(), *count);
      if (!text.ends_with('\n')) continue;
      asked.push_back(*wire::decode_text<wire::DialRequest>(std::exchange(text, {})));
      if (before_answer) before_answer();
      if (!refusal.code.empty()) {
        auto sent = co_await stream->write_text(wire::encode_text(refusal) + "\n");
        continue;
      }
      pass(stream->native_handle(), asked.back().port);
      if (hangs_up) co_return;
    }
  }

  void pass(int to, std::uint16_t guest_port) {
    os::Fd const fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(ports.contains(guest_port) ? ports[guest_port] : 1);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)::connect(fd.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address);
    std::string line =
        wire::encode_text(wire::DialReply{.ok = true, .code = {}, .message = {}}) + "\n";
    iovec vector{.iov_base = line.data(), .iov_len = line.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    int const raw = fd.get();
    std::memcpy(CMSG_DATA(header), &raw, sizeof raw);
    EXPECT_EQ(::sendmsg(to, &message, MSG_NOSIGNAL), static_cast<ssize_t>(line.size()));
  }

  std::map<std::uint16_t, std::uint16_t> ports;
  std::vector<wire::DialRequest> asked;
  wire::DialReply refusal;
  bool hangs_up = false;
  std::function<void()> before_answer;
};

std::string const sandbox = "iabcdefghij0123456789";

/// A whole host: API, worker, a guest with a server, and the proxy in front.
struct Host {
  explicit Host(asio::any_io_executor on, std::size_t per_sandbox_max = 100)
      : executor(on),
        internal(on),
        origin(on),
        internal_server(on, internal),
        api_server(on, api),
        origin_server(on, origin),
        proxy(on,
              {.domain = "space.localhost",
               .api_socket = dir.path + "/api.sock",
               .internal_socket = dir.path + "/internal.sock",
               .dial_socket = dir.path + "/dial.sock",
               .per_sandbox_max = per_sandbox_max}),
        server(on, proxy),
        group(on) {
    internal_server.listen(*net::listen_unix(on, dir.path + "/internal.sock"));
    api_server.listen(*net::listen_unix(on, dir.path + "/api.sock"));
    auto origin_listener = *net::listen_tcp(on, "127.0.0.1", 0);
    worker.ports[8080] = origin_listener->port();
    worker.ports[agent_port] = origin_listener->port();
    origin_server.listen(std::move(origin_listener));
    dial_listener = *net::listen_unix(on, dir.path + "/dial.sock");
    group.spawn("worker", worker.serve(dial_listener.get()));
    auto listener = *net::listen_tcp(on, "127.0.0.1", 0);
    port = listener->port();
    server.listen(std::move(listener));
    group.spawn("changes", proxy.follow_changes());
    wire::Route route;
    route.sandbox = sandbox;
    route.epoch = 7;
    route.state = "running";
    route.access_token_sha256 = sha256_hex("secret");
    internal.routes[sandbox] = route;
  }

  Awaitable close() {
    co_await server.close(milliseconds(0));
    dial_listener->close();
    group.cancel();
    co_await group.join();
    co_await origin_server.close(milliseconds(0));
    co_await api_server.close(milliseconds(0));
    co_await internal_server.close(milliseconds(0));
    EXPECT_TRUE(proxy.visits().sandboxes().empty());
  }

  wire::Route& route() { return internal.routes[sandbox]; }

  asio::awaitable<http::Connection> visitor() {
    auto stream = co_await net::connect_tcp("127.0.0.1", port);
    co_return http::Connection(std::move(*stream));
  }

  /// One request of a new visitor.
  asio::awaitable<http::Response> ask(std::string method,
                                      std::string target,
                                      http::Headers headers,
                                      std::string body = {}) {
    auto connection = co_await visitor();
    co_return co_await ask_on(
        connection, std::move(method), std::move(target), std::move(headers), std::move(body));
  }

  asio::awaitable<http::Response> ask_on(http::Connection& connection,
                                         std::string method,
                                         std::string target,
                                         http::Headers headers,
                                         std::string body = {}) {
    http::Response out;
    out.status = 0;
    http::RequestHead head{
        .method = std::move(method), .target = std::move(target), .headers = std::move(headers)};
    auto starting = connection.start(std::move(head), std::move(body));
    auto exchange = co_await async::with_deadline(soon(), std::move(starting));
    if (!exchange) {
      out.body = exchange.error().message();
      co_return out;
    }
    auto content = co_await (*exchange)->body().read_all(1 << 22);
    out.status = (*exchange)->head.status;
    out.headers = (*exchange)->head.headers;
    out.body = content ? *content : "broken: " + content.error().message();
    co_return out;
  }

  TempDir dir;
  asio::any_io_executor executor;
  FakeInternal internal;
  FakeApi api;
  Origin origin;
  FakeWorker worker;
  http::Server internal_server;
  http::Server api_server;
  http::Server origin_server;
  Proxy proxy;
  http::Server server;
  std::unique_ptr<net::Listener> dial_listener;
  std::uint16_t port = 0;
  async::TaskGroup group;
};

http::Headers at(std::string label_port, std::string more_name = {}, std::string more_value = {}) {
  http::Headers headers{{"Host", label_port + "-" + sandbox + ".space.localhost:7443"}};
  if (!more_name.empty()) headers.add(std::move(more_name), std::move(more_value));
  return headers;
}

http::Headers agent() {
  return at("49983", "X-Access-Token", "secret");
}

template <class F> void with_host(F test, std::size_t per_sandbox_max = 100) {
  async::run_test([&]() -> Awaitable {
    Host host(co_await asio::this_coro::executor, per_sandbox_max);
    co_await test(host);
    co_await host.close();
  });
}

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

    host.route().state = "pausing";
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

/// A guest that answers whatever it is asked with these bytes, then closes (or floods).
Awaitable hostile_guest(net::Listener* listener, std::string answer, int* served) {
  for (;;) {
    auto stream = co_await listener->accept();
    if (!stream) co_return;
    std::array<char, 4096> buffer{};
    auto heard = co_await (*stream)->read_some(buffer);
    ++*served;
    auto sent = co_await (*stream)->write_text(answer);
  }
}

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
                              "h2c\r\nKeep-Alive: 5\r\n"
                              "X-Kept: 2\r\nContent-Length: 1\r\n\r\na",
                              &served));
    auto const answer = co_await host.ask("GET", "/", at("9000"));
    std::string names;
    for (auto const& [name, value] : answer.headers)
      names += name + " ";
    EXPECT_EQ(names, "X-Kept Content-Length ");
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
    host.worker.refusal = {
        .ok = false, .code = "denied", .message = "not yet"};  // so that it is tried again
    host.worker.before_answer = [&host] { host.internal.change(sandbox, "ended"); };
    auto const reply = co_await host.ask_on(connection, "GET", "/", at("8080"));
    EXPECT_EQ(reply.status, 502);
    EXPECT_TRUE(reply.body.contains("The sandbox was not found")) << reply.body;
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
