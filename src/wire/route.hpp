#pragma once

#include "wire/codec.hpp"

/// How the proxy learns where a sandbox is and who may reach it: HTTP on the API's `internal.sock`. Asked
/// for every new request, never cached, so that a revoked token is dead with the next request.
///
///   GET /route?sandbox=ID             → Route, or 404
///   GET /route?token_sha256=HEX       → Route (clients that send only their access token)
///   GET /changes                      → NDJSON stream of RouteChange: cut open connections of that sandbox;
///                                       an empty line every 5 s
namespace wire {

struct Route {
  std::string sandbox;
  std::uint64_t epoch = 0;
  std::string state;                // creating, running, paused, suspended, …
  std::string worker;               // the directory of the worker's sockets on this host
  bool secure = true;               // false: port 49983 needs no token
  std::string access_token_sha256;  // lower-case hex; "" when not secure
  bool public_traffic = true;       // false: other ports need the traffic token
  std::string traffic_token_sha256; // "" when public
  std::string mask_request_host;    // "" = the Host header as it came
  bool auto_resume = false;
};
BOOST_DESCRIBE_STRUCT(Route, (),
                      (sandbox, epoch, state, worker, secure, access_token_sha256, public_traffic, traffic_token_sha256,
                       mask_request_host, auto_resume))

struct RouteChange {
  std::string sandbox;
  std::string what;  // ended, token_revoked, suspended
};
BOOST_DESCRIBE_STRUCT(RouteChange, (), (sandbox, what))

}  // namespace wire
