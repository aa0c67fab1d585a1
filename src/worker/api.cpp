#include "worker/api.hpp"

#include "base/log.hpp"
#include "worker/metrics.hpp"

#include <charconv>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <pwd.h>
#include <unistd.h>

namespace worker {

namespace asio = boost::asio;
namespace json = boost::json;

namespace {

constexpr std::size_t body_bytes_max = 1 << 20;
constexpr std::size_t policy_bytes_max = 8 << 20;
constexpr std::size_t console_bytes = std::size_t{64} * 1024;

http::Response json_response(int status, std::string body) {
  return {status, {{"Content-Type", "application/json"}}, std::move(body)};
}

http::Response failure(base::Error const& error) {
  auto const code = base::name_of(error.code());
  if (!error.detail().empty())
    base::log::warn("request_failed",
                    {{"code", code}, {"what", error.message()}, {"detail", error.detail()}});
  return json_response(base::http_status_of(error.code()),
                       wire::to_text(json::object{{"code", code}, {"message", error.message()}}));
}

template <class T> http::Response respond(base::Result<T> const& result) {
  return result ? json_response(200, wire::encode_text(*result)) : failure(result.error());
}

base::Result<std::uint64_t> epoch_of(std::string_view query) {
  auto const fields = http::parse_query(query);
  if (!fields) return std::unexpected(fields.error());
  for (auto const& [name, value] : *fields) {
    if (name != "epoch") continue;
    std::uint64_t epoch = 0;
    auto const [end, problem] = std::from_chars(value.data(), value.data() + value.size(), epoch);
    if (problem == std::errc() && end == value.data() + value.size() && epoch > 0) return epoch;
  }
  return base::fail(base::Code::invalid_argument,
                    "epoch: a number of at least 1 is required in the query");
}

/// "deleted" unless the query says that the whole host is being stopped.
base::Result<std::string> cause_of(std::string_view query) {
  auto const fields = http::parse_query(query);
  if (!fields) return std::unexpected(fields.error());
  for (auto const& [name, value] : *fields) {
    if (name != "cause") continue;
    if (value == "deleted" || value == "host_stopped") return value;
    return base::fail(base::Code::invalid_argument, "cause: deleted or host_stopped");
  }
  return "deleted";
}

base::Result<audit::Query> audit_query(std::string_view text) {
  auto const fields = http::parse_query(text);
  if (!fields) return std::unexpected(fields.error());
  audit::Query out;
  std::uint32_t limit = 100;
  for (auto const& [name, value] : *fields) {
    auto const* const end = value.data() + value.size();
    if (name == "sandbox") out.sandbox = value;
    if (name == "after") std::from_chars(value.data(), end, out.after);
    if (name == "limit") std::from_chars(value.data(), end, limit);
  }
  out.limit = std::clamp(limit, 1U, 1000U);
  return out;
}

/// The sandbox whose decisions a request wants to follow.
std::optional<std::string> asks_decisions(http::RequestHead const& head) {
  constexpr std::string_view prefix = "/sandboxes/";
  constexpr std::string_view suffix = "/decisions";
  auto const path = head.path();
  bool const fits = head.method == "GET" && path.starts_with(prefix) && path.ends_with(suffix) &&
                    path.size() > prefix.size() + suffix.size();
  if (!fits) return std::nullopt;
  return std::string(path.substr(prefix.size(), path.size() - prefix.size() - suffix.size()));
}

async::Task<http::Response> forget_reflected(http::Request* request, Reflections* reflections) {
  auto const body = co_await request->body.read_all(body_bytes_max);
  if (!body) co_return std::unexpected(body.error());
  auto told = wire::decode_text<wire::Reflected>(*body);
  if (!told) co_return std::unexpected(told.error());
  auto const taken = co_await reflections->taken(std::move(*told));
  if (!taken) co_return std::unexpected(taken.error());
  co_return http::Response{204, {}, {}};
}

std::unexpected<base::Error> no_such_route() {
  return base::fail(base::Code::not_found, "a worker has no such route");
}

}  // namespace

std::set<unsigned> allowed_users(wire::Config const& config) {
  std::set<unsigned> allowed{0, ::geteuid()};
  for (auto const& name : {config.api_user, config.controller_user, config.proxy_user}) {
    if (auto const* user = ::getpwnam(name.c_str()))
      allowed.insert(user->pw_uid);  // NOLINT(concurrency-mt-unsafe): at start
  }
  return allowed;
}

asio::awaitable<void> Api::handle(http::Request& request, http::ResponseWriter& response) {
  auto const peer = net::peer_user(request.connection);
  base::Result<void> sent;
  if (!peer || !allowed_.contains(peer->uid)) {
    base::log::warn("stranger_refused", {{"uid", peer ? std::to_string(peer->uid) : "unknown"}});
    sent = co_await response.send(
        failure({base::Code::denied, "this user may not talk to the worker"}));
  } else if (request.head.method == "GET" && request.head.path() == "/ended") {
    sent = co_await stream_ended(&response);
  } else if (auto const id = asks_decisions(request.head); id && worker_.find(*id)) {
    sent = co_await stream_decisions(&response, *id, request.head.query() != "follow=0");
  } else {
    auto answered = co_await answer(&request);
    sent = co_await response.send(answered ? std::move(*answered) : failure(answered.error()));
  }
  static_cast<void>(sent);  // the caller left; what it asked for goes on
}

async::Task<http::Response> Api::answer(http::Request* request) {
  std::string const path(request->head.path());
  auto const& method = request->head.method;
  if (path == "/node" && method == "GET")
    co_return json_response(200, wire::encode_text(worker_.report()));
  if (path == "/sandboxes" && method == "POST") co_return co_await start(request);
  if (path == "/sandboxes" && method == "GET") {
    co_return json_response(
        200, wire::to_text(json::object{{"sandboxes", wire::encode(worker_.list())}}));
  }
  if (path == "/reflected/taken" && method == "POST")
    co_return co_await forget_reflected(request, &worker_.host().reflections);
  if (path == "/drain" && method == "POST") co_return co_await drain(request);
  constexpr std::string_view snapshots = "/snapshots";
  if (path.starts_with(snapshots))
    co_return co_await answer_snapshots(request, path.substr(snapshots.size()));
  if (path == "/metrics" && method == "GET")
    co_return json_response(200, wire::encode_text(samples_of(worker_)));
  if (path == "/audit" && method == "GET") co_return co_await list_audit(request->head);
  if (path == "/audit/checkpoints" && method == "GET")
    co_return co_await list_checkpoints(request->head);
  constexpr std::string_view prefix = "/sandboxes/";
  if (!path.starts_with(prefix)) co_return no_such_route();
  auto const rest = path.substr(prefix.size());
  auto const cut = rest.find('/');
  co_return co_await answer_sandbox(
      request, rest.substr(0, cut), cut == std::string::npos ? "" : rest.substr(cut + 1));
}

async::Task<http::Response> Api::answer_sandbox(http::Request* request,
                                                std::string id,
                                                std::string what) {
  auto const& method = request->head.method;
  if (what.empty() && method == "DELETE") co_return co_await end(request, std::move(id));
  if (what == "token" && method == "PUT") co_return co_await set_token(request, std::move(id));
  if (what == "policy" && method == "PUT") co_return co_await set_policy(request, std::move(id));
  if (method == "POST") co_return co_await change(request, std::move(id), std::move(what));
  if (method != "GET") co_return no_such_route();
  auto const sandbox = worker_.find(id);
  if (!sandbox) co_return base::fail(base::Code::not_found, "this sandbox is not on this worker");
  if (what.empty()) co_return json_response(200, wire::encode_text(sandbox->describe()));
  if (what == "console")
    co_return http::Response{
        200, {{"Content-Type", "text/plain"}}, sandbox->console(console_bytes)};
  if (what != "metrics") co_return no_such_route();
  auto metrics = co_await sandbox->metrics();
  if (!metrics) co_return std::unexpected(std::move(metrics.error()));
  co_return json_response(200, std::move(*metrics));
}

async::Task<http::Response> Api::start(http::Request* request) {
  auto const body = co_await request->body.read_all(policy_bytes_max);
  if (!body) co_return std::unexpected(body.error());
  auto wanted =
      wire::decode_text<wire::StartSandbox>(*body, wire::UnknownKeys::reject, policy_bytes_max);
  if (!wanted) co_return std::unexpected(std::move(wanted.error()));
  auto const started = co_await worker_.start(std::move(*wanted));
  co_return respond(started);
}

async::Task<http::Response> Api::end(http::Request* request, std::string id) {
  auto const epoch = epoch_of(request->head.query());
  if (!epoch) co_return std::unexpected(epoch.error());
  auto cause = cause_of(request->head.query());
  if (!cause) co_return std::unexpected(cause.error());
  auto const ended = co_await worker_.end(std::move(id), *epoch, std::move(*cause));
  co_return respond(ended);
}

async::Task<http::Response> Api::set_token(http::Request* request, std::string id) {
  auto const body = co_await request->body.read_all(body_bytes_max);
  if (!body) co_return std::unexpected(body.error());
  auto const wanted = wire::decode_text<wire::SetToken>(*body);
  if (!wanted) co_return std::unexpected(wanted.error());
  if (wanted->access_token.size() > 512)
    co_return base::fail(base::Code::invalid_argument, "access_token: at most 512 bytes");
  auto const sandbox = worker_.find(id);
  if (!sandbox) co_return base::fail(base::Code::not_found, "this sandbox is not on this worker");
  if (sandbox->epoch() != wanted->epoch)
    co_return base::fail(base::Code::conflict, "this is another life of the sandbox");
  auto const set = co_await sandbox->set_token(wanted->access_token);
  if (!set) co_return std::unexpected(set.error());
  co_return http::Response{204, {}, {}};
}

async::Task<http::Response> Api::set_policy(http::Request* request, std::string id) {
  auto const body = co_await request->body.read_all(policy_bytes_max);
  if (!body) co_return std::unexpected(body.error());
  auto wanted =
      wire::decode_text<wire::SetPolicy>(*body, wire::UnknownKeys::reject, policy_bytes_max);
  if (!wanted) co_return std::unexpected(wanted.error());
  auto const sandbox = worker_.find(id);
  if (!sandbox) co_return base::fail(base::Code::not_found, "this sandbox is not on this worker");
  if (sandbox->epoch() != wanted->epoch)
    co_return base::fail(base::Code::conflict, "this is another life of the sandbox");
  auto const applied = co_await sandbox->set_policy(std::move(*wanted));
  co_return respond(applied);
}

async::Task<http::Response> Api::list_checkpoints(http::RequestHead head) {
  auto query = audit_query(head.query());
  if (!query) co_return std::unexpected(query.error());
  auto const told = co_await worker_.host().audit.checkpoints(query->after);
  if (!told) co_return std::unexpected(told.error());
  co_return json_response(200, wire::encode_text(*told));
}

async::Task<http::Response> Api::list_audit(http::RequestHead head) {
  auto query = audit_query(head.query());
  if (!query) co_return std::unexpected(query.error());
  auto const page = co_await worker_.host().audit.page(std::move(*query));
  if (!page) co_return std::unexpected(page.error());
  co_return json_response(200,
                          fmt::format(R"({{"records":[{}],"next_after":{},"more":{}}})",
                                      fmt::join(page->lines, ","),
                                      page->next_after,
                                      page->more));
}

async::Task<void> Api::stream_decisions(http::ResponseWriter* response,
                                        std::string id,
                                        bool follow) {
  auto begun = co_await response->begin({200, {{"Content-Type", "application/x-ndjson"}}});
  if (!begun) co_return begun;
  auto& feed = worker_.host().audit;
  std::uint64_t seen = 0;
  for (;;) {
    auto const up_to = feed.last();
    for (auto const& one : feed.after(seen, id)) {
      auto const written = co_await response->write(one.record + "\n");
      if (!written) co_return written;
    }
    seen = up_to;
    if (!worker_.find(id)) co_return base::Result<void>();
    if (!follow) co_return co_await response->finish();
    if (feed.last() > seen) continue;
    auto const more =
        co_await async::run_until(base::system_clock().in(std::chrono::seconds(5)), feed.wait());
    if (more == async::Ended::cancelled)
      co_return base::fail(base::Code::cancelled, "the worker stops");
    if (more == async::Ended::finished) continue;
    auto const alive = co_await response->write("\n");
    if (!alive) co_return alive;
  }
}

async::Task<void> Api::stream_ended(http::ResponseWriter* response) {
  auto begun = co_await response->begin({200, {{"Content-Type", "application/x-ndjson"}}});
  if (!begun) co_return begun;
  std::uint64_t seen = 0;
  for (;;) {
    for (auto const& end : worker_.host().ended.after(seen, 100)) {
      auto const written = co_await response->write(wire::encode_text(to_wire(end.entry)) + "\n");
      if (!written) co_return written;
      seen = end.number;
    }
    if (!worker_.host().ended.after(seen, 1).empty()) continue;
    auto const more = co_await async::run_until(base::system_clock().in(std::chrono::seconds(5)),
                                                worker_.host().ended.wait());
    if (more == async::Ended::cancelled)
      co_return base::fail(base::Code::cancelled, "the worker stops");
    if (more == async::Ended::finished) continue;
    auto const alive = co_await response->write("\n");
    if (!alive) co_return alive;
  }
}

}  // namespace worker
