#pragma once

#include "net/byte_stream.hpp"

#include <memory>
#include <string>

/// TLS 1.2 and 1.3 over any ByteStream. OpenSSL stays inside this folder's sources.
namespace tls {

namespace asio = boost::asio;

/// Certificate chain, key and settings of a server; ALPN offers http/1.1 only.
class ServerContext {
 public:
  static base::Result<std::shared_ptr<ServerContext>> load(std::string const& certificate_pem_file,
                                                           std::string const& key_pem_file);
  virtual ~ServerContext() = default;
};

class ClientContext {
 public:
  /// Trusts exactly the certificates of `ca_pem_file`, or the system's store when it is empty.
  static base::Result<std::shared_ptr<ClientContext>> make(std::string const& ca_pem_file);
  /// Trusts exactly the certificates in this PEM text.
  static base::Result<std::shared_ptr<ClientContext>> from_pem(std::string const& ca_pem);
  virtual ~ClientContext() = default;
};

/// Handshakes end within `deadline` or fail; the underlying stream is taken in any case.
async::Task<net::Stream> accept(std::shared_ptr<ServerContext> context,
                                net::Stream stream,
                                base::Deadline deadline);
async::Task<net::Stream> connect(std::shared_ptr<ClientContext> context,
                                 net::Stream stream,
                                 std::string host,
                                 base::Deadline deadline);

/// The installation's own certificate authority: makes `ca.pem` and `ca.key` in `directory` when
/// they are missing (10 years, EC P-256), and a leaf `server.pem` (leaf + CA) / `server.key` for
/// `domain`, `*.domain`, `localhost`, 127.0.0.1 and ::1 when missing, for another domain, or with
/// less than 30 days left (398 days). Keys are 0600. Returns true when the leaf is new.
base::Result<bool> ensure_certificates(std::string const& directory, std::string const& domain);

}  // namespace tls
