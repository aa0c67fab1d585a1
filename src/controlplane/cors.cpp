#include "controlplane/cors.hpp"

#include <algorithm>

#include <fmt/ranges.h>

namespace controlplane {
namespace {

constexpr char const* exposed =
    "X-Request-Id, X-Next-Token, X-Total-Running, Retry-After, Idempotency-Replayed";

}  // namespace

http::Headers Cors::headers(http::Headers const& request) const {
  http::Headers out;
  auto const origin = request.find("origin");
  if (!origin) return out;
  bool const all = std::ranges::find(origins_, "*") != origins_.end();
  bool const listed = std::ranges::find(origins_, *origin) != origins_.end();
  if (!all) out.add("Vary", "Origin");
  if (!all && !listed) return out;
  out.add("Access-Control-Allow-Origin", all ? "*" : std::string(*origin));
  out.add("Access-Control-Expose-Headers", exposed);
  return out;
}

bool Cors::is_preflight(http::RequestHead const& head) {
  return head.method == "OPTIONS" && head.headers.find("origin") &&
         head.headers.find("access-control-request-method");
}

http::Response Cors::preflight(http::RequestHead const& head,
                               std::vector<std::string> const& methods) const {
  http::Response response;
  response.status = 204;
  response.headers = headers(head.headers);
  if (!response.headers.find("access-control-allow-origin")) return response;
  response.headers.add("Access-Control-Allow-Methods", fmt::format("{}", fmt::join(methods, ", ")));
  // Whatever the page asks to send; "*" would not cover Authorization.
  auto const wanted = head.headers.get("access-control-request-headers");
  if (!wanted.empty() && wanted.size() <= 1000)
    response.headers.add("Access-Control-Allow-Headers", std::string(wanted));
  response.headers.add("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace controlplane
