#include "controlplane/router.hpp"

#include "base/assert.hpp"
#include "wire/codec.hpp"

namespace controlplane {
namespace {

/// Segments as on the wire, without the first slash: "/a//b" is {"a", "", "b"}.
std::vector<std::string_view> segments_of(std::string_view path) {
  std::vector<std::string_view> segments;
  if (path.starts_with('/')) path.remove_prefix(1);
  for (;;) {
    auto const slash = path.find('/');
    segments.push_back(path.substr(0, slash));
    if (slash == std::string_view::npos) return segments;
    path.remove_prefix(slash + 1);
  }
}

bool is_parameter(std::string_view segment) {
  return segment.starts_with('{');
}

bool is_greedy(std::string_view segment) {
  return segment.ends_with("*}");
}

std::string name_in(std::string_view segment) {
  return std::string(segment.substr(1, segment.size() - (is_greedy(segment) ? 3 : 2)));
}

using Found = std::vector<std::pair<std::string, std::string_view>>;

/// `pattern` against `path`; parameters as slices of the path (greedy ones joined again).
std::optional<Found> fits(std::vector<std::string_view> const& pattern,
                          std::vector<std::string_view> const& path) {
  auto const greedy = std::ranges::find_if(pattern, is_greedy);
  bool const has_greedy = greedy != pattern.end();
  if (has_greedy ? path.size() < pattern.size() : path.size() != pattern.size())
    return std::nullopt;
  auto const extra = path.size() - pattern.size();
  Found found;
  std::size_t at = 0;
  for (auto const segment : pattern) {
    if (is_greedy(segment)) {
      auto const first = path[at];
      auto const last = path[at + extra];
      auto const length = static_cast<std::size_t>(last.data() + last.size() - first.data());
      found.emplace_back(name_in(segment), std::string_view(first.data(), length));
      at += extra + 1;
      continue;
    }
    if (is_parameter(segment)) {
      if (path[at].empty()) return std::nullopt;
      found.emplace_back(name_in(segment), path[at]);
    } else if (segment != path[at]) {
      return std::nullopt;
    }
    ++at;
  }
  return found;
}

/// Where two patterns fit one path, the more literal one wins: compared segment by segment.
std::string rank_of(std::vector<std::string_view> const& pattern) {
  std::string rank;
  for (auto const segment : pattern)
    rank += is_greedy(segment) ? 'c' : is_parameter(segment) ? 'b' : 'a';
  // A greedy segment with something behind it says more than one with nothing.
  return rank + (rank.ends_with('c') ? 'z' : 'y');
}

}  // namespace

std::string const& Call::param(std::string_view name) const {
  auto const found =
      std::ranges::find_if(params, [&](auto const& one) { return one.first == name; });
  SPACE_ASSERT(found != params.end(), "the handler asks for a parameter of its own pattern");
  return found->second;
}

std::optional<std::string> Call::query_value(std::string_view name) const {
  auto const found =
      std::ranges::find_if(query, [&](auto const& one) { return one.first == name; });
  if (found == query.end()) return std::nullopt;
  return found->second;
}

base::Result<void> Call::allow_query(std::initializer_list<std::string_view> names) const {
  for (auto const& [name, value] : query) {
    if (std::ranges::find(names, name) == names.end()) {
      return base::fail(base::Code::invalid_argument,
                        fmt::format("unknown query parameter \"{}\"", name));
    }
  }
  return {};
}

Reply json_reply(int status, json::value const& value) {
  Reply reply;
  reply.status = status;
  reply.body = wire::to_text(value);
  return reply;
}

Reply empty_reply(int status) {
  Reply reply;
  reply.status = status;
  return reply;
}

Reply streamed_reply() {
  Reply reply;
  reply.streamed = true;
  return reply;
}

void Router::add(Route route) {
  SPACE_ASSERT(route.pattern.starts_with('/') && route.handler, "a route has a path and a handler");
  for (auto const& other : routes_) {
    SPACE_ASSERT(other.method != route.method || other.pattern != route.pattern,
                 "each route is added once");
  }
  routes_.push_back(std::move(route));
}

base::Result<Router::Match> Router::match(std::string_view method, std::string_view path) const {
  auto const segments = segments_of(path);
  Match match;
  Found best;
  std::string best_rank;
  match.dialect = path.starts_with("/v1/") || path == "/v1" ? Dialect::native : Dialect::e2b;
  auto const wanted = method == "HEAD" ? std::string_view("GET") : method;
  for (auto const& route : routes_) {
    auto const pattern = segments_of(route.pattern);
    auto found = fits(pattern, segments);
    if (!found) continue;
    if (std::ranges::find(match.allowed, route.method) == match.allowed.end()) {
      match.allowed.push_back(route.method);
      if (route.method == "GET") match.allowed.emplace_back("HEAD");
    }
    auto rank = rank_of(pattern);
    if (route.method != wanted || (match.route && rank >= best_rank)) continue;
    match.route = &route;
    best = std::move(*found);
    best_rank = std::move(rank);
  }
  if (match.route) match.dialect = match.route->dialect;
  for (auto const& [name, raw] : best) {
    auto decoded = http::percent_decode(raw);
    if (!decoded) return base::passing(decoded, name);
    match.params.emplace_back(name, std::move(*decoded));
  }
  return match;
}

base::Result<json::value> body_of(Call const& call) {
  if (call.body.empty()) return json::value(json::object());
  return wire::parse_json(call.body, call.body.size() + 1);
}

}  // namespace controlplane
