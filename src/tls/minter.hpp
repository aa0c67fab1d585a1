#pragma once

#include "net/byte_stream.hpp"

#include <memory>
#include <string>

namespace tls {

/// A certificate authority that lives in this process's memory alone, and issues a certificate for
/// each name that a client behind us asks for. Its key is made here, is never written, and dies
/// with the process: whoever takes this process over gains nothing against clients of another one.
class Minter {
 public:
  /// `label` becomes part of the authority's name, for people who look at certificates.
  static base::Result<std::shared_ptr<Minter>> make(
      std::string const& label, base::Clock const& clock = base::system_clock());
  virtual ~Minter() = default;

  /// The authority's certificate, for the trust store of the clients.
  virtual std::string const& authority_pem() const noexcept = 0;

  /// Makes (or finds) the certificate for exactly `host` — a canonical host name — valid from an
  /// hour ago for 25 hours. Made anew when the clock was set.
  virtual base::Result<void> prepare(std::string const& host) = 0;

  /// Handshakes as the server `host`. ALPN http/1.1. The minter lives as long as the stream.
  virtual async::Task<net::Stream> accept(std::string host,
                                          net::Stream stream,
                                          base::Deadline deadline) = 0;
};

/// What a handshake agreed on.
struct Session {
  std::string version;   // "TLSv1.3"; "" where the stream is not one of ours
  std::string protocol;  // of ALPN, "" when none was
};

Session session_of(net::ByteStream const& stream);

}  // namespace tls
