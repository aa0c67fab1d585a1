#include "controlplane/front.hpp"

#include "base/id.hpp"
#include "base/log.hpp"
#include "base/metric_names.hpp"
#include "controlplane/tokens.hpp"
#include "domain/labels.hpp"
#include "wire/codec.hpp"

#include <fmt/ranges.h>

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t key_length_max = 255;

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

base::Result<void> check_role(Route const& route, store::KeyOwner const& owner) {
  bool allowed = false;
  switch (route.permission) {
    case Permission::open:
    case Permission::read:
      allowed = true;
      break;
    case Permission::write:
      allowed = owner.role != store::Role::reader;
      break;
    case Permission::admin:
      allowed = owner.role == store::Role::admin;
      break;
    case Permission::installation:
      allowed = owner.installation && owner.role == store::Role::admin;
      break;
  }
  if (allowed) return {};
  if (route.permission == Permission::installation &&
      route.pattern.find('{') != std::string::npos) {
    // Whether a foreign id exists is nobody's business.
    return base::fail(Code::not_found, "there is nothing of that name here");
  }
  if (route.permission == Permission::installation) {
    return base::fail(Code::denied,
                      "this needs a key of the installation, such as the first admin key");
  }
  return base::fail(Code::denied,
                    fmt::format("this needs a key with role {}; this one is a {}",
                                route.permission == Permission::admin ? "admin" : "member",
                                owner.role == store::Role::reader ? "reader" : "member"));
}

/// What the client may not see of a failure of ours, the log has.
void log_failure(std::string const& request_id, Route const* route, base::Error const& error) {
  if (error.code() != Code::internal && error.code() != Code::unavailable) return;
  auto const level =
      error.code() == Code::internal ? base::log::Level::error : base::log::Level::warn;
  base::log::write(level,
                   "request_failed",
                   {{"request", request_id},
                    {"route", route ? route->pattern : std::string()},
                    {"why", error.message()},
                    {"detail", error.detail()}});
}

constexpr std::string_view interrupted =
    "the first request with this Idempotency-Key was interrupted and its outcome is unknown; look, "
    "then use a new key";

/// A full host or project refuses before it begins anything.
bool says_nothing(Code code) {
  return code == Code::internal || (base::may_retry(code) && code != Code::exhausted);
}

/// Messages repeat what a client sent, and an error that is not valid JSON helps nobody.
std::string as_utf8(std::string text) {
  if (domain::is_utf8(text)) return text;
  for (auto& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return text;
}

}  // namespace

/// One request between its arrival and its answer.
struct Front::Exchange {
  http::Request& request;
  http::ResponseWriter& response;
  std::string request_id;
  Router::Match match;
  Dialect dialect = Dialect::native;
  std::optional<std::chrono::milliseconds> retry_after;
  int status = 0;  // instead of the error code's own
  bool authenticated = false;
  bool replayed = false;
  bool claimed = false;  // an Idempotency-Key is held for this request
  http::Headers extra;   // CORS and the like, for every answer
  std::optional<Call> call;
};

std::optional<std::string> key_of(http::Headers const& headers) {
  if (auto const value = headers.find("authorization")) {
    constexpr std::string_view scheme = "bearer ";
    if (value->size() > scheme.size() &&
        http::equal_ignoring_case(value->substr(0, scheme.size()), scheme)) {
      auto key = value->substr(scheme.size());
      while (key.starts_with(' '))
        key.remove_prefix(1);
      return std::string(key);
    }
  }
  if (auto const value = headers.find("x-api-key")) return std::string(*value);
  return std::nullopt;
}

http::Response render_error(Dialect dialect,
                            base::Error const& error,
                            std::string const& request_id) {
  http::Response response;
  response.status = base::http_status_of(error.code());
  auto message = as_utf8(error.message());
  json::object body;
  if (dialect == Dialect::native) {
    body = {{"code", base::name_of(error.code())},
            {"message", std::move(message)},
            {"request_id", request_id}};
  } else {
    body = {{"code", response.status}, {"message", std::move(message)}};
  }
  response.body = wire::to_text(body);
  response.headers.add("Content-Type", "application/json");
  if (response.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

Front::Front(Router const& router, store::Store& store, Audit& audit, Options options)
    : router_(router),
      store_(store),
      audit_(audit),
      options_(std::move(options)),
      cors_(options_.cors_origins),
      rate_limit_(options_.rate) {}

asio::awaitable<void> Front::handle(http::Request& request, http::ResponseWriter& response) {
  Exchange exchange{request,
                    response,
                    base::random_hex(8),
                    {},
                    Dialect::native,
                    {},
                    0,
                    false,
                    false,
                    false,
                    {},
                    {}};
  exchange.extra = cors_.headers(request.head.headers);
  exchange.extra.add("X-Request-Id", exchange.request_id);
  base::Result<Reply> reply;
  bool broken = false;
  try {
    reply = co_await answer(exchange);
  } catch (boost::system::system_error const& error) {
    if (error.code() == asio::error::operation_aborted) throw;  // we are being cancelled
    reply = base::fail(Code::internal, "the request failed unexpectedly", error.what());
    broken = true;
  } catch (std::exception const& error) {
    reply = base::fail(Code::internal, "the request failed unexpectedly", error.what());
    broken = true;
  }
  if (broken && exchange.claimed) {
    auto keeping = keep_answer(exchange, reply);
    co_await std::move(keeping);
  }
  co_await send(exchange, std::move(reply));
}

async::Task<Reply> Front::answer(Exchange& exchange) {
  auto const& head = exchange.request.head;
  auto matched = router_.match(head.method, head.path());
  if (!matched) {
    exchange.dialect = head.target.starts_with("/v1/") ? Dialect::native : Dialect::e2b;
    co_return base::passing(matched);
  }
  exchange.match = std::move(*matched);
  exchange.dialect = exchange.match.dialect;
  auto const& match = exchange.match;
  if (!match.allowed.empty() && Cors::is_preflight(head)) {
    auto preflight = cors_.preflight(head, match.allowed);
    exchange.extra = {{"X-Request-Id", exchange.request_id}};
    Reply reply;
    reply.status = preflight.status;
    reply.headers = std::move(preflight.headers);
    co_return reply;
  }
  if (match.allowed.empty()) {
    co_return base::fail(Code::not_found,
                         fmt::format("there is no such path: {}", head.path().substr(0, 200)));
  }
  if (!match.route) {
    exchange.extra.add("Allow", fmt::format("{}", fmt::join(match.allowed, ", ")));
    exchange.status = 405;
    co_return base::fail(Code::invalid_argument,
                         fmt::format("this path has no {}; it has {}",
                                     head.method.substr(0, 20),
                                     fmt::join(match.allowed, ", ")));
  }
  exchange.call.emplace(Call{exchange.request,
                             exchange.response,
                             exchange.request_id,
                             {},
                             match.params,
                             {},
                             {},
                             {},
                             {},
                             {},
                             exchange.extra,
                             false});
  auto& call = *exchange.call;
  auto admitted = co_await admit(exchange);
  if (!admitted) co_return base::passing(admitted);
  auto query = http::parse_query(head.query());
  if (!query) co_return base::passing(query, "query");
  call.query = std::move(*query);
  auto body = co_await read_body(exchange);
  if (!body) co_return base::passing(body);
  call.deadline = base::system_clock().in(options_.statement_time);
  auto reply = co_await run_once(exchange);
  co_return reply;
}

/// Who is it, may they, and not too often.
async::Task<void> Front::admit(Exchange& exchange) {
  auto const& route = *exchange.match.route;
  if (route.permission == Permission::open) co_return base::Result<void>();
  auto const key = key_of(exchange.request.head.headers);
  if (!key) {
    co_return base::fail(Code::unauthenticated,
                         "send your key as \"Authorization: Bearer KEY\" or \"X-API-Key: KEY\"");
  }
  std::optional<store::KeyOwner> owner;
  if (is_key(*key)) {
    auto found = co_await store_.keys.authenticate(
        sha256_hex(*key), base::system_clock().in(options_.statement_time));
    if (!found) co_return base::passing(found);
    owner = std::move(*found);
  }
  if (!owner) co_return base::fail(Code::unauthenticated, "the key is unknown, revoked or expired");
  exchange.call->owner = std::move(*owner);
  exchange.authenticated = true;
  exchange.retry_after =
      rate_limit_.take(exchange.call->owner.key_public_id, base::system_clock().steady_now());
  if (exchange.retry_after) {
    co_return base::fail(Code::exhausted,
                         "too many requests with this key; wait as long as Retry-After says");
  }
  co_return check_role(route, exchange.call->owner);
}

async::Task<void> Front::read_body(Exchange& exchange) {
  auto const& route = *exchange.match.route;
  auto& call = *exchange.call;
  auto const& head = exchange.request.head;
  if (route.streams_body) co_return base::Result<void>();
  auto reading = exchange.request.body.read_all(route.body_max);
  auto body = co_await async::with_deadline(base::system_clock().in(options_.body_time),
                                            std::move(reading));
  if (!body) co_return base::passing(body, "body");
  call.body = std::move(*body);
  if (head.method != "POST") co_return base::Result<void>();
  if (auto const key = head.headers.find("idempotency-key")) {
    if (key->empty() || key->size() > key_length_max || !is_printable(*key)) {
      co_return base::fail(
          Code::invalid_argument,
          "Idempotency-Key: expected 1 to 255 printable characters without spaces");
    }
    call.idempotency_key = *key;
    // Lengths keep the parts apart. `wait` and the like are part of the target: another wait,
    // another request.
    call.request_sha256 = sha256_hex(
        fmt::format("{} {} {}\n{}", head.method, head.target.size(), head.target, call.body));
  }
  co_return base::Result<void>();
}

/// The handler, at most once per Idempotency-Key.
async::Task<Reply> Front::run_once(Exchange& exchange) {
  auto& call = *exchange.call;
  auto const& route = *exchange.match.route;
  if (call.idempotency_key.empty() || route.repeat != Repeat::replay) {
    auto reply = co_await run_handler(exchange);
    co_return reply;
  }
  auto claim = co_await store_.idempotency.claim(
      call.owner.project_id, call.idempotency_key, call.request_sha256, call.deadline);
  if (!claim) co_return base::passing(claim);
  using Outcome = store::IdempotencyClaim::Outcome;
  switch (claim->outcome) {
    case Outcome::ours:
      break;
    case Outcome::replay: {
      exchange.replayed = true;
      Reply reply;
      reply.status = claim->status;
      reply.body = std::move(claim->body);
      co_return reply;
    }
    case Outcome::busy:
      exchange.retry_after = std::chrono::seconds(1);
      co_return base::fail(
          Code::conflict,
          "the first request with this Idempotency-Key is still running; ask again in a moment");
    case Outcome::mismatch:
      co_return base::fail(Code::conflict,
                           "Idempotency-Key: it was used for another request; choose a new one");
    case Outcome::interrupted:
      co_return base::fail(Code::conflict, std::string(interrupted));
  }
  exchange.claimed = true;
  auto reply = co_await run_handler(exchange);
  auto keeping = keep_answer(exchange, reply);
  co_await std::move(keeping);
  co_return reply;
}

async::Task<Reply> Front::run_handler(Exchange& exchange) {
  return exchange.match.route->handler(*exchange.call);
}

/// Errors that a repeat may turn into success are not kept, unless it could do something twice.
asio::awaitable<void> Front::keep_answer(Exchange& exchange, base::Result<Reply> const& reply) {
  auto const& call = *exchange.call;
  exchange.claimed = false;
  auto const deadline = base::system_clock().in(options_.statement_time);
  base::Result<void> kept;
  if (reply && !reply->streamed) {
    kept = co_await store_.idempotency.finish(call.owner.project_id,
                                              call.idempotency_key,
                                              reply->status,
                                              reply->kept_body.value_or(reply->body),
                                              deadline);
  } else if (!reply && call.may_have_happened && says_nothing(reply.error().code())) {
    auto const rendered = render_error(
        exchange.dialect, {Code::conflict, std::string(interrupted)}, exchange.request_id);
    kept = co_await store_.idempotency.finish(
        call.owner.project_id, call.idempotency_key, rendered.status, rendered.body, deadline);
  } else if (!reply && !base::may_retry(reply.error().code()) &&
             reply.error().code() != Code::internal) {
    auto const rendered = render_error(exchange.dialect, reply.error(), exchange.request_id);
    kept = co_await store_.idempotency.finish(
        call.owner.project_id, call.idempotency_key, rendered.status, rendered.body, deadline);
  } else {
    kept =
        co_await store_.idempotency.release(call.owner.project_id, call.idempotency_key, deadline);
  }
  if (!kept)
    base::log::warn("answer_not_kept",
                    {{"request", exchange.request_id}, {"why", kept.error().detail()}});
}

asio::awaitable<void> Front::send(Exchange& exchange, base::Result<Reply> reply) {
  if (!reply) log_failure(exchange.request_id, exchange.match.route, reply.error());
  if (exchange.response.started()) {
    record(exchange, reply ? 200 : base::http_status_of(reply.error().code()));
    co_return;  // a stream that broke is cut by the server
  }
  http::Response out;
  if (reply) {
    out.status = reply->status;
    out.headers = std::move(reply->headers);
    out.body = std::move(reply->body);
    if (!out.body.empty() && !out.headers.find("content-type"))
      out.headers.add("Content-Type", "application/json");
    if (exchange.replayed) out.headers.add("Idempotency-Replayed", "true");
  } else {
    out = render_error(exchange.dialect, reply.error(), exchange.request_id);
    if (exchange.status != 0) out.status = exchange.status;
    if (exchange.status != 0 && exchange.dialect == Dialect::e2b) {
      out.body =
          wire::to_text(json::object{{"code", out.status}, {"message", reply.error().message()}});
    }
  }
  if (exchange.retry_after || out.status == 429 || out.status == 503) {
    auto const wait = exchange.retry_after.value_or(std::chrono::seconds(1));
    auto const seconds =
        std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::seconds>(wait).count());
    if (!out.headers.find("retry-after")) out.headers.add("Retry-After", std::to_string(seconds));
  }
  for (auto const& [name, value] : exchange.extra)
    out.headers.add(name, value);
  record(exchange, out.status);
  auto sent = co_await exchange.response.send(std::move(out));
  if (!sent)
    base::log::debug("answer_not_sent",
                     {{"request", exchange.request_id}, {"why", sent.error().message()}});
}

void Front::record(Exchange const& exchange, int status) {
  base::metrics().count(base::metric::api_requests, {fmt::format("{}xx", status / 100)});
  if (!exchange.authenticated) return;
  auto const& head = exchange.request.head;
  store::KeyUse use;
  use.key_public_id = exchange.call->owner.key_public_id;
  use.project_id = exchange.call->owner.project_id;
  use.at = base::system_clock().wall_now();
  use.method = head.method;
  use.route = exchange.match.route->pattern;
  // Without the query, which may hold paths of files.
  use.target = std::string(head.path().substr(0, 300));
  use.status = status;
  use.request_id = exchange.request_id;
  use.peer = std::string(head.headers.get("x-forwarded-for").substr(0, 100));
  bool const reads = head.method == "GET" || head.method == "HEAD";
  use.keep = !reads || status == 401 || status == 403 || status == 429;
  audit_.add(std::move(use));
}

}  // namespace controlplane
