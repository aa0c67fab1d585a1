#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"
#include "http/server.hpp"

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/value.hpp>

/// The Connect protocol in its JSON form: unary calls, server streams and client streams over
/// HTTP/1.1. A service says what its methods are and works on JSON values; framing, deadlines,
/// keepalives, error mapping and readers that leave are handled here (connect_rpc.cpp).
namespace agent {

namespace asio = boost::asio;
namespace json = boost::json;

/// Connect's error codes, in the protocol's spelling.
enum class RpcCode : std::uint8_t {
  canceled,
  unknown,
  invalid_argument,
  deadline_exceeded,
  not_found,
  already_exists,
  permission_denied,
  resource_exhausted,
  failed_precondition,
  unimplemented,
  internal,
  unavailable,
  unauthenticated,
};

std::string_view name_of(RpcCode code) noexcept;
int http_status_of(RpcCode code) noexcept;

struct RpcError {
  RpcCode code = RpcCode::internal;
  std::string message;
};

template <class T> class [[nodiscard]] RpcResult : public std::expected<T, RpcError> {
 public:
  using std::expected<T, RpcError>::expected;

  RpcResult()
      : std::expected<T, RpcError>(std::unexpect,
                                   RpcError{RpcCode::internal, "no result was produced"}) {}
};

template <> class [[nodiscard]] RpcResult<void> : public std::expected<void, RpcError> {
 public:
  using std::expected<void, RpcError>::expected;
  RpcResult() = default;
};

inline std::unexpected<RpcError> rpc_fail(RpcCode code, std::string message) {
  return std::unexpected(RpcError{code, std::move(message)});
}

/// The RPC code that says the same as one of ours.
RpcError rpc_error_of(base::Error const& error);

/// What is known about one call besides its message.
struct RpcCall {
  std::string method;
  /// From `Authorization: Basic base64(user:)`; nothing when the caller named nobody (the default
  /// user is meant).
  std::optional<std::string> username;
  base::SteadyTime arrived;
  /// From connect-timeout-ms, counted from the arrival of the request's head and a little short of
  /// it, so that our answer is there before the caller's own timer. A unary call is cancelled and a
  /// stream ended by the framework; this is for work that outlives the call.
  std::optional<base::Deadline> deadline;
  /// X-Space-Replay: the offset from which a stream repeats a command's output (process.Process
  /// only).
  std::optional<std::uint64_t> replay_from;
  /// Ends when the caller has left; for unary methods that may wait. Streams need not care.
  std::function<asio::awaitable<void>()> caller_gone;
};

/// The messages of one server stream. Owned by the framework, destroyed when the stream ended for
/// whatever reason: its destructor is the place to unsubscribe.
class MessageSource {
 public:
  virtual ~MessageSource() = default;
  /// The next message (JSON text) that is ready now.
  virtual std::optional<std::string> take() = 0;
  /// Asked when take() had nothing: the stream's result once it is over, nothing while it goes on.
  virtual std::optional<RpcResult<void>> ended() = 0;
  /// Suspends until take() or ended() may have changed. May end early.
  virtual asio::awaitable<void> wait() = 0;
  /// The message that says "still here".
  virtual std::string keepalive() const = 0;

  /// The caller's deadline has come; the stream has just ended with deadline_exceeded.
  virtual void on_deadline() {}
};

/// The messages of one client stream.
class MessageReader {
 public:
  virtual ~MessageReader() = default;
  /// The next message; nothing at the end of the stream; invalid_argument for broken framing.
  virtual asio::awaitable<RpcResult<std::optional<json::value>>> next() = 0;
};

enum class RpcKind : std::uint8_t { unknown, unary, server_stream, client_stream };

/// One protobuf service. Only the functions for the kinds it has are called.
class RpcService {
 public:
  virtual ~RpcService() = default;
  /// "process.Process"
  virtual std::string_view name() const = 0;

  /// Commands and the like that run although nobody may be connected: the sandbox is not idle.
  virtual std::size_t running() const noexcept { return 0; }

  virtual RpcKind kind_of(std::string_view method) const = 0;
  virtual asio::awaitable<RpcResult<json::value>> unary(RpcCall call, json::value message);
  virtual asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> open_stream(
      RpcCall call, json::value message);
  /// `messages` lives until the call's end.
  virtual asio::awaitable<RpcResult<json::value>> client_stream(RpcCall call,
                                                                MessageReader& messages);
};

/// Reads one message in protobuf's JSON mapping: lowerCamelCase or the original snake_case, numbers
/// also as strings, null and unknown keys ignored. Getters give the default of an absent or broken
/// field; the first problem is kept: read all, then ask problem().
///
///   Fields fields(message);
///   auto const path = fields.text("path");
///   if (auto bad = fields.problem()) co_return std::unexpected(*bad);
class Fields {
 public:
  explicit Fields(json::value const& message);

  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// Texts with a NUL are refused: none of our fields may hold one.
  std::string text(std::string_view name);
  std::optional<std::string> optional_text(std::string_view name);
  std::uint32_t u32(std::string_view name);
  bool boolean(std::string_view name);
  std::optional<bool> optional_boolean(std::string_view name);
  std::optional<std::string> optional_bytes(std::string_view name);
  std::vector<std::string> texts(std::string_view name);
  std::vector<std::pair<std::string, std::string>> text_map(std::string_view name);
  /// An enum by name or number; `names` in the order of their numbers is not assumed.
  int enumerator(std::string_view name, std::vector<std::pair<std::string_view, int>> const& names);
  /// A message field; nullptr when absent.
  json::value const* message(std::string_view name);

  std::optional<RpcError> problem() const { return problem_; }

 private:
  json::value const* find(std::string_view name) const;
  void fail(std::string_view name, std::string_view expected);

  json::value const* value_;
  std::optional<RpcError> problem_;
};

/// Appends one envelope: flags, big-endian length, payload.
void append_envelope(std::string& out, std::uint8_t flags, std::string_view payload);
inline constexpr std::uint8_t envelope_message = 0x00;
inline constexpr std::uint8_t envelope_end = 0x02;
/// The payload of the last envelope: "{}" or {"error":{"code":…,"message":…}}.
std::string end_payload(RpcResult<void> const& result);

/// Takes envelopes off a byte stream that may be cut anywhere.
class EnvelopeParser {
 public:
  struct Envelope {
    std::uint8_t flags = 0;
    std::string payload;
  };

  explicit EnvelopeParser(std::size_t payload_max) : payload_max_(payload_max) {}

  void feed(std::string_view bytes) { buffer_.append(bytes); }

  /// A whole envelope, or nothing yet; resource_exhausted when it announces more than allowed.
  RpcResult<std::optional<Envelope>> next();

  /// False when bytes of an unfinished envelope are left.
  bool empty() const noexcept { return buffer_.size() == taken_; }

 private:
  std::size_t payload_max_;
  std::string buffer_;
  std::size_t taken_ = 0;
};

inline constexpr std::size_t rpc_message_bytes_max = 16u << 20;

/// Answers one request for `service`/`method`: every way of failing ends in the form the protocol
/// wants.
asio::awaitable<void> serve_rpc(RpcService& service,
                                std::string method,
                                http::Request& request,
                                http::ResponseWriter& response);

/// A plain JSON error of the HTTP endpoints and of the token check: {"code":401,"message":"…"}.
http::Response json_error(int status, std::string_view message);
http::Response json_answer(int status, json::value const& body);

}  // namespace agent
