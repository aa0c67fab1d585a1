#pragma once

#include "http/client.hpp"
#include "wire/codec.hpp"

/// The agent in a sandbox, reached through the proxy like every client reaches it (Connect calls in
/// JSON and /files on port 49983). Everything that comes back was written by a guest: sizes are
/// bounded, texts are made printable, shapes are checked before anything is used.
namespace controlplane {

namespace asio = boost::asio;
namespace json = boost::json;

struct GuestTarget {
  std::string sandbox;
  std::string token;  // "" for a sandbox without one
};

/// What a call asks for besides its message.
struct GuestCall {
  std::string method;  // "process.Process/List"
  json::value message;
  std::string user;  // "": the template's default
  std::optional<std::uint64_t> replay_from;
  std::optional<std::chrono::milliseconds>
      timeout;  // connect-timeout-ms: of the call, and of a started command
};

/// The messages of a streamed call.
class GuestStream {
 public:
  explicit GuestStream(std::unique_ptr<http::Exchange> exchange) : exchange_(std::move(exchange)) {}

  /// Nothing at the proper end. `unavailable` when the stream was cut, or what the guest gave as
  /// its error.
  async::Task<std::optional<json::object>> next();

 private:
  base::Result<std::optional<json::object>> take();
  std::unique_ptr<http::Exchange> exchange_;
  std::string buffer_;
  bool ended_ = false;
};

/// A file on its way into a guest.
class GuestUpload {
 public:
  explicit GuestUpload(http::Connection connection) : connection_(std::move(connection)) {}

  async::Task<void> write(std::string_view bytes) { return connection_.write(bytes); }

  /// The agent's description of what was written.
  async::Task<json::object> finish(base::Deadline deadline);

 private:
  http::Connection connection_;
};

class GuestClient {
 public:
  GuestClient(asio::any_io_executor executor, std::string proxy_socket);

  async::Task<json::object> unary(GuestTarget target, GuestCall call, base::Deadline deadline);
  /// `deadline` bounds the beginning only.
  async::Task<std::unique_ptr<GuestStream>> stream(GuestTarget target,
                                                   GuestCall call,
                                                   base::Deadline deadline);

  /// GET /files. An answer that is no success is an error here.
  async::Task<std::unique_ptr<http::Exchange>> read_file(GuestTarget target,
                                                         std::string path,
                                                         std::string user,
                                                         std::string range,
                                                         base::Deadline deadline);
  /// An upload: write the body to it, then finish. Without `mode` the guest's own rules decide.
  async::Task<std::unique_ptr<GuestUpload>> begin_write(GuestTarget target,
                                                        std::string path,
                                                        std::string user,
                                                        std::optional<std::uint32_t> mode,
                                                        std::optional<std::string> content_length,
                                                        base::Deadline deadline);

 private:
  http::RequestHead head_of(GuestTarget const& target, std::string method, std::string path) const;
  std::string proxy_socket_;
  http::Client client_;
};

/// Guest's text, made harmless: valid UTF-8 without control characters, at most `most` bytes.
std::string printable(std::string_view text, std::size_t most);

}  // namespace controlplane
