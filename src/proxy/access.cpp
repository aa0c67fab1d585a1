#include "proxy/access.hpp"

#include "base/secret.hpp"
#include "proxy/digest.hpp"
#include "proxy/target.hpp"

namespace proxy {
namespace {

constexpr std::string_view not_found = "The sandbox was not found";

bool token_is(std::string_view token, std::string const& sha256) {
  // An empty hash would be equal to nothing anyway; said here so that no change of sha256_hex can
  // open a door.
  if (token.empty() || sha256.size() != 64) return false;
  return base::equal_in_constant_time(sha256_hex(token), sha256);
}

bool has_query_key(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    auto const part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.substr(0, part.find('=')) == key) return true;
  }
  return false;
}

/// What the agent itself lets pass without a token: asking whether it lives, and signed URLs, which
/// it checks.
bool is_exempt(http::RequestHead const& head) {
  if (head.path() == "/health") return true;
  return head.path() == "/files" && has_query_key(head.query(), "signature");
}

/// Is it asleep, or on its way there or back?
bool is_asleep(std::string const& state) {
  return state == "paused" || state == "suspended" || state == "pausing" || state == "resuming" ||
         state == "suspending" || state == "restoring";
}

/// `proven`: the visitor showed the token that this port needs, or it needs none.
std::optional<Refusal> refusal_of_state(wire::Route const& route, bool proven) {
  auto const& state = route.state;
  if (state == "running") return std::nullopt;
  if (route.auto_resume && is_asleep(state)) {
    if (proven) return Refusal{503, "The sandbox is being woken", true};
    return Refusal{403, "The sandbox sleeps, and without its access token it is not woken"};
  }
  for (std::string_view const coming : {"creating", "resuming", "restoring"}) {
    if (state == coming)
      return Refusal{
          409, fmt::format("The sandbox is {}; try again in a moment", state), false, proven};
  }
  // Asleep, deleting, gone: the same to a stranger. On its way to sleep, too: E2B's API calls that
  // paused already, and its clients ask here whether it runs. Whoever has the token waits for how
  // that ends: it may also go on.
  bool const leaving = state == "pausing" || state == "suspending";
  return Refusal{502, std::string(not_found), false, proven && leaving};
}

template <class F> void for_each_token(std::string_view list, F use) {
  while (!list.empty()) {
    auto token = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), token.size() + 1));
    while (token.starts_with(' ') || token.starts_with('\t'))
      token.remove_prefix(1);
    while (token.ends_with(' ') || token.ends_with('\t'))
      token.remove_suffix(1);
    if (!token.empty()) use(token);
  }
}

}  // namespace

std::optional<Refusal> refusal_of(wire::Route const& route,
                                  std::uint16_t port,
                                  http::RequestHead const& head) {
  // Tokens first: a stranger must not learn the state of somebody's sandbox.
  bool proven = true;
  if (port == agent_port) {
    proven =
        !route.secure || token_is(head.headers.get("X-Access-Token"), route.access_token_sha256);
    if (!proven && !is_exempt(head))
      return Refusal{401, "The access token is missing or not the one of this sandbox"};
  } else if (!route.public_traffic &&
             !token_is(head.headers.get("e2b-traffic-access-token"), route.traffic_token_sha256)) {
    return Refusal{403,
                   "This sandbox takes no public traffic: the header e2b-traffic-access-token is "
                   "missing or wrong"};
  }
  return refusal_of_state(route, proven);
}

bool is_host_only(std::string_view path) {
  auto const decoded = http::percent_decode(path);
  if (!decoded)
    return false;  // no reader makes one of our names of a broken escape; the agent refuses it
  std::vector<std::string_view> segments;
  std::string_view rest = *decoded;
  rest = rest.substr(0, rest.find(';'));
  while (!rest.empty()) {
    auto const segment = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), segment.size() + 1));
    if (segment.empty() || segment == ".") continue;
    if (segment != "..")
      segments.push_back(segment);
    else if (!segments.empty())
      segments.pop_back();
  }
  static constexpr std::array<std::string_view, 7> names = {
      "init", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw", "upgrade"};
  return segments.size() == 1 && std::ranges::any_of(names, [&](auto name) {
           return http::equal_ignoring_case(name, segments[0]);
         });
}

bool wants_upgrade(http::Headers const& headers) {
  bool said = false;
  for (auto const& [name, value] : headers) {
    if (!http::equal_ignoring_case(name, "Connection")) continue;
    for_each_token(value, [&](std::string_view token) {
      said = said || http::equal_ignoring_case(token, "upgrade");
    });
  }
  return said && !headers.get("Upgrade").empty();
}

namespace {

/// What concerns one connection only: RFC 9110 7.6.1 and the fields that Connection names.
void remove_hop_by_hop(http::Headers& headers) {
  std::vector<std::string> named;
  for (auto const& [name, value] : headers) {
    if (!http::equal_ignoring_case(name, "Connection")) continue;
    for_each_token(value, [&](std::string_view token) { named.emplace_back(token); });
  }
  for (auto const& name : named) {
    // Naming these would change what the message is.
    bool const essential = http::equal_ignoring_case(name, "Host") ||
                           http::equal_ignoring_case(name, "Content-Length") ||
                           http::equal_ignoring_case(name, "Transfer-Encoding");
    if (!essential) headers.remove(name);
  }
  for (std::string_view const name : {"Connection",
                                      "Keep-Alive",
                                      "Proxy-Connection",
                                      "Proxy-Authenticate",
                                      "Proxy-Authorization",
                                      "TE",
                                      "Trailer",
                                      "Upgrade",
                                      "Expect"}) {
    headers.remove(name);
  }
}

void remove_hop_by_hop_of_request(http::Headers& headers) {
  bool const upgrade = wants_upgrade(headers);
  std::string protocol(headers.get("Upgrade"));
  remove_hop_by_hop(headers);
  if (!upgrade) return;
  headers.add("Connection", "Upgrade");
  headers.add("Upgrade", std::move(protocol));
}

/// A cookie's first part is its name and value, whatever they are; what browsers take for spaces
/// around an attribute's name is at most what we do.
std::string without_domain(std::string_view cookie) {
  auto const is_space = [](char c) { return static_cast<unsigned char>(c) <= ' '; };
  std::string out;
  for (bool first = true; first || !cookie.empty(); first = false) {
    auto const part = cookie.substr(0, cookie.find(';'));
    cookie.remove_prefix(std::min(cookie.size(), part.size() + 1));
    auto name = part.substr(0, part.find('='));
    while (!name.empty() && is_space(name.front()))
      name.remove_prefix(1);
    while (!name.empty() && is_space(name.back()))
      name.remove_suffix(1);
    if (!first && http::equal_ignoring_case(name, "Domain")) continue;
    if (!first) out += ';';
    out += part;
  }
  return out;
}

}  // namespace

http::ResponseHead head_for_visitor(http::ResponseHead head) {
  remove_hop_by_hop(head.headers);
  http::Headers kept;
  for (auto const& [name, value] : head.headers)
    kept.add(name, http::equal_ignoring_case(name, "Set-Cookie") ? without_domain(value) : value);
  head.headers = std::move(kept);
  return head;
}

http::RequestHead head_for_guest(http::RequestHead head,
                                 wire::Route const& route,
                                 std::uint16_t port) {
  remove_hop_by_hop_of_request(head.headers);
  head.headers.remove("X-API-KEY");
  head.headers.remove("e2b-traffic-access-token");
  if (port == agent_port) return head;
  // The tenant's own program listens there: it must not learn what opens the rest of the sandbox.
  for (std::string_view const name : {"X-Access-Token", "E2b-Sandbox-Id", "E2b-Sandbox-Port"})
    head.headers.remove(name);
  if (route.mask_request_host.empty()) return head;
  std::string mask = route.mask_request_host;
  static constexpr std::string_view placeholder = "${PORT}";
  if (auto const at = mask.find(placeholder); at != std::string::npos)
    mask.replace(at, placeholder.size(), std::to_string(port));
  head.headers.set("X-Forwarded-Host", std::string(head.headers.get("Host")));
  head.headers.set("Host", std::move(mask));
  return head;
}

http::RequestHead head_for_api(http::RequestHead head, std::string_view peer_name) {
  remove_hop_by_hop_of_request(head.headers);
  // We are the first in the chain: what a visitor claims here is not true.
  auto address = peer_name.substr(0, peer_name.rfind(':'));
  if (address.starts_with('[') && address.ends_with(']'))
    address = address.substr(1, address.size() - 2);
  head.headers.set("X-Forwarded-For", std::string(address));
  return head;
}

}  // namespace proxy
