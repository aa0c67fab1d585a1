#pragma once

#include "base/secret.hpp"
#include "http/client.hpp"

#include <boost/json/value.hpp>

/// The command line's side of the public API: plain TCP, or TLS with the installation's own
/// authority.
namespace cli {

namespace asio = boost::asio;
namespace json = boost::json;

struct ApiAddress {
  bool tls = false;
  std::string host{};
  std::uint16_t port = 0;
  std::string ca_file;  // "": the system's authorities
};

/// "http://127.0.0.1:7380", "https://api.space.localhost:7443". Fails on anything else, paths
/// included.
base::Result<ApiAddress> parse_address(std::string_view url, std::string ca_file);

/// Where the API is and who asks. `url` "": SPACE_API_URL, else this host's installation. The key
/// comes from `key_file`, else SPACE_API_KEY, else the installation's admin key if this user may
/// read it; never from arguments, which everybody on the host can see.
struct Target {
  ApiAddress address;
  base::Secret key;
};

base::Result<Target> find_target(std::string const& url, std::string const& key_file);

class Api {
 public:
  Api(asio::any_io_executor executor, Target target);

  /// The decoded answer (null for 204). Errors carry the server's code and sentence; `unavailable`
  /// when it cannot be reached. A POST gets an Idempotency-Key of its own.
  async::Task<json::value> call(std::string method,
                                std::string target,
                                json::value body,
                                base::Deadline deadline);
  /// The answer as bytes.
  async::Task<std::string> download(std::string target, base::Deadline deadline, std::size_t limit);
  /// A streamed answer whose status was 2xx. The head must come by `deadline`.
  async::Task<std::unique_ptr<http::Exchange>> stream(std::string method,
                                                      std::string target,
                                                      std::string body,
                                                      http::Headers headers,
                                                      base::Deadline deadline);
  /// A connection of its own, for uploads and upgrades.
  async::Task<http::Connection> connect();
  /// Method, target, key and host.
  http::RequestHead head(std::string method, std::string target) const;

  /// For the next POST of call(), so that a person can repeat a change safely; "" changes nothing.
  void use_idempotency_key(std::string key) { next_idempotency_key_ = std::move(key); }

  ApiAddress const& address() const noexcept { return address_; }

 private:
  async::Task<net::Stream> open() const;

  ApiAddress address_;
  base::Secret key_;
  std::string next_idempotency_key_{};
  http::Client client_;
};

/// The error of an answer that is none of 2xx: {"code","message"}, with the HTTP status when it is
/// no JSON.
base::Error error_of(int status, std::string_view body);

/// Server-sent events from bytes as they come. Pure.
struct ServerEvent {
  std::string id, type, data;
};

class EventParser {
 public:
  /// The events that `bytes` completed. Over 4 MiB without an end the stream counts as broken
  /// (false).
  bool feed(std::string_view bytes, std::vector<ServerEvent>& events);

 private:
  void take_line(std::string_view line, std::vector<ServerEvent>& events);

  std::string pending_{};
  ServerEvent current_{};
  bool has_data_ = false;
};

}  // namespace cli
