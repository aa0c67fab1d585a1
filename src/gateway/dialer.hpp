#pragma once

#include "gateway/resolver.hpp"
#include "net/byte_stream.hpp"
#include "tls/tls.hpp"

namespace gateway {

/// `last` in words that help when nothing but IPv6 was tried. Pure.
base::Error why_not_reached(std::vector<Address> const& tried, base::Error last);

/// Why a server's TLS failed, as a word for metrics: certificate_expired,
/// certificate_not_yet_valid, certificate_of_another_name, certificate_untrusted, timeout or
/// handshake. Pure.
std::string_view tls_failure_of(base::Error const& error);

/// The only place from which bytes leave: connects to names and addresses that policy has allowed.
/// The very address that passed the filter is the one connected to; nothing is resolved twice.
class Dialer {
 public:
  Dialer(Resolver& resolver, AddressFilter filter, std::shared_ptr<tls::ClientContext> trust)
      : resolver_(resolver), filter_(std::move(filter)), trust_(std::move(trust)) {}

  struct Connected {
    net::Stream stream;
    Address address{};
  };

  /// TCP to a name. Every address that the filter refuses is dropped; `denied` when none is left.
  async::Task<Connected> dial(domain::HostName host, std::uint16_t port, base::Deadline deadline);
  /// TCP to a name, then TLS in which the peer proves to be that name.
  async::Task<Connected> dial_tls(domain::HostName host,
                                  std::uint16_t port,
                                  base::Deadline deadline);
  /// TCP to a literal address, filtered too.
  async::Task<Connected> dial_address(std::uint32_t ipv4,
                                      std::uint16_t port,
                                      base::Deadline deadline);

 private:
  async::Task<Connected> connect_first(std::vector<Address> addresses,
                                       std::uint16_t port,
                                       base::Deadline deadline);

  Resolver& resolver_;
  AddressFilter filter_;
  std::shared_ptr<tls::ClientContext> trust_;
};

}  // namespace gateway
