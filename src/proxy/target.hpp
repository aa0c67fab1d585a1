#pragma once

#include "http/message.hpp"

#include <variant>

/// Whom a request is for, by its Host and headers alone (docs in README.md). No I/O.
namespace proxy {

/// The port on which a sandbox's agent speaks the in-guest protocol.
constexpr std::uint16_t agent_port = 49983;

struct ToGuest {
  std::string sandbox;  // [a-z0-9]{1,64}
  std::uint16_t port = 0;
};

/// Only the access token says which sandbox is meant; its port is agent_port.
struct ToTokensGuest {
  std::string token;
};

struct ToApi {};

/// Cannot be anybody's: 400 with this sentence.
struct ToNobody {
  std::string why;
};

using Target = std::variant<ToGuest, ToTokensGuest, ToApi, ToNobody>;

/// `domain` is lower-case and without a port.
Target find_target(http::RequestHead const& head, std::string_view domain);

/// "Example.COM:8080" → "example.com", "[::1]:80" → "::1".
std::string host_without_port(std::string_view host);

}  // namespace proxy
