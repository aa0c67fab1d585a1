#include "controlplane/fake_guest.hpp"

#include "base/assert.hpp"

namespace controlplane::testing {
namespace {

http::Response answer(int status, std::string body) {
  return {status, http::Headers{{"Content-Type", "application/json"}}, std::move(body)};
}

}  // namespace

std::string frame(char flags, std::string_view payload) {
  std::string out(1, flags);
  auto const size = static_cast<std::uint32_t>(payload.size());
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>((size >> shift) & 0xff);
  return out + std::string(payload);
}

FakeGuest::FakeGuest(asio::any_io_executor executor, std::string socket)
    : executor_(std::move(executor)), socket_(std::move(socket)) {}

void FakeGuest::start() {
  auto listener = net::listen_unix(executor_, socket_);
  SPACE_ASSERT(listener.has_value(), "a test has a directory of its own");
  server_ = std::make_unique<http::Server>(executor_, *this);
  server_->listen(std::move(*listener));
}

asio::awaitable<void> FakeGuest::stop() {
  if (!server_) co_return;
  co_await server_->close(std::chrono::milliseconds(0));
  server_.reset();
}

asio::awaitable<void> FakeGuest::handle(http::Request& request, http::ResponseWriter& response) {
  base::Result<void> sent;
  auto const path = std::string(request.head.path());
  if (request.head.headers.get("x-access-token") != token) {
    sent = co_await response.send(answer(401, R"({"code":401,"message":"wrong token"})"));
  } else if (path == "/files") {
    co_await serve_files(request, response);
  } else {
    auto body = co_await request.body.read_all(32 << 20);
    auto const method = path.substr(1);
    bool const streamed = request.head.headers.get("content-type") == "application/connect+json";
    auto const text = body.value_or("");
    calls.emplace_back(
        method,
        wire::parse_json(streamed ? std::string_view(text).substr(5) : std::string_view(text))
            .value_or(nullptr));
    headers.push_back(request.head.headers);
    bool const wrong_input =
        method.ends_with("SendInput") && terminal && text.find("\"stdin\"") != std::string::npos;
    if (streamed) {
      co_await stream(response);
    } else if (wrong_input) {
      sent = co_await response.send(answer(
          400,
          R"({"code":"failed_precondition","message":"the process has a terminal: send pty input"})"));
    } else if (unary.contains(method)) {
      bool const error = unary[method].starts_with("{\"code\"");
      sent = co_await response.send(answer(error ? 404 : 200, unary[method]));
    } else {
      sent = co_await response.send(answer(200, "{}"));
    }
  }
  static_cast<void>(sent);
}

asio::awaitable<void> FakeGuest::stream(http::ResponseWriter& response) {
  http::ResponseHead head;
  head.headers.add("Content-Type", "application/connect+json");
  auto sent = co_await response.begin(std::move(head));
  std::string out = frame(0, R"({"event":{"start":{"pid":77}}})");
  for (auto const& one : frames)
    out += frame(0, one);
  if (!raw.empty()) out = raw;
  if (!cut) out += frame(2, end_error.empty() ? "{}" : "{\"error\":" + end_error + "}");
  if (sent) sent = co_await response.write(out);
  if (sent && cut) throw std::runtime_error("cut by the test");
  if (sent) sent = co_await response.finish();
  static_cast<void>(sent);
}

asio::awaitable<void> FakeGuest::serve_files(http::Request& request,
                                             http::ResponseWriter& response) {
  auto const query = http::parse_query(request.head.query());
  std::string path, mode;
  for (auto const& [name, value] : *query) {
    if (name == "path") path = value;
    if (name == "mode") mode = value;
  }
  base::Result<void> sent;
  if (request.head.method == "POST") {
    auto body = co_await request.body.read_all(64 << 20);
    files[path] = body.value_or("");
    if (!mode.empty()) modes[path] = mode;
    auto const name = path.substr(path.rfind('/') + 1);
    sent = co_await response.send(answer(200,
                                         wire::to_text(json::array{json::object{
                                             {"name", name}, {"type", "file"}, {"path", path}}})));
  } else if (files.contains(path)) {
    sent = co_await response.send({200, http::Headers{{"Content-Type", "text/html"}}, files[path]});
  } else {
    sent = co_await response.send(answer(404, R"({"code":404,"message":"path does not exist"})"));
  }
  static_cast<void>(sent);
}

}  // namespace controlplane::testing
