#include "controlplane/internal.hpp"

#include "base/id.hpp"

#include <unistd.h>

namespace controlplane {
namespace {

using base::Code;

constexpr std::chrono::milliseconds route_timeout{3000};
constexpr std::chrono::milliseconds alive_every{5000};
constexpr std::chrono::milliseconds wake_timeout{60'000};
constexpr std::uint32_t e2b_wake_timeout_s = 300;
constexpr std::size_t activity_bytes_max = 1 << 20;
constexpr std::chrono::milliseconds suspend_all_timeout{110'000};
/// Captures share one disk, and in emulation two processors.
constexpr std::size_t suspends_at_a_time = 4;

http::Response answer_of(base::Error const& error) {
  http::Response response;
  response.status = base::http_status_of(error.code());
  response.headers.add("Content-Type", "application/json");
  response.body = wire::to_text(
      json::object{{"code", base::name_of(error.code())}, {"message", error.message()}});
  return response;
}

std::string text_in(json::value const& network, std::string_view name) {
  auto const* object = network.if_object();
  auto const* value = object ? object->if_contains(name) : nullptr;
  auto const* text = value ? value->if_string() : nullptr;
  return text ? std::string(*text) : std::string();
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

Asker visitor_of(store::SandboxRow const& row) {
  Asker asker;
  asker.owner.key_public_id = "visitor";
  asker.owner.project_id = row.project_id;
  asker.owner.project_public_id = row.project_public_id;
  return asker;
}

wire::Route route_of(store::SandboxRow const& row, std::string const& traffic_token) {
  wire::Route route;
  route.sandbox = row.public_id;
  route.epoch = row.epoch;
  route.state = std::string(domain::name_of(row.state));
  route.worker = row.node_address;
  route.secure = row.secure;
  route.access_token_sha256 = row.token_sha256;
  route.public_traffic = has_public_traffic(row);
  if (!route.public_traffic) route.traffic_token_sha256 = sha256_hex(traffic_token);
  route.mask_request_host = text_in(row.network, "maskRequestHost");
  route.auto_resume = row.auto_resume;
  return route;
}

std::optional<wire::RouteChange> change_of(store::EventRow const& event) {
  if (event.sandbox.empty()) return std::nullopt;
  std::string what;
  if (event.type == "sandbox.deleting" || event.type == "sandbox.deleted" ||
      event.type == "sandbox.failed")
    what = "ended";
  if (event.type == "sandbox.token_rotated") what = "token_revoked";
  if (event.type == "sandbox.suspending" || event.type == "sandbox.suspended") what = "suspended";
  if (what.empty()) return std::nullopt;
  wire::RouteChange change{event.sandbox, std::move(what), 0};
  auto const* data = event.data.if_object();
  auto const* epoch = data ? data->if_contains("epoch") : nullptr;
  if (change.what == "suspended" && epoch && epoch->is_number())
    change.epoch = epoch->to_number<std::uint64_t>();
  return change;
}

Internal::Internal(SandboxService& service, store::Store& store, EventHub& hub, Peers peers)
    : service_(service), store_(store), hub_(hub), peers_(std::move(peers)) {}

asio::awaitable<void> Internal::handle(http::Request& request, http::ResponseWriter& response) {
  http::Response out;
  if (!peers_.admits(request.connection)) {
    out = answer_of({Code::denied, "this socket is for the programs of the installation"});
  } else if (request.head.method == "GET" && request.head.path() == "/changes") {
    co_await changes(response);
    co_return;
  } else {
    auto made = co_await answer(request);
    out = made ? std::move(*made) : answer_of(made.error());
  }
  (void)(co_await response.send(std::move(out))).has_value();
}

async::Task<http::Response> Internal::answer(http::Request& request) {
  auto const& head = request.head;
  auto const is = [&head](std::string_view method, std::string_view path) {
    return head.method == method && head.path() == path;
  };
  auto const query = std::string(head.query());
  http::Response out;
  out.headers.add("Content-Type", "application/json");
  if (is("GET", "/route") || is("POST", "/wake")) {
    auto finding = is("GET", "/route") ? route(query) : wake(query);
    auto known = co_await std::move(finding);
    if (!known) co_return base::passing(known);
    out.body = wire::encode_text(*known);
    co_return out;
  }
  if (is("POST", "/activity")) {
    auto body = co_await request.body.read_all(activity_bytes_max);
    if (!body) co_return base::passing(body);
    auto noted = co_await note_activity(std::move(*body));
    if (!noted) co_return base::passing(noted);
    co_return http::Response{204, {}, {}};
  }
  // The whole host: for the supervisor, not for the proxy, which strangers talk to.
  auto const user = net::peer_user(request.connection);
  bool const ours = user && (user->uid == 0 || user->uid == ::geteuid());
  if (is("POST", "/suspend") && ours) {
    auto report = co_await suspend_all(query);
    if (!report) co_return base::passing(report);
    out.body = wire::to_text(*report);
    co_return out;
  }
  co_return base::fail(Code::not_found, "there is no such call");
}

/// The proxy checked the visitor's tokens; whether the sandbox wants to be woken is checked here.
async::Task<wire::Route> Internal::wake(std::string query) {
  auto const parsed = http::parse_query(query);
  if (!parsed) co_return std::unexpected(parsed.error());
  std::string sandbox;
  for (auto const& [name, value] : *parsed) {
    if (name == "sandbox" && base::is_short_id('i', value)) sandbox = value;
  }
  auto row = co_await store_.sandboxes.find_live(sandbox, base::system_clock().in(route_timeout));
  if (!row) co_return base::passing(row);
  if (!*row) co_return base::fail(Code::not_found, "there is no such sandbox");
  if (!(*row)->auto_resume && (*row)->state != domain::SandboxState::running)
    co_return base::fail(Code::conflict, "the sandbox does not wake by itself; resume it");
  // As E2B has it: traffic gives it at least five minutes.
  std::optional<std::uint32_t> timeout;
  if ((*row)->api == "e2b") timeout = std::max((*row)->timeout_s, e2b_wake_timeout_s);
  auto woken = co_await service_.wake(
      visitor_of(**row), sandbox, timeout, base::system_clock().in(wake_timeout));
  if (!woken) co_return base::passing(woken);
  co_return route_of(*woken, service_.traffic_token(*woken));
}

async::Task<void> Internal::note_activity(std::string body) {
  auto activity = wire::decode_text<wire::Activity>(body, wire::UnknownKeys::ignore);
  if (!activity) co_return base::passing(activity);
  std::erase_if(activity->sandboxes,
                [](std::string const& one) { return !base::is_short_id('i', one); });
  co_return co_await store_.sandboxes.touch(std::move(activity->sandboxes),
                                            base::system_clock().in(route_timeout));
}

/// {"suspended":N,"failed":[{"sandbox":…,"why":…}]}
async::Task<json::value> Internal::suspend_all(std::string query) {
  auto const parsed = http::parse_query(query);
  if (!parsed) co_return std::unexpected(parsed.error());
  std::string node;
  for (auto const& [name, value] : *parsed) {
    if (name == "node") node = value;
  }
  if (node.empty()) co_return base::fail(Code::invalid_argument, "node: expected its name");
  auto done = co_await service_.suspend_all(
      node, suspends_at_a_time, base::system_clock().in(suspend_all_timeout));
  if (!done) co_return base::passing(done);
  json::array failed;
  for (auto const& [sandbox, why] : done->failed)
    failed.push_back(json::object{{"sandbox", sandbox}, {"why", why}});
  co_return json::value(
      json::object{{"suspended", done->suspended}, {"failed", std::move(failed)}});
}

async::Task<wire::Route> Internal::route(std::string query) {
  auto parsed = http::parse_query(query);
  if (!parsed) co_return base::passing(parsed);
  auto const deadline = base::system_clock().in(route_timeout);
  std::optional<store::SandboxRow> row;
  for (auto const& [name, value] : *parsed) {
    base::Result<std::optional<store::SandboxRow>> found;
    if (name == "sandbox" && base::is_short_id('i', value)) {
      found = co_await store_.sandboxes.find_live(value, deadline);
    } else if (name == "token_sha256" && is_sha256(value)) {
      found = co_await store_.sandboxes.find_by_token(value, deadline);
    } else {
      continue;
    }
    if (!found) co_return base::passing(found);
    row = std::move(*found);
    break;
  }
  if (!row) co_return base::fail(Code::not_found, "there is no such sandbox");
  co_return route_of(*row, service_.traffic_token(*row));
}

asio::awaitable<void> Internal::changes(http::ResponseWriter& response) {
  auto head = co_await hub_.head(base::system_clock().in(route_timeout));
  if (!head) {
    (void)(co_await response.send(answer_of(head.error()))).has_value();
    co_return;
  }
  http::ResponseHead begin;
  begin.headers.add("Content-Type", "application/x-ndjson");
  auto begun = co_await response.begin(std::move(begin));
  if (!begun) co_return;
  auto following = follow(response, EventHub::Feed(hub_, {}, {}, *head));
  auto gone = response.wait_client_gone();
  co_await async::race(std::move(following), std::move(gone));
}

asio::awaitable<void> Internal::follow(http::ResponseWriter& response, EventHub::Feed feed) {
  // At once, so that the proxy knows that from here on nothing is missed.
  auto sent = co_await response.write("\n");
  auto alive_at = base::system_clock().in(alive_every);
  while (sent) {
    auto events = co_await feed.next(alive_at);
    if (!events) co_return;  // the proxy connects again and checks what it has open
    std::string lines;
    for (auto const& event : *events) {
      if (auto const change = change_of(event)) lines += wire::encode_text(*change) + "\n";
    }
    if (lines.empty() && base::system_clock().steady_now() < alive_at) continue;
    if (lines.empty()) lines = "\n";
    alive_at = base::system_clock().in(alive_every);
    sent = co_await response.write(lines);
  }
}

}  // namespace controlplane
