#pragma once

#include "base/result.hpp"
#include "domain/host_name.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The first message of a TLS client, read before any certificate is chosen (and without decrypting
/// anything). Only what a policy needs, strictly: OpenSSL would accept an SNI that is empty, an IP
/// literal, or has spaces and line ends in it.
namespace gateway {

struct ClientHello {
  std::optional<domain::HostName> server_name;
  std::vector<std::string> protocols;   // ALPN, in order
  bool encrypted_client_hello = false;  // the extension is there, or the old ESNI one
};

/// Largest hello read, over all its records.
inline constexpr std::size_t client_hello_bytes_max = 16 * 1024;

/// `bytes` are the first of the connection. Nothing while the hello is not complete; an error when
/// this is no TLS client, the hello is malformed or too long, or its server name is not one
/// canonical host name.
base::Result<std::optional<ClientHello>> parse_client_hello(std::string_view bytes);

}  // namespace gateway
