#pragma once

#include "async/task.hpp"
#include "vmm/descriptor.hpp"

#include <optional>
#include <string>
#include <string_view>

#include <boost/json/object.hpp>

/// Firecracker's control protocol: HTTP/1.1 with JSON bodies on its API socket, one answer to one
/// request. A Firecracker that a guest took over is a hostile peer: heads and bodies are bounded,
/// and after the first thing that is no HTTP of its kind the conversation is over for good.
namespace vmm::firecracker {

namespace json = boost::json;

struct Response {
  int status = 0;
  std::string body;
};

inline constexpr std::size_t head_bytes_max = std::size_t{8} * 1024;
inline constexpr std::size_t body_bytes_max = std::size_t{64} * 1024;
/// What the server takes at most unless it is told otherwise. It would parse the rest of a larger
/// body as the next request.
inline constexpr std::size_t request_body_bytes_max = 51'200;

/// A request as the server wants it; an empty body for GET.
std::string request_text(std::string_view method, std::string_view path, std::string_view body);

/// The protocol without a socket: bytes in, responses out.
class ResponseReader {
 public:
  /// Fails, then and ever after, on what is no response, over its limits, or in a coding that this
  /// server does not use.
  base::Result<void> feed(std::string_view bytes);
  /// The next whole response.
  std::optional<Response> next();

 private:
  base::Result<bool> take_one();

  std::string pending_;
  std::optional<Response> ready_;
  bool broken_ = false;
};

/// The server's own words in an answer, for the operator: both shapes of its errors, of which one
/// is no strict JSON.
std::string fault_in(std::string_view body);

/// Major and minor of "1.17.0-dev".
struct Version {
  int major = 0;
  int minor = 0;

  friend auto operator<=>(Version const&, Version const&) = default;
};

std::optional<Version> parse_version(std::string_view text);

/// Calls over one connection, one at a time and in order.
class Client {
 public:
  Client(boost::asio::any_io_executor executor, Descriptor connection);

  /// `body` is empty for GET. What comes back is the body of a 2xx. Errors: unavailable (connection
  /// over), deadline_exceeded (the answer is thrown away when it comes), internal (refused; the
  /// server's words in the detail), invalid_argument (a request larger than the server takes).
  async::Task<json::value> call(std::string method,
                                std::string path,
                                json::object body,
                                base::Deadline deadline);

  void close() noexcept;

 private:
  async::Task<json::value> exchange(std::string request);
  async::Task<Response> receive();

  Descriptor connection_;
  ResponseReader reader_;
  async::Turnstile turns_;
  std::size_t owed_ = 0;  // answers to requests whose callers went away
  bool over_ = false;
};

}  // namespace vmm::firecracker
