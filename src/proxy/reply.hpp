#pragma once

#include "http/message.hpp"

namespace proxy {

/// What the proxy itself has to say. JSON for programs, a page for people: clients look for "was
/// not found" and "port is not open" in the message and for 502 in the status.
struct Reply {
  int status = 502;
  std::string message;
  std::string sandbox;  // with "sandboxId" in front when `about_sandbox`
  bool about_sandbox = false;
  std::optional<std::uint16_t> port;
  std::string path;       // of host-only paths
  int retry_after_s = 0;  // 0: not said
};

/// `head` is the request's: does a person look at this?
http::Response render(Reply const& reply, http::RequestHead const& head);

}  // namespace proxy
