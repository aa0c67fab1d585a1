#pragma once

#include "async/testing.hpp"
#include "gateway/gateway.hpp"
#include "gateway/http1.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

/// A gateway between a fake guest and a fake internet, for tests of what passes it.
namespace gateway::testing {

using namespace std::chrono_literals;

/// Answers every A query from a table, on loopback: the world's name servers.
class FakeDns {
 public:
  explicit FakeDns(std::map<std::string, std::string> names) : names_(std::move(names)) {
    socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    socklen_t size = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    timeval const patience{0, 50'000};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    thread_ = std::jthread([this](std::stop_token const& stop) { serve(stop); });
  }

  ~FakeDns() {
    thread_.request_stop();
    thread_.join();
    ::close(socket_);
  }

  std::string server() const { return fmt::format("127.0.0.1:{}", port_); }

  int queries() const { return queries_; }

  std::atomic<bool> failing = false;

 private:
  void serve(std::stop_token const& stop) {
    std::array<char, 512> query{};
    sockaddr_in from{};
    while (!stop.stop_requested()) {
      socklen_t size = sizeof from;
      auto const got = ::recvfrom(
          socket_, query.data(), query.size(), 0, reinterpret_cast<sockaddr*>(&from), &size);
      if (got < 17) continue;
      ++queries_;
      std::string name;
      std::size_t at = 12;
      while (query.at(at) != 0) {
        auto const length = static_cast<std::size_t>(query.at(at));
        name += (name.empty() ? "" : ".") + std::string(&query.at(at + 1), length);
        at += length + 1;
      }
      bool const wants_a = query.at(at + 2) == 1;
      std::string reply(query.data(), at + 5);
      bool const known = names_.contains(name);
      reply[2] = '\x81';
      reply[3] = known ? '\x80' : '\x83';
      reply.replace(6, 6, std::string("\0\0\0\0\0\0", 6));
      if (failing) {
        reply[3] = '\x82';
      } else if (known && wants_a) {
        reply[7] = 1;
        in_addr parsed{};
        inet_pton(AF_INET, names_.at(name).c_str(), &parsed);
        reply += std::string("\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4", 12) +
                 std::string(reinterpret_cast<char const*>(&parsed), 4);
      }
      ::sendto(socket_, reply.data(), reply.size(), 0, reinterpret_cast<sockaddr*>(&from), size);
    }
  }

  std::map<std::string, std::string> names_;
  int socket_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> queries_ = 0;
  std::jthread thread_;
};

struct Records final : DecisionSink {
  void report(wire::GatewayDecision decision) override { all.push_back(std::move(decision)); }

  bool has(std::string_view kind, std::string_view reason) const {
    return std::ranges::any_of(
        all, [&](auto const& one) { return one.kind == kind && one.reason == reason; });
  }

  std::vector<wire::GatewayDecision> all;
};

/// A server of the open internet: records what arrived, answers with a script.
class Origin {
 public:
  Origin(asio::any_io_executor executor, tls::Minter* minter) : minter_(minter), tasks_(executor) {
    listener_ = net::listen_tcp(executor, "127.0.0.1", 0).value();
    tasks_.spawn("origin", accept());
  }

  std::uint16_t port() const { return listener_->port(); }

  asio::awaitable<void> close() {
    listener_->close();
    tasks_.cancel();
    co_await tasks_.join();
  }

  std::string host = "api.corp.example";
  std::string received;
  int connections = 0;
  std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nAlt-Svc: h3=\":443\"\r\n\r\nhello";
  std::string second_part;  // sent after a pause
  bool close_after = false;

 private:
  asio::awaitable<void> accept() {
    while (true) {
      auto stream = co_await listener_->accept();
      if (!stream) co_return;
      ++connections;
      tasks_.spawn("connection", serve(std::move(*stream)));
    }
  }

  asio::awaitable<void> serve(net::Stream stream) {
    if (minter_) {
      auto secured = co_await minter_->accept(host, std::move(stream), base::system_clock().in(5s));
      if (!secured) co_return;
      stream = std::move(*secured);
    }
    std::array<char, 8192> buffer;
    while (true) {
      auto const got = co_await stream->read_some(buffer);
      if (!got || *got == 0) co_return;
      received.append(buffer.data(), *got);
      auto sent = co_await stream->write_text(answer);
      if (sent && !second_part.empty()) {
        co_await async::sleep_for(300ms);
        sent = co_await stream->write_text(second_part);
      }
      if (!sent || close_after) co_return;
    }
  }

  tls::Minter* minter_;
  std::unique_ptr<net::Listener> listener_;
  async::TaskGroup tasks_;
};

inline asio::awaitable<void> fake_broker(net::Stream stream,
                                         std::vector<std::string>* asked,
                                         std::string const* value,
                                         int* busy) {
  std::array<char, 8192> buffer;
  while (true) {
    auto const got = co_await stream->read_some(buffer);
    if (!got || *got == 0) co_return;
    std::string const line(buffer.data(), *got);
    asked->push_back(line);
    if (value->empty()) co_return;  // it dies of the question
    auto const use = wire::decode_text<wire::Use>(line.substr(0, line.find('\n')));
    if (use && use->done) continue;
    wire::Used used;
    bool const second = use && use->credential == "second-key";
    bool const of_level = use && use->scheme == "budget";
    used.held = of_level;
    used.ok = of_level ||
              (use && (use->credential == "llm-key" || second) && use->path == "/v1/messages");
    used.code = used.ok ? "" : "denied";
    if (*busy > 0) {
      --*busy;
      used.ok = false;
      used.code = "exhausted";
    }
    used.message = used.ok ? "" : "the credential is not bound to this request";
    used.header = second ? "x-second-key" : "x-api-key";
    used.value = used.ok ? *value : "";
    if (used.ok && second) used.value += "-and-more";
    used.id = of_level ? use->credential : second ? "c2" : "c1";
    used.question = use ? use->question : 0;
    auto const sent = co_await stream->write_text(wire::encode_text(used) + "\n");
    if (!sent) co_return;
  }
}

/// A gateway between a fake guest and a fake internet, all on loopback.
class Rig {
 public:
  explicit Rig(asio::any_io_executor on,
               std::string policy_rules,
               std::string posture = "allowlist",
               std::string binding = "strict",
               std::uint32_t policy_max_age_s = 60)
      : executor(on),
        world(tls::Minter::make("world").value()),
        origin(on, world.get()),
        plain(on, nullptr),
        tasks(on) {
    auto [ours, theirs] = net::make_pipe(on);
    tasks.spawn("broker", fake_broker(std::move(theirs), &asked, &credential, &busy));
    gateway =
        std::make_unique<Gateway>(on, records, std::make_unique<BrokerClient>(on, std::move(ours)));
    tasks.spawn("credentials", gateway->broker()->run());
    wire::GatewayStart start;
    start.sandbox = "i1";
    start.policy = policy(policy_rules, posture, binding, 1);
    start.resolvers = {dns.server()};
    start.policy_max_age_s = policy_max_age_s;
    start.trusted_ca_pem = world->authority_pem();
    start.admitted_networks = {"127.0.0.1/32"};
    auto started = gateway->start(start);
    EXPECT_TRUE(started) << started.error().message();
    if (started) ca_pem = started->authority_pem;
  }

  wire::EffectivePolicy policy(std::string rules,
                               std::string const& posture,
                               std::string const& binding,
                               std::uint64_t generation) {
    for (auto const& [key, value] :
         {std::pair<std::string, std::uint16_t>{"TLS", origin.port()}, {"PLAIN", plain.port()}})
      for (auto at = rules.find(key); at != std::string::npos; at = rules.find(key))
        rules.replace(at, key.size(), std::to_string(value));
    auto text = wire::decode_text<wire::Policy>(
        fmt::format(R"({{"posture":"{}","binding":"{}","rules":[{}]}})", posture, binding, rules));
    EXPECT_TRUE(text) << text.error().message();
    return {generation, {{"sandbox", text.value()}}};
  }

  /// A connection of the guest to `name` (by its synthetic address).
  net::Stream connect(std::string const& name, std::uint16_t port) {
    auto const address = gateway->names().address_of(domain::HostName::parse(name).value()).value();
    return connect_to(address, port);
  }

  net::Stream connect_to(std::uint32_t address, std::uint16_t port) {
    auto [guest, ours] = net::make_pipe(executor);
    tasks.spawn("flow", serve_flow(*gateway, std::move(ours), address, port));
    return std::move(guest);
  }

  async::Task<net::Stream> secure(net::Stream stream, std::string sni) {
    auto trust = tls::ClientContext::from_pem(ca_pem);
    co_return co_await tls::connect(
        *trust, std::move(stream), std::move(sni), base::system_clock().in(5s));
  }

  /// One request over TLS to the origin's name; the whole answer, or "closed".
  asio::awaitable<std::string> ask(std::string head,
                                   std::string name = "api.corp.example",
                                   std::string sni = "") {
    auto stream = connect(name, origin.port());
    auto secured = co_await secure(std::move(stream), sni.empty() ? name : sni);
    if (!secured) co_return "closed";
    auto const sent = co_await (*secured)->write_text(head);
    if (!sent) co_return "closed";
    co_return co_await read_answer(**secured);
  }

  asio::awaitable<std::string> read_answer(net::ByteStream& stream) {
    std::string out;
    std::array<char, 8192> buffer;
    while (true) {
      auto reading = stream.read_some(buffer);
      auto const got =
          co_await async::with_deadline(base::system_clock().in(1500ms), std::move(reading));
      if (!got || *got == 0) break;
      out.append(buffer.data(), *got);
      auto const length = head_length(out);
      if (!length || *length == 0) continue;
      auto const head = parse_response_head(std::string_view(out).substr(0, *length), "GET");
      if (head && head->body.kind == Framing::Kind::length &&
          out.size() >= *length + head->body.length)
        break;
      if (head && head->body.kind == Framing::Kind::chunked && out.ends_with("0\r\n\r\n")) break;
    }
    co_return out.empty() ? "closed" : out;
  }

  asio::awaitable<void> close() {
    tasks.cancel();
    co_await tasks.join();
    co_await origin.close();
    co_await plain.close();
  }

  asio::any_io_executor executor;
  FakeDns dns{{{"api.corp.example", "127.0.0.1"},
               {"b.corp.example", "127.0.0.1"},
               {"inside.corp.example", "127.0.0.9"},
               {"raw.corp.example", "127.0.0.1"}}};
  std::shared_ptr<tls::Minter> world;
  Records records;
  Origin origin;
  Origin plain;
  std::string credential = "sk-secret-value-0123";  // what the broker puts in
  std::vector<std::string> asked;
  int busy = 0;  // so often the broker says: too often
  std::string ca_pem;
  std::unique_ptr<Gateway> gateway;
  async::TaskGroup tasks;
};

inline std::string const allow_all_paths =
    R"({"id":"api","hosts":["*.corp.example"],"ports":[TLS,PLAIN]})";

inline void with_rig(std::string rules,
                     std::function<asio::awaitable<void>(Rig&)> test,
                     std::string posture = "allowlist",
                     std::string binding = "strict") {
  async::run_test([&]() -> asio::awaitable<void> {
    Rig rig(co_await asio::this_coro::executor, rules, posture, binding);
    co_await test(rig);
    co_await rig.close();
  });
}

inline std::string const with_credential =
    R"({"id":"llm","hosts":["api.corp.example"],"ports":[TLS],"inject":[{"credential":"llm-key"}]})";

}  // namespace gateway::testing
