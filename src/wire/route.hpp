#pragma once

#include "wire/codec.hpp"

/// How the proxy learns where a sandbox is and who may reach it: HTTP on the API's `internal.sock`.
/// Asked for every new request, never cached, so that a revoked token is dead with the next
/// request.
///
///   GET /route?sandbox=ID             → Route, or 404
///   GET /route?token_sha256=HEX       → Route (clients that send only their access token)
///   POST /wake?sandbox=ID             → Route of the sandbox that runs now; waits for it. For
///   visitors whom the
///                                       proxy let in, and sandboxes with auto_resume. 409 when it
///                                       may not be woken
///   POST /activity  Activity          → 204
///   GET /changes                      → NDJSON stream of RouteChange: cut open connections of that
///   sandbox;
///                                       an empty line every 5 s
namespace wire {

struct Route {
  std::string sandbox;
  std::uint64_t epoch = 0;
  std::string state;                 // creating, running, paused, suspended, …
  std::string worker;                // the directory of the worker's sockets on this host
  bool secure = true;                // false: port 49983 needs no token
  std::string access_token_sha256;   // lower-case hex; "" when not secure
  bool public_traffic = true;        // false: other ports need the traffic token
  std::string traffic_token_sha256;  // "" when public
  std::string mask_request_host;     // "" = the Host header as it came
  bool auto_resume = false;
};
BOOST_DESCRIBE_STRUCT(Route,
                      (),
                      (sandbox,
                       epoch,
                       state,
                       worker,
                       secure,
                       access_token_sha256,
                       public_traffic,
                       traffic_token_sha256,
                       mask_request_host,
                       auto_resume))

struct RouteChange {
  std::string sandbox;
  std::string what;         // ended, token_revoked, suspended
  std::uint64_t epoch = 0;  // of suspended: the life that is over; a later one is not meant
};
BOOST_DESCRIBE_STRUCT(RouteChange, (), (sandbox, what, epoch))

/// POST /activity: these sandboxes were used since the last time (a request, a connection, a byte).
struct Activity {
  std::vector<std::string> sandboxes;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(Activity, (), (sandboxes))

}  // namespace wire
