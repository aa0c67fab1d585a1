#pragma once

#include "async/testing.hpp"
#include "proxy/digest.hpp"
#include "proxy/proxy.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <set>

#include <gtest/gtest.h>

/// For this folder's tests: a whole host with a proxy in front, of which only the proxy is real.
namespace proxy::testing {

using std::chrono::milliseconds;
using Awaitable = asio::awaitable<void>;

inline base::Deadline soon() {
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
    if (request.head.path() == "/wake") co_return co_await wake(request, response);
    if (request.head.path() == "/activity") {
      auto const body = co_await request.body.read_all(1 << 16);
      auto const said = wire::decode_text<wire::Activity>(body.value_or(""));
      if (said) used.insert(said->sandboxes.begin(), said->sandboxes.end());
      auto sent = co_await response.send({.status = said ? 204 : 400});
      co_return;
    }
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

  Awaitable wake(http::Request& request, http::ResponseWriter& response) {
    ++wakes;
    auto const query = *http::parse_query(request.head.query());
    co_await async::sleep_for(wake_delay);
    auto const route = routes.find(query[0].second);
    http::Response answer{.status = wake_status,
                          .body = R"({"code":"conflict","message":"its memory is damaged"})"};
    if (route != routes.end() && wake_status == 200) {
      route->second.state = "running";
      ++route->second.epoch;
      answer.body = wire::encode_text(route->second);
    }
    auto sent = co_await response.send(std::move(answer));
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
  int wakes = 0;
  int wake_status = 200;
  milliseconds wake_delay{50};
  std::set<std::string> used;
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
    if (path == "/hold" && holds > 0) {
      --holds;
      co_return co_await response.wait_client_gone();
    }
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
  int holds = 0;  // so many requests for /hold are never answered
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

inline std::string const sandbox = "iabcdefghij0123456789";

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
               .per_sandbox_max = per_sandbox_max,
               .wakes = {.per_minute = 3, .activity_every = milliseconds(50)},
               .worker_return = milliseconds(500),
               .change_patience = milliseconds(600)}),
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
    group.spawn("wakes", proxy.run_wakes());
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

inline http::Headers at(std::string label_port,
                        std::string more_name = {},
                        std::string more_value = {}) {
  http::Headers headers{{"Host", label_port + "-" + sandbox + ".space.localhost:7443"}};
  if (!more_name.empty()) headers.add(std::move(more_name), std::move(more_value));
  return headers;
}

inline http::Headers agent() {
  return at("49983", "X-Access-Token", "secret");
}

template <class F> void with_host(F test, std::size_t per_sandbox_max = 100) {
  async::run_test([&]() -> Awaitable {
    Host host(co_await asio::this_coro::executor, per_sandbox_max);
    co_await test(host);
    co_await host.close();
  });
}

/// A guest that answers whatever it is asked with these bytes, then closes (or floods).
inline Awaitable hostile_guest(net::Listener* listener, std::string answer, int* served) {
  for (;;) {
    auto stream = co_await listener->accept();
    if (!stream) co_return;
    std::array<char, 4096> buffer{};
    auto heard = co_await (*stream)->read_some(buffer);
    ++*served;
    auto sent = co_await (*stream)->write_text(answer);
  }
}

}  // namespace proxy::testing
