#include "controlplane/internal.hpp"

#include "base/id.hpp"

namespace controlplane {
namespace {

using base::Code;

constexpr std::chrono::milliseconds route_timeout{3000};
constexpr std::chrono::milliseconds alive_every{5000};

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
  return wire::RouteChange{event.sandbox, std::move(what)};
}

Internal::Internal(SandboxService& service, store::Store& store, EventHub& hub, Peers peers)
    : service_(service), store_(store), hub_(hub), peers_(std::move(peers)) {}

asio::awaitable<void> Internal::handle(http::Request& request, http::ResponseWriter& response) {
  http::Response out;
  if (!peers_.admits(request.connection)) {
    out = answer_of({Code::denied, "this socket is for the programs of the installation"});
  } else if (request.head.method != "GET") {
    out = answer_of({Code::not_found, "there is no such call"});
  } else if (request.head.path() == "/changes") {
    co_await changes(response);
    co_return;
  } else if (request.head.path() == "/route") {
    auto found = co_await route(std::string(request.head.query()));
    if (found) {
      out.headers.add("Content-Type", "application/json");
      out.body = wire::encode_text(*found);
    } else {
      out = answer_of(found.error());
    }
  } else {
    out = answer_of({Code::not_found, "there is no such call"});
  }
  (void)(co_await response.send(std::move(out))).has_value();
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
