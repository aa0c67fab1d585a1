#include "cli/client.hpp"

#include <ctime>

#include <boost/asio/this_coro.hpp>

namespace cli {
namespace {

using namespace std::chrono_literals;

/// Seconds since 1970 of "2026-11-30T15:00:00.123456Z"; nothing for anything else.
std::optional<std::int64_t> seconds_of(std::string_view text) {
  std::tm time{};
  auto const* end = strptime(std::string(text.substr(0, 19)).c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (text.size() < 20 || end == nullptr || *end != '\0') return std::nullopt;
  return timegm(&time);
}

}  // namespace

int run_verb(Global const& global, Verb const& verb) {
  auto const out = Output::standard(global.as_json);
  auto target = find_target(global.api_url, global.key_file);
  if (!target) return out.fail(target.error());
  return async::run_main([&]() -> asio::awaitable<int> {
    Api api(co_await asio::this_coro::executor, std::move(*target));
    api.use_idempotency_key(global.idempotency_key);
    auto running = verb(Session{api, out});
    co_return co_await std::move(running);
  });
}

base::Deadline in_a_minute() {
  return base::system_clock().in(60s);
}

std::string path_of(std::string_view collection, std::string_view id, std::string_view below) {
  return fmt::format("/v1/{}/{}{}", collection, http::percent_encode(id), below);
}

async::Task<json::array> list_all(Session session,
                                  std::string target,
                                  std::string member,
                                  std::size_t limit) {
  json::array all;
  std::string cursor;
  do {
    auto const joint = target.find('?') == std::string::npos ? '?' : '&';
    auto page_target =
        cursor.empty() ? target
                       : fmt::format("{}{}cursor={}", target, joint, http::percent_encode(cursor));
    auto page = co_await session.api.call("GET", std::move(page_target), nullptr, in_a_minute());
    if (!page) co_return base::passing(page);
    auto const& items = member_of(*page, member);
    if (!items.is_array())
      co_return base::fail(base::Code::internal, "the API's answer has no list of " + member);
    for (auto const& one : items.as_array())
      all.push_back(one);
    auto next = text_of(*page, "next_cursor");
    if (next == cursor) break;  // a server that repeats itself must not hang us
    cursor = std::move(next);
  } while (!cursor.empty() && all.size() < limit);
  co_return all;
}

std::int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             base::system_clock().wall_now().time_since_epoch())
      .count();
}

std::string age_of(std::string_view rfc3339, std::int64_t now) {
  auto const then = seconds_of(rfc3339);
  if (!then) return std::string(rfc3339);
  auto const age = now - *then;
  auto const magnitude = [](std::int64_t seconds) {
    if (seconds < 60) return fmt::format("{}s", seconds);
    if (seconds < 3600) return fmt::format("{}m", seconds / 60);
    if (seconds < 2 * 86400) return fmt::format("{}h", seconds / 3600);
    return fmt::format("{}d", seconds / 86400);
  };
  return age >= 0 ? magnitude(age) + " ago" : "in " + magnitude(-age);
}

}  // namespace cli
