// E2B's routes that this version does not have: 501 and a sentence, so that nobody searches for a
// typing error.
#include "controlplane/e2b_routes.hpp"

#include <charconv>

namespace controlplane::e2b {
namespace {

constexpr auto no_builds =
    "building and changing templates is not available in this version; see `space template`";
constexpr auto no_volumes = "volumes are not available in this version";
constexpr auto no_secrets = "secrets are not available in this version";
constexpr auto no_keys = "keys are managed with `space key` or /v1/keys";

async::Task<Reply> later(std::string message) {
  co_return error_reply(501, message);
}

}  // namespace

Reply error_reply(int status, std::string_view message) {
  return json_reply(status, json::object{{"code", status}, {"message", message}});
}

Asker asker_of(Call const& call) {
  return {call.owner, call.idempotency_key, call.request_sha256};
}

base::Result<std::optional<std::int64_t>> query_number(Call const& call,
                                                       std::string_view name,
                                                       std::int64_t least,
                                                       std::int64_t most) {
  auto const text = call.query_value(name);
  if (!text) return std::optional<std::int64_t>();
  std::int64_t number = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < least ||
      number > most) {
    return base::fail(base::Code::invalid_argument,
                      fmt::format("{}: expected a whole number from {} to {}", name, least, most));
  }
  return std::optional(number);
}

void add_route(
    Router& router, std::string method, std::string pattern, Handler handler, Repeat repeat) {
  Route route;
  route.permission = method == "GET" ? Permission::read : Permission::write;
  route.method = std::move(method);
  route.pattern = std::move(pattern);
  route.dialect = Dialect::e2b;
  route.repeat = repeat;
  route.handler = std::move(handler);
  router.add(std::move(route));
}

void E2b::add_routes(Router& router) {
  add_sandbox_routes(router);
  add_lives_routes(router);
  add_observe_routes(router);
  add_template_routes(router);
  add_egress_routes(router);
  add_later_routes(router);
}

void E2b::add_later_routes(Router& router) {
  auto const add = [&](std::string method, std::string pattern, Handler handler) {
    add_route(router, std::move(method), std::move(pattern), std::move(handler));
  };
  auto const of_template = [&](std::string method, std::string pattern, char const* message) {
    add(std::move(method), std::move(pattern), [this, message](Call& call) {
      return template_later(call, message);
    });
  };
  auto const of_none = [&](std::string method, std::string pattern, char const* message) {
    add(std::move(method), std::move(pattern), [message](Call&) { return later(message); });
  };

  of_none("POST", "/templates", no_builds);
  of_none("POST", "/v2/templates", no_builds);
  of_none("POST", "/v3/templates", no_builds);
  of_none("POST", "/templates/tags", no_builds);
  of_none("DELETE", "/templates/tags", no_builds);
  of_template("POST", "/templates/{id*}", no_builds);
  of_template("PATCH", "/templates/{id*}", no_builds);
  of_template("PATCH", "/v2/templates/{id*}", no_builds);
  of_template("GET", "/templates/{id}/files/{hash}", no_builds);
  of_template("POST", "/v2/templates/{id}/builds/{build}", no_builds);
  of_template("GET", "/templates/{id}/builds/{build}/status", no_builds);
  of_template("GET", "/templates/{id}/builds/{build}/logs", no_builds);

  of_none("GET", "/volumes", no_volumes);
  of_none("POST", "/volumes", no_volumes);
  of_none("GET", "/volumes/{id}", no_volumes);
  of_none("DELETE", "/volumes/{id}", no_volumes);
  of_none("GET", "/secrets", no_secrets);
  of_none("POST", "/secrets", no_secrets);
  of_none("GET", "/secrets/{id}", no_secrets);
  of_none("POST", "/secrets/{id}", no_secrets);
  of_none("DELETE", "/secrets/{id}", no_secrets);
  of_none("GET", "/api-keys", no_keys);
  of_none("POST", "/api-keys", no_keys);
  of_none("PATCH", "/api-keys/{id}", no_keys);
  of_none("DELETE", "/api-keys/{id}", no_keys);
  of_none("POST", "/access-tokens", no_keys);
  of_none("DELETE", "/access-tokens/{id}", no_keys);
}

async::Task<Reply> E2b::template_later(Call& call, std::string message) {
  auto found = co_await find_template(call, call.param("id"));
  if (!found) co_return base::passing(found);
  co_return error_reply(501, message);
}

}  // namespace controlplane::e2b
