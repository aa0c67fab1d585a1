#pragma once

#include "agent/agent.hpp"
#include "async/testing.hpp"
#include "base/base64.hpp"
#include "http/client.hpp"
#include "wire/codec.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

/// For the agent's tests: the real server in the test's own process, on a free loopback port, with
/// users of its own, and callers that speak the protocol.
namespace agent::testing {

/// Remembers what /init asked for.
class RecordingMachine final : public Machine {
 public:
  void step_clock(base::WallTime time) override { clock = time; }

  void credit_entropy(std::string_view bytes) override { entropy = bytes; }

  void set_hostname(std::string const& name) override { hostname = name; }

  void set_machine_id(std::string const& id) override { machine_id = id; }

  void trust_authority(std::string const& pem) override { authority = pem; }

  void grow_root() override { ++grown; }

  void end_connections() override { ++ended; }

  int grown = 0;
  int ended = 0;  // how often connections were
  std::optional<base::WallTime> clock;
  std::string entropy;
  std::string hostname;
  std::string machine_id;
  std::string authority;
};

/// A directory with passwd, group and a home; gone with the object.
class Etc {
 public:
  Etc() {
    std::string pattern = std::filesystem::temp_directory_path() / "agent_test.XXXXXX";
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
    path_ = pattern;
    // Others' rights: commands run as other users and have to reach the home.
    std::filesystem::permissions(path_, std::filesystem::perms(0755));
    std::filesystem::create_directory(home());
    auto const me = std::to_string(::getuid());
    write("passwd",
          "root:x:0:0:root:/root:/bin/bash\nuser:x:" + me + ":" + me + "::" + home() +
              ":/bin/bash\nother:x:4242:4243::/nonexistent:/bin/sh\n");
    write("group", "root:x:0:\nuser:x:" + me + ":\nother:x:4243:\nextra:x:4244:nobody,other\n");
  }

  ~Etc() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  Etc(Etc const&) = delete;
  Etc& operator=(Etc const&) = delete;

  std::string const& path() const { return path_; }

  std::string home() const { return path_ + "/home"; }

  void write(std::string const& name, std::string const& text) const {
    std::ofstream(path_ + "/" + name) << text;
  }

 private:
  std::string path_;
};

struct Answer {
  int status = 0;
  http::Headers headers;
  std::string body;

  json::value json() const { return wire::parse_json(body).value(); }
};

/// What a stream delivered.
struct Events {
  std::vector<json::value> messages;
  std::string end;  // the payload of the end envelope

  /// All bytes of one kind, decoded.
  std::string bytes(std::string_view key) const {
    std::string out;
    for (auto const& message : messages) {
      auto const* data = message.at("event").as_object().if_contains("data");
      auto const* text = data ? data->as_object().if_contains(key) : nullptr;
      if (text) out += base::base64_decoded(std::string_view(text->as_string())).value();
    }
    return out;
  }

  json::object last() const {
    for (auto one = messages.rbegin(); one != messages.rend(); ++one) {
      if (auto const* end_event = one->at("event").as_object().if_contains("end"))
        return end_event->as_object();
    }
    return {};
  }
};

/// One open server stream.
class StreamCall {
 public:
  StreamCall(std::unique_ptr<http::Connection> connection, std::unique_ptr<http::Exchange> exchange)
      : connection_(std::move(connection)), exchange_(std::move(exchange)) {}

  int status() const { return exchange_->head.status; }

  http::Headers const& headers() const { return exchange_->head.headers; }

  /// The next message; nothing at the end (then `end` holds its payload).
  asio::awaitable<std::optional<json::value>> next() {
    for (;;) {
      auto envelope = parser_.next().value();
      if (envelope && envelope->flags == envelope_message)
        co_return wire::parse_json(envelope->payload).value();
      if (envelope) {
        end = envelope->payload;
        ended = true;
        continue;
      }
      auto const got = co_await exchange_->body().read_some(buffer_);
      if (!got || *got == 0) {
        closed_cleanly = got.has_value();
        co_return std::nullopt;
      }
      EXPECT_FALSE(ended) << "bytes after the end envelope";
      parser_.feed({buffer_.data(), *got});
    }
  }

  asio::awaitable<Events> rest() {
    Events out;
    for (;;) {
      auto message = co_await next();
      if (!message) break;
      out.messages.push_back(std::move(*message));
    }
    out.end = end;
    co_return out;
  }

  void hang_up() { connection_->close(); }

  std::string end;
  bool ended = false;
  bool closed_cleanly = false;

 private:
  std::unique_ptr<http::Connection> connection_;
  std::unique_ptr<http::Exchange> exchange_;
  EnvelopeParser parser_{rpc_message_bytes_max};
  std::array<char, 8192> buffer_{};
};

using HeaderList = std::vector<std::pair<std::string, std::string>>;

/// A running agent.
class Guest {
 public:
  explicit Guest(asio::any_io_executor executor, Agent::Options options = {})
      : executor_(executor) {
    options.etc_dir = etc.path();
    std::signal(SIGPIPE, SIG_IGN);  // as main() does
    agent = std::make_unique<Agent>(executor, machine, std::move(options));
    auto listener = net::listen_tcp(executor, "127.0.0.1", 0).value();
    port = listener->port();
    agent->listen(std::move(listener));
  }

  asio::awaitable<std::unique_ptr<http::Connection>> connect() {
    auto stream = co_await net::connect_tcp("127.0.0.1", port);
    co_return std::make_unique<http::Connection>(std::move(stream.value()));
  }

  asio::awaitable<Answer> request(std::string method,
                                  std::string target,
                                  HeaderList headers,
                                  std::string body) {
    auto connection = co_await connect();
    http::RequestHead head{std::move(method), std::move(target), {}};
    for (auto& [name, value] : headers)
      head.headers.add(std::move(name), std::move(value));
    auto exchange = co_await connection->start(std::move(head), std::move(body));
    Answer out;
    out.status = exchange.value()->head.status;
    out.headers = exchange.value()->head.headers;
    auto text = co_await exchange.value()->body().read_all(32 << 20);
    out.body = std::move(text.value());
    co_return out;
  }

  asio::awaitable<Answer> get(std::string target) {
    co_return co_await request("GET", std::move(target), {}, "");
  }

  asio::awaitable<Answer> call(std::string method, std::string message, HeaderList headers = {}) {
    headers.emplace_back("content-type", "application/json");
    co_return co_await request(
        "POST", "/process.Process/" + method, std::move(headers), std::move(message));
  }

  asio::awaitable<std::unique_ptr<StreamCall>> stream(std::string method,
                                                      std::string message,
                                                      HeaderList headers = {}) {
    auto connection = co_await connect();
    http::RequestHead head{"POST", "/process.Process/" + method, {}};
    head.headers.add("content-type", "application/connect+json");
    for (auto& [name, value] : headers)
      head.headers.add(std::move(name), std::move(value));
    std::string body;
    append_envelope(body, envelope_message, message);
    auto exchange = co_await connection->start(std::move(head), std::move(body));
    co_return std::make_unique<StreamCall>(std::move(connection), std::move(exchange.value()));
  }

  /// Start of a shell command; `more` are further members of the request, e.g. R"(,"stdin":false)".
  asio::awaitable<std::unique_ptr<StreamCall>> start(std::string script,
                                                     std::string more = R"(,"stdin":false)",
                                                     HeaderList headers = {}) {
    json::object process{{"cmd", "/bin/sh"}, {"args", json::array{"-c", script}}};
    auto message = R"({"process":)" + wire::to_text(process) + more + "}";
    co_return co_await stream("Start", std::move(message), std::move(headers));
  }

  /// Start, then everything until its end.
  asio::awaitable<Events> run(std::string script,
                              std::string more = R"(,"stdin":false)",
                              HeaderList headers = {}) {
    auto running = co_await start(std::move(script), std::move(more), std::move(headers));
    co_return co_await running->rest();
  }

  Etc etc;
  RecordingMachine machine;
  std::unique_ptr<Agent> agent;
  std::uint16_t port = 0;

 private:
  asio::any_io_executor executor_;
};

/// Runs a test's coroutine with a guest around it.
inline void with_guest(std::function<asio::awaitable<void>(Guest&)> body,
                       Agent::Options options = {}) {
  async::run_test([&]() -> asio::awaitable<void> {
    auto executor = co_await asio::this_coro::executor;
    Guest guest(executor, options);
    std::exception_ptr failure;
    try {
      co_await body(guest);
    } catch (...) {
      failure = std::current_exception();
    }
    co_await guest.agent->close();
    if (failure) std::rethrow_exception(failure);
  });
}

inline std::int64_t pid_of(json::value const& start_event) {
  return start_event.at("event").at("start").at("pid").as_int64();
}

inline std::string selector(std::int64_t pid) {
  return fmt::format(R"("process":{{"pid":{}}})", pid);
}

inline bool is_running(std::int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0;
}

/// Polls for what happens outside our loop (other processes).
inline asio::awaitable<bool> eventually(std::function<bool()> condition,
                                        std::chrono::milliseconds limit) {
  auto const until = base::system_clock().in(limit);
  while (!condition()) {
    if (base::system_clock().steady_now() > until) co_return false;
    co_await async::sleep_for(std::chrono::milliseconds(5));
  }
  co_return true;
}

}  // namespace agent::testing
