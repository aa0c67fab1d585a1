#include "agent/router.hpp"

#include "agent/metrics.hpp"

#include <boost/json/object.hpp>

namespace agent {

Router::Router(Context& context,
               std::vector<RpcService*> services,
               http::Handler& files,
               http::Handler& init)
    : context_(context), services_(std::move(services)), files_(files), init_(init) {}

asio::awaitable<void> Router::handle(http::Request& request, http::ResponseWriter& response) {
  auto const& method = request.head.method;
  auto const path = request.head.path();
  http::Response answer;
  if (path == "/init") {
    // Its own key is checked by the handler: the access token is what it brings.
    if (method == "POST") co_return co_await init_.handle(request, response);
    answer = json_error(405, "use POST");
  } else if (path == "/files") {
    // A signed URL carries no token, so this handler does the checking.
    if (method == "GET" || method == "POST" || method == "HEAD")
      co_return co_await files_.handle(request, response);
    answer = json_error(405, "use GET or POST");
  } else if (path == "/health") {
    bool const get = method == "GET" || method == "HEAD";
    answer =
        get ? http::Response{204, {{"cache-control", "no-store"}}, {}} : json_error(405, "use GET");
  } else if (!token_ok(request.head) && !(path == "/metrics" && is_host(request.head))) {
    answer = json_error(
        401, "unauthorized access, please provide a valid access token in X-Access-Token");
  } else if (path == "/files/compose") {
    if (method == "POST") co_return co_await files_.handle(request, response);
    answer = json_error(405, "use POST");
  } else if (path == "/metrics" || path == "/envs") {
    answer = method == "GET" ? plain_get(path) : json_error(405, "use GET");
  } else {
    co_return co_await handle_rpc(request, response);
  }
  auto const sent = co_await response.send(std::move(answer));
  static_cast<void>(sent);  // the caller left; nothing to do for it
}

bool Router::token_ok(http::RequestHead const& head) const {
  if (context_.access_token.empty()) return true;
  return context_.access_token.equals(head.headers.get("x-access-token"));
}

bool Router::is_host(http::RequestHead const& head) const {
  return !context_.init_key.empty() &&
         context_.init_key.equals(head.headers.get("x-space-init-key"));
}

http::Response Router::plain_get(std::string_view path) const {
  if (path == "/metrics") {
    auto metrics = machine_metrics();
    std::size_t commands = 0;
    for (auto const* service : services_)
      commands += service->running();
    metrics["commands"] = commands;
    return json_answer(200, metrics);
  }
  json::object env;
  for (auto const& [name, value] : context_.env)
    env[name] = value;
  return json_answer(200, env);
}

asio::awaitable<void> Router::handle_rpc(http::Request& request, http::ResponseWriter& response) {
  auto const path = request.head.path();
  auto const cut = path.rfind('/');
  auto const service_name =
      cut == 0 || cut == std::string_view::npos ? std::string_view() : path.substr(1, cut - 1);
  for (auto* service : services_) {
    if (service->name() != service_name) continue;
    if (request.head.method != "POST") {
      auto answer = json_error(405, "use POST");
      answer.headers.add("allow", "POST");
      auto const sent = co_await response.send(std::move(answer));
      static_cast<void>(sent);
      co_return;
    }
    co_return co_await serve_rpc(*service, std::string(path.substr(cut + 1)), request, response);
  }
  auto const sent =
      co_await response.send(json_error(404, "there is no such endpoint in the sandbox's agent"));
  static_cast<void>(sent);
}

}  // namespace agent
