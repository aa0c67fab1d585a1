#include "proxy/proxy.hpp"

#include "base/log.hpp"
#include "proxy/access.hpp"
#include "proxy/digest.hpp"
#include "proxy/forward.hpp"

namespace proxy {
namespace {

using Outcome = Forward::Outcome;

constexpr std::string_view not_found = "The sandbox was not found";
constexpr int wakes_per_request = 2;
constexpr std::chrono::milliseconds look_pause_min{50};
constexpr std::chrono::milliseconds look_pause_max{800};

asio::awaitable<void> say(http::Request& request, http::ResponseWriter& response, Reply reply) {
  if (response.started()) co_return;
  auto sent = co_await response.send(render(reply, request.head));
  (void)sent;  // a visitor that left hears nothing
}

Reply about(std::string sandbox, int status, std::string message) {
  Reply reply;
  reply.status = status;
  reply.message = std::move(message);
  reply.sandbox = std::move(sandbox);
  reply.about_sandbox = true;
  return reply;
}

Reply api_is_down() {
  Reply reply;
  reply.status = 503;
  reply.message = "The platform is starting or being restarted; try again in a moment";
  reply.retry_after_s = 1;
  return reply;
}

/// What the visitor hears when no guest connection could be made.
Reply dial_failure(base::Error const& error, std::string const& sandbox, std::uint16_t port) {
  switch (error.code()) {
    case base::Code::denied: {
      auto reply = about(sandbox, 502, "The sandbox is running but port is not open");
      reply.port = port;
      return reply;
    }
    case base::Code::not_found:
    case base::Code::conflict:  // another life of it: the one that was asked for is over
      return about(sandbox, 502, std::string(not_found));
    case base::Code::exhausted:
      return about(sandbox, 429, "Too many connections to this sandbox");
    default: {
      auto reply = about(sandbox, 503, "The sandbox's host does not answer; try again in a moment");
      reply.retry_after_s = 1;
      return reply;
    }
  }
}

/// What makes it pointless to go on dialling.
asio::awaitable<void> gone_or_cut(http::ResponseWriter* response, Visit* visit) {
  auto gone = response->wait_client_gone();
  auto cut = visit->wait_cut();
  co_await async::race(std::move(gone), std::move(cut));
}

bool may_be_repeated(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "OPTIONS";
}

}  // namespace

/// A guest connection of one visitor, kept for its next request to the same place. Never shared.
struct Proxy::GuestLink {
  GuestLink() = default;
  ToGuest to;
  std::unique_ptr<Visit> visit;
  std::optional<http::Connection> connection;
  bool reused = false;

  ~GuestLink() {
    if (visit) visit->watch(nullptr, nullptr);
  }

  GuestLink(GuestLink const&) = delete;
  GuestLink& operator=(GuestLink const&) = delete;

  void drop() {
    if (visit) visit->watch(nullptr, nullptr);
    connection.reset();
    reused = false;
  }
};

struct Proxy::Visitor {
  std::unique_ptr<GuestLink> guest;
  std::optional<http::Connection> api;
};

Proxy::Proxy(asio::any_io_executor executor, Options options)
    : executor_(executor),
      options_(std::move(options)),
      routes_(executor, options_.internal_socket),
      dialer_(executor, options_.dial_socket, options_.worker_return),
      visits_(executor, options_.per_sandbox_max),
      wakes_(executor, options_.internal_socket, options_.wakes) {}

Proxy::Visitor& Proxy::visitor_of(http::Request& request) {
  auto& state = *request.connection_state;
  if (!state) state = std::make_shared<Visitor>();
  return *static_cast<Visitor*>(state.get());  // SAFETY: nobody else puts anything there
}

asio::awaitable<void> Proxy::handle(http::Request& request, http::ResponseWriter& response) {
  auto target = find_target(request.head, options_.domain);
  if (auto* guest = std::get_if<ToGuest>(&target)) {
    co_await handle_guest(request, response, std::move(*guest));
  } else if (auto* token = std::get_if<ToTokensGuest>(&target)) {
    co_await handle_token(request, response, std::move(token->token));
  } else if (auto* nobody = std::get_if<ToNobody>(&target)) {
    Reply reply;
    reply.status = 400;
    reply.message = std::move(nobody->why);
    co_await say(request, response, std::move(reply));
  } else {
    co_await handle_api(request, response);
  }
}

asio::awaitable<void> Proxy::handle_token(http::Request& request,
                                          http::ResponseWriter& response,
                                          std::string token) {
  auto route = co_await routes_.of_token(sha256_hex(token));
  if (!route) {
    // A sandbox that is gone took its token along; the API must not answer /health in its place.
    bool const unknown = route.error().code() == base::Code::not_found;
    co_return co_await say(
        request, response, unknown ? about({}, 502, std::string(not_found)) : api_is_down());
  }
  // Asked again by its id inside: only a sandbox that is known to the visits hears of a change in
  // between.
  co_await handle_guest(
      request, response, {.sandbox = std::move(route->sandbox), .port = agent_port});
}

asio::awaitable<void> Proxy::handle_guest(http::Request& request,
                                          http::ResponseWriter& response,
                                          ToGuest to) {
  if (to.port == agent_port && is_host_only(request.head.path())) {
    Reply reply;
    reply.status = 404;
    reply.message = "This call is the host's alone";
    reply.path = request.head.path();
    co_return co_await say(request, response, std::move(reply));
  }
  // It may fall asleep again between being woken and being reached, or just now; not for ever.
  auto const until = base::system_clock().in(options_.change_patience);
  auto pause = look_pause_min;
  for (int wakes = wakes_per_request;;) {
    bool const may_look = base::system_clock().steady_now() < until;
    auto const next = co_await try_guest(request, response, to, {wakes > 0, may_look});
    if (next == Next::done) co_return;
    if (next == Next::woken) {
      --wakes;
      continue;
    }
    auto left = response.wait_client_gone();
    auto right = async::sleep_for(pause);
    auto const first = co_await async::race(std::move(left), std::move(right));
    if (first == async::First::left) co_return;
    pause = std::min(pause * 2, look_pause_max);
  }
}

asio::awaitable<bool> Proxy::has_moved(wire::Route route) {
  auto const now = co_await routes_.of_sandbox(route.sandbox);
  if (!now) co_return now.error().code() == base::Code::not_found;
  co_return now->state != "running" || now->epoch != route.epoch;
}

asio::awaitable<Proxy::Next> Proxy::try_guest(http::Request& request,
                                              http::ResponseWriter& response,
                                              ToGuest to,
                                              Left left) {
  auto& visitor = visitor_of(request);
  auto link = std::move(visitor.guest);
  bool const same =
      link && link->to.sandbox == to.sandbox && link->to.port == to.port && !link->visit->is_cut();
  if (!same) {
    link.reset();  // before the count of its sandbox is looked at
    auto visit = visits_.enter(to.sandbox);
    if (!visit) {
      co_await say(
          request, response, about(to.sandbox, 429, "Too many connections to this sandbox"));
      co_return Next::done;
    }
    link = std::make_unique<GuestLink>();
    link->to = to;
    link->visit = std::move(visit);
  }
  auto route = co_await routes_.of_sandbox(to.sandbox);
  if (!route) {
    bool const unknown = route.error().code() == base::Code::not_found;
    co_await say(request,
                 response,
                 unknown ? about(to.sandbox, 502, std::string(not_found)) : api_is_down());
    co_return Next::done;
  }
  if (link->connection && link->visit->epoch() != route->epoch) link->drop();
  link->visit->admit(*route);
  auto refusal = refusal_of(*route, to.port, request.head);
  if (refusal && refusal->wake && left.wakes) {
    link.reset();  // of the life that is over, and cut with it
    bool const woken = co_await wake(request, response, to.sandbox);
    co_return woken ? Next::woken : Next::done;
  }
  if (refusal && refusal->wait && left.looks) co_return Next::look_again;
  if (refusal) {
    auto reply = about(to.sandbox, refusal->status, std::move(refusal->message));
    reply.about_sandbox =
        refusal->status != 401;  // the agent's own shape of it: clients expect code and message
    if (!reply.about_sandbox) reply.sandbox.clear();
    co_await say(request, response, std::move(reply));
  } else {
    auto const next = co_await forward_guest(request, response, *link, *route, left.looks);
    if (next != Next::done) co_return next;
  }
  if (link->visit->is_cut()) co_return Next::done;
  if (link->connection && link->connection->reusable())
    link->visit->watch(&link->connection->stream(), nullptr);
  else
    link->drop();
  if (link->connection) visitor.guest = std::move(link);
  co_return Next::done;
}

/// Waits for it, unless the visitor leaves.
asio::awaitable<bool> Proxy::wake(http::Request& request,
                                  http::ResponseWriter& response,
                                  std::string sandbox) {
  base::Result<void> woken;
  bool done = false;
  auto waking = [](Wakes* wakes,
                   std::string which,
                   base::Result<void>* out,
                   bool* ended) -> asio::awaitable<void> {
    *out = co_await wakes->wake(std::move(which));
    *ended = true;
  };
  auto left = response.wait_client_gone();
  auto right = waking(&wakes_, sandbox, &woken, &done);
  co_await async::race(std::move(left), std::move(right));
  if (!done) co_return false;
  if (woken) co_return true;
  auto const code = woken.error().code();
  auto reply = about(sandbox, 503, woken.error().message());
  if (code == base::Code::not_found) reply = about(sandbox, 502, std::string(not_found));
  if (code == base::Code::conflict) reply.status = 409;
  if (code == base::Code::exhausted) reply.status = 429;
  if (reply.status == 503 || reply.status == 429) reply.retry_after_s = 5;
  co_await say(request, response, std::move(reply));
  co_return false;
}

asio::awaitable<Proxy::Next> Proxy::forward_guest(http::Request& request,
                                                  http::ResponseWriter& response,
                                                  GuestLink& link,
                                                  wire::Route const& route,
                                                  bool may_look) {
  bool const repeatable = may_be_repeated(request.head.method);
  // A kept connection can be closed by the guest just when we choose it. The agent keeps its
  // connections longer than we do; for other servers only a request that may be sent twice goes
  // over a kept one.
  bool const kept =
      link.connection && link.connection->reusable() && (repeatable || link.to.port == agent_port);
  if (!kept) link.drop();
  link.reused = kept;
  for (bool may_repeat : {kept && repeatable, false}) {
    auto const next = co_await forward_once(request, response, link, route, {may_repeat, may_look});
    if (next) co_return *next;
  }
  co_return Next::done;
}

asio::awaitable<std::optional<Proxy::Next>> Proxy::forward_once(http::Request& request,
                                                                http::ResponseWriter& response,
                                                                GuestLink& link,
                                                                wire::Route const& route,
                                                                Attempt may) {
  if (!link.connection) {
    auto const failed = co_await connect_guest(request, response, link, route, may.look);
    if (failed) co_return failed;
  }
  link.visit->watch(&link.connection->stream(), &request.connection);
  auto head = head_for_guest(request.head, route, link.to.port);
  Forward forward(request, response, *link.connection, std::move(head), link.visit.get());
  auto const outcome = co_await forward.run();
  if (outcome == Outcome::complete) co_return Next::done;
  bool const cut = link.visit->is_cut();
  bool const never_heard =
      outcome == Outcome::no_answer && !forward.took_body() && !link.connection->heard_anything();
  link.drop();
  if (outcome == Outcome::gone || outcome == Outcome::cut_short)
    co_return Next::done;  // the server cuts what was begun
  // Put to sleep under it: one that may be sent twice is, to whatever it is next.
  if (cut && may.look && never_heard && may_be_repeated(request.head.method))
    co_return Next::look_again;
  if (cut) {
    co_await say(request, response, about(link.to.sandbox, 502, std::string(not_found)));
    co_return Next::done;
  }
  if (never_heard && may.repeat) co_return std::nullopt;
  if (outcome == Outcome::bad_request) {
    Reply reply;
    reply.status = 400;
    reply.message = "The request's body is malformed";
    co_await say(request, response, std::move(reply));
    co_return Next::done;
  }
  auto reply = about(link.to.sandbox,
                     502,
                     outcome == Outcome::no_answer
                         ? "The server in the sandbox closed the connection without an answer"
                         : "The server in the sandbox gave an answer that is not HTTP");
  reply.port = link.to.port;
  co_await say(request, response, std::move(reply));
  co_return Next::done;
}

asio::awaitable<std::optional<Proxy::Next>> Proxy::connect_guest(http::Request& request,
                                                                 http::ResponseWriter& response,
                                                                 GuestLink& link,
                                                                 wire::Route const& route,
                                                                 bool may_look) {
  Reply failure;
  bool connected = false;
  auto dialling = [](Proxy* self, GuestLink* to, wire::Route const* where, Reply* why, bool* done)
      -> asio::awaitable<void> {
    wire::DialRequest const ask{
        .sandbox = to->to.sandbox, .epoch = where->epoch, .port = to->to.port};
    auto stream = co_await self->dialer_.dial_patiently(where->worker, ask);
    if (!stream) {
      *why = dial_failure(stream.error(), to->to.sandbox, to->to.port);
      if (why->status == 503)
        base::log::warn("dial_failed",
                        {{"what", stream.error().message()}, {"detail", stream.error().detail()}});
      co_return;
    }
    to->connection.emplace(std::move(*stream));
    *done = true;
  };
  auto left = gone_or_cut(&response, link.visit.get());
  auto right = dialling(this, &link, &route, &failure, &connected);
  auto const first = co_await async::race(std::move(left), std::move(right));
  bool const cut = link.visit->is_cut();
  if (cut)
    failure = about(link.to.sandbox, 502, std::string(not_found));
  else if (first == async::First::left)
    co_return Next::done;
  if (connected && !cut) co_return std::nullopt;
  link.drop();
  // A machine that is being put to sleep refuses, or does not answer: then that is not the answer.
  bool moved = cut;
  if (may_look && !moved) moved = co_await has_moved(route);
  if (may_look && moved) co_return Next::look_again;
  co_await say(request, response, std::move(failure));
  co_return Next::done;
}

asio::awaitable<void> Proxy::handle_api(http::Request& request, http::ResponseWriter& response) {
  auto& visitor = visitor_of(request);
  if (visitor.api && !visitor.api->reusable()) visitor.api.reset();
  bool const again =
      co_await api_once(request, response, visitor.api && may_be_repeated(request.head.method));
  if (again) (void)co_await api_once(request, response, false);
}

asio::awaitable<bool> Proxy::api_once(http::Request& request,
                                      http::ResponseWriter& response,
                                      bool may_repeat) {
  auto& visitor = visitor_of(request);
  auto connection = std::exchange(visitor.api, std::nullopt);
  if (!connection) {
    auto stream = co_await net::connect_unix(options_.api_socket);
    if (!stream) {
      base::log::warn("api_unreachable", {{"what", stream.error().message()}});
      co_await say(request, response, api_is_down());
      co_return false;
    }
    connection.emplace(std::move(*stream));
  }
  auto head = head_for_api(request.head, request.connection.peer_name());
  Forward forward(request, response, *connection, std::move(head), nullptr);
  auto const outcome = co_await forward.run();
  if (outcome == Outcome::complete && connection->reusable()) visitor.api = std::move(connection);
  if (outcome == Outcome::no_answer && may_repeat && !forward.took_body()) co_return true;
  if (outcome == Outcome::bad_request) {
    Reply reply;
    reply.status = 400;
    reply.message = "The request's body is malformed";
    co_await say(request, response, std::move(reply));
  } else if (outcome == Outcome::no_answer || outcome == Outcome::bad_answer) {
    co_await say(request, response, api_is_down());
  }
  co_return false;
}

}  // namespace proxy
