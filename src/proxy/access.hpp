#pragma once

#include "http/message.hpp"
#include "wire/route.hpp"

/// May this request reach that port of that sandbox? Rules without I/O; they fail closed.
namespace proxy {

struct Refusal {
  int status = 0;
  std::string message;
  bool wake = false;  // it sleeps, and this visitor may wake it
  bool wait = false;  // it is on its way somewhere: this is the answer when it does not arrive
};

/// Nothing when the request may pass. Looks at the sandbox's state and at the tokens.
std::optional<Refusal> refusal_of(wire::Route const& route,
                                  std::uint16_t port,
                                  http::RequestHead const& head);

/// Agent calls that only the host may make (/init, /freeze, …), however the path is spelled: with
/// escapes, doubled slashes or dots, since the agent might read those as the same path.
bool is_host_only(std::string_view path);

/// The head that the guest gets to see: hop-by-hop fields and secrets of the platform removed, Host
/// masked if the sandbox wants that. Path, query and everything else stay as they are.
http::RequestHead head_for_guest(http::RequestHead head,
                                 wire::Route const& route,
                                 std::uint16_t port);
/// The same for the API, which learns who the visitor is.
http::RequestHead head_for_api(http::RequestHead head, std::string_view peer_name);

/// The head of an answer as the visitor gets it: without hop-by-hop fields, and every cookie
/// without a Domain, so that it stays with the host name of the one sandbox that set it (RFC
/// 6265 5.2.3).
http::ResponseHead head_for_visitor(http::ResponseHead head);

bool wants_upgrade(http::Headers const& headers);

}  // namespace proxy
