#include "proxy/routes.hpp"

#include "base/log.hpp"

namespace proxy {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds answer_patience{5'000};
constexpr milliseconds silence_max{15'000};  // the API sends an empty line every 5 s
constexpr milliseconds pause_min{100};
constexpr milliseconds pause_max{2'000};
constexpr std::size_t line_bytes_max = 64 * 1024;
constexpr std::size_t connections_max = 64;

base::Deadline in(milliseconds duration) {
  return base::system_clock().in(duration);
}

http::RequestHead get(std::string target) {
  return {.method = "GET", .target = std::move(target), .headers = {{"Host", "internal"}}};
}

void apply(Visits& visits, std::string_view line) {
  if (line.empty()) return;
  auto const change = wire::decode_text<wire::RouteChange>(line, wire::UnknownKeys::ignore);
  if (!change) {
    base::log::warn("change_malformed", {{"what", change.error().message()}});
    return;
  }
  // Whatever has changed: who is let in is decided anew by the next request, so cutting is always
  // safe.
  visits.cut(change->sandbox, change->epoch);
}

}  // namespace

Routes::Routes(asio::any_io_executor executor, std::string internal_socket)
    : client_(
          executor,
          [path = std::move(internal_socket)] { return net::connect_unix(path); },
          connections_max) {}

async::Task<wire::Route> Routes::of_sandbox(std::string sandbox) {
  return ask("/route?sandbox=" + http::percent_encode(sandbox));
}

async::Task<wire::Route> Routes::of_token(std::string token_sha256) {
  return ask("/route?token_sha256=" + http::percent_encode(token_sha256));
}

async::Task<wire::Route> Routes::ask(std::string target) {
  auto const answer =
      co_await client_.request(get(std::move(target)), "", in(answer_patience), 64 * 1024);
  if (!answer)
    co_return base::fail(
        base::Code::unavailable, "the API does not answer", answer.error().message());
  if (answer->status == 404)
    co_return base::fail(base::Code::not_found, "The sandbox was not found");
  if (answer->status != 200) {
    co_return base::fail(base::Code::unavailable,
                         "the API does not answer",
                         fmt::format("status {}", answer->status));
  }
  auto route = wire::decode_text<wire::Route>(answer->body, wire::UnknownKeys::ignore);
  if (!route || route->sandbox.empty() || route->epoch == 0) {
    co_return base::fail(
        base::Code::unavailable, "the API does not answer", "its route is malformed");
  }
  co_return std::move(*route);
}

asio::awaitable<void> Routes::recheck(Visits& visits) {
  auto const sandboxes = visits.sandboxes();
  for (auto const& sandbox : sandboxes) {
    auto route = co_await of_sandbox(sandbox);
    if (route)
      visits.check(sandbox, std::move(*route));
    else if (route.error().code() == base::Code::not_found)
      visits.check(sandbox, std::nullopt);
  }
}

async::Task<void> Routes::follow_once(Visits& visits, bool* connected) {
  auto exchange = co_await client_.stream(get("/changes"), "", in(answer_patience));
  if (!exchange) co_return base::passing(exchange);
  if ((*exchange)->head.status != 200) {
    co_return base::fail(base::Code::unavailable,
                         fmt::format("status {}", (*exchange)->head.status));
  }
  *connected = true;
  co_await recheck(visits);  // changes that come meanwhile wait in the stream
  std::string text;
  std::vector<char> buffer(4096);
  for (;;) {
    auto reading = (*exchange)->body().read_some(buffer);
    auto const count = co_await async::with_deadline(in(silence_max), std::move(reading));
    if (!count) co_return std::unexpected(count.error());
    if (*count == 0) co_return base::fail(base::Code::unavailable, "the stream has ended");
    text.append(buffer.data(), *count);
    std::size_t start = 0;
    for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', start)) {
      apply(visits, std::string_view(text).substr(start, end - start));
      start = end + 1;
    }
    text.erase(0, start);
    if (text.size() > line_bytes_max)
      co_return base::fail(base::Code::unavailable, "a line is too long");
  }
}

asio::awaitable<void> Routes::follow(Visits& visits) {
  auto pause = pause_min;
  for (unsigned failures = 0;; ++failures) {
    bool connected = false;
    auto const ended = co_await follow_once(visits, &connected);
    if (connected) {
      pause = pause_min;
      failures = 0;
    }
    // Said when it breaks and then about twice a minute, not with every attempt.
    if (failures % 15 == 0)
      base::log::warn("changes_interrupted",
                      {{"what", ended.error().message()}, {"failures", failures}});
    co_await async::sleep_for(pause);
    pause = std::min(pause * 2, pause_max);
  }
}

}  // namespace proxy
