#pragma once

#include "http/server.hpp"
#include "proxy/dialer.hpp"
#include "proxy/reply.hpp"
#include "proxy/routes.hpp"
#include "proxy/target.hpp"
#include "proxy/visits.hpp"
#include "proxy/wakes.hpp"

namespace proxy {

namespace asio = boost::asio;

struct Options {
  std::string domain;                   // lower-case, without a port
  std::string api_socket;               // public routes
  std::string internal_socket;          // routes and changes
  std::string dial_socket;              // of the worker on this host
  std::size_t per_sandbox_max = 1'000;  // visitor connections
  Wakes::Limits wakes{};
  std::chrono::milliseconds worker_return = Dialer::worker_return_max;
  /// How long a request waits for a sandbox that is on its way to sleep or back.
  std::chrono::milliseconds change_patience{20'000};
};

/// The front door of one host: decides whom a request is for, asks the API whether it may pass, and
/// carries it there. Serves the TLS port, the plain port and the internal socket alike.
class Proxy final : public http::Handler {
 public:
  Proxy(asio::any_io_executor executor, Options options);

  asio::awaitable<void> handle(http::Request& request, http::ResponseWriter& response) override;

  /// Follows changes until cancelled. Runs beside the servers.
  asio::awaitable<void> follow_changes() { return routes_.follow(visits_); }

  /// Wakes sandboxes and tells who is used, until cancelled. Runs beside the servers, and must have
  /// ended before this is destroyed.
  asio::awaitable<void> run_wakes() { return wakes_.run(visits_); }

  Visits const& visits() const noexcept { return visits_; }

 private:
  struct GuestLink;
  struct Visitor;

  static Visitor& visitor_of(http::Request& request);
  asio::awaitable<void> handle_guest(http::Request& request,
                                     http::ResponseWriter& response,
                                     ToGuest to);
  /// What became of one attempt.
  enum class Next : std::uint8_t {
    done,        // answered, or the visitor is gone
    woken,       // it runs now
    look_again,  // it moved under the request, of which the guest has seen nothing that counts
  };

  /// What this attempt may still do.
  struct Left {
    bool wakes = false;
    bool looks = false;
  };

  struct Attempt {
    bool repeat = false;  // the request was sent over a kept connection, and may be sent again
    bool look = false;    // the sandbox may be looked for again
  };

  asio::awaitable<Next> try_guest(http::Request& request,
                                  http::ResponseWriter& response,
                                  ToGuest to,
                                  Left left);
  /// Does the sandbox still live the life that this route is of?
  asio::awaitable<bool> has_moved(wire::Route route);
  asio::awaitable<bool> wake(http::Request& request,
                             http::ResponseWriter& response,
                             std::string sandbox);
  asio::awaitable<void> handle_token(http::Request& request,
                                     http::ResponseWriter& response,
                                     std::string token);
  asio::awaitable<void> handle_api(http::Request& request, http::ResponseWriter& response);
  /// Opens the guest connection (nothing is returned), or answers why there is none. Notices when
  /// the visitor leaves meanwhile.
  asio::awaitable<std::optional<Next>> connect_guest(http::Request& request,
                                                     http::ResponseWriter& response,
                                                     GuestLink& link,
                                                     wire::Route const& route,
                                                     bool may_look);
  asio::awaitable<Next> forward_guest(http::Request& request,
                                      http::ResponseWriter& response,
                                      GuestLink& link,
                                      wire::Route const& route,
                                      bool may_look);
  /// Nothing: the kept connection was stale, nothing was sent to the visitor, and the request may
  /// be sent again.
  asio::awaitable<std::optional<Next>> forward_once(http::Request& request,
                                                    http::ResponseWriter& response,
                                                    GuestLink& link,
                                                    wire::Route const& route,
                                                    Attempt may);
  asio::awaitable<bool> api_once(http::Request& request,
                                 http::ResponseWriter& response,
                                 bool may_repeat);

  asio::any_io_executor executor_;
  Options options_;
  Routes routes_;
  Dialer dialer_;
  Visits visits_;
  Wakes wakes_;
};

}  // namespace proxy
