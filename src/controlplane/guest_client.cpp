#include "controlplane/guest_client.hpp"

#include "base/base64.hpp"
#include "domain/labels.hpp"
#include "wire/agent.hpp"

namespace controlplane {
namespace {

using base::Code;

constexpr std::size_t answer_bytes_max = 16 << 20;  // a listing of a large folder
constexpr std::size_t frame_bytes_max = 1 << 20;    // an agent sends 32 KiB at a time
constexpr std::size_t error_bytes_max = 64 << 10;
constexpr std::size_t message_max = 500;
constexpr char envelope_end = 2;

Code code_of_connect(std::string_view name) {
  if (name == "invalid_argument" || name == "failed_precondition") return Code::invalid_argument;
  if (name == "not_found") return Code::not_found;
  if (name == "already_exists" || name == "aborted") return Code::conflict;
  if (name == "permission_denied") return Code::denied;
  // The token was right a moment ago; what the guest refuses here is the user's name.
  if (name == "unauthenticated") return Code::invalid_argument;
  if (name == "resource_exhausted") return Code::exhausted;
  if (name == "deadline_exceeded") return Code::deadline_exceeded;
  if (name == "canceled") return Code::cancelled;
  if (name == "unavailable") return Code::unavailable;
  return Code::internal;
}

std::string_view text_in(json::object const& object, std::string_view name) {
  auto const* value = object.if_contains(name);
  auto const* text = value ? value->if_string() : nullptr;
  return text ? std::string_view(*text) : std::string_view();
}

base::Error error_in(json::object const& object) {
  auto const name = text_in(object, "code");
  auto message = printable(text_in(object, "message"), message_max);
  if (message.empty()) message = "the sandbox refused the call";
  // Our own proxy answers with a number and a word of its own.
  return {code_of_connect(name), std::move(message), "guest: " + printable(name, 40)};
}

/// What a status other than success means: the guest's own error, or the proxy's.
base::Error error_of(int status, std::string_view body) {
  auto const value = wire::parse_json(body, error_bytes_max);
  auto const* object = value ? value->if_object() : nullptr;
  if (status == 502 || status == 503 || status == 504) {
    return {Code::unavailable,
            "the sandbox does not answer",
            object ? printable(text_in(*object, "message"), message_max) : std::string()};
  }
  if (object && !text_in(*object, "code").empty()) return error_in(*object);
  std::string message =
      object ? printable(text_in(*object, "message"), message_max) : std::string();
  if (message.empty()) message = fmt::format("the sandbox answered {}", status);
  if (status == 507) return {Code::exhausted, std::move(message), "guest: 507"};
  if (status == 401) return {Code::invalid_argument, std::move(message), "guest: 401"};
  auto const code = base::code_of_http_status(status);
  return {code == Code::internal ? Code::unavailable : code,
          std::move(message),
          fmt::format("guest: {}", status)};
}

/// A short answer, whole. Named coroutines, so that a deadline can be put around them.
async::Task<std::string> read_error(std::unique_ptr<http::Exchange> exchange) {
  auto body = co_await exchange->body().read_all(error_bytes_max);
  co_return body;
}

async::Task<base::Error> error_from(std::unique_ptr<http::Exchange> exchange) {
  auto const status = exchange->head.status;
  auto body = co_await read_error(std::move(exchange));
  co_return error_of(status, body ? std::string_view(*body) : std::string_view());
}

std::string envelope(std::string_view payload) {
  std::string out(1, '\0');
  auto const size = static_cast<std::uint32_t>(payload.size());
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>((size >> shift) & 0xff);
  out += payload;
  return out;
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (char const c : text.substr(0, most)) {
    auto const byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  // Perhaps it was only cut in the middle of a character.
  auto whole = out;
  for (int i = 0; i < 3 && !whole.empty() && !domain::is_utf8(whole); ++i)
    whole.pop_back();
  if (!whole.empty() && domain::is_utf8(whole)) return whole;
  for (char& c : out)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return out;
}

async::Task<std::optional<json::object>> GuestStream::next() {
  std::array<char, 16384> chunk{};
  for (;;) {
    auto taken = take();
    if (!taken) co_return base::passing(taken);
    if (*taken) co_return std::move(*taken);
    if (ended_) co_return std::optional<json::object>();
    auto got = co_await exchange_->body().read_some(chunk);
    if (!got || *got == 0)
      co_return base::fail(Code::unavailable, "the stream from the sandbox was cut");
    buffer_.append(chunk.data(), *got);
  }
}

base::Result<std::optional<json::object>> GuestStream::take() {
  std::optional<json::object> nothing;
  if (ended_ || buffer_.size() < 5) return nothing;
  std::size_t size = 0;
  for (std::size_t i = 1; i < 5; ++i)
    size = size << 8 | static_cast<unsigned char>(buffer_[i]);
  char const flags = buffer_[0];
  if (size > frame_bytes_max || (flags != 0 && flags != envelope_end)) {
    return base::fail(Code::unavailable, "the sandbox sent something that is no message");
  }
  if (buffer_.size() < size + 5) return nothing;
  auto value = wire::parse_json(std::string_view(buffer_).substr(5, size), frame_bytes_max);
  buffer_.erase(0, size + 5);
  auto* object = value ? value->if_object() : nullptr;
  if (!object)
    return base::fail(Code::unavailable, "the sandbox sent something that is no message");
  if (flags == 0) return std::optional(std::move(*object));
  ended_ = true;
  auto const* error = object->if_contains("error");
  if (error && error->is_object()) return std::unexpected(error_in(error->get_object()));
  return nothing;
}

GuestClient::GuestClient(asio::any_io_executor executor, std::string proxy_socket)
    : proxy_socket_(std::move(proxy_socket)),
      client_(
          std::move(executor),
          [socket = proxy_socket_]() { return net::connect_unix(socket); },
          256) {}

http::RequestHead GuestClient::head_of(GuestTarget const& target,
                                       std::string method,
                                       std::string path) const {
  http::RequestHead head;
  head.method = std::move(method);
  head.target = std::move(path);
  head.headers.add("Host", "localhost");
  head.headers.add("E2b-Sandbox-Id", target.sandbox);
  head.headers.add("E2b-Sandbox-Port", std::to_string(wire::agent_port));
  if (!target.token.empty()) head.headers.add("X-Access-Token", target.token);
  return head;
}

namespace {

void add_call_headers(http::Headers& headers, GuestCall const& call) {
  headers.add("Connect-Protocol-Version", "1");
  if (!call.user.empty()) headers.add("Authorization", "Basic " + base::base64_of(call.user + ":"));
  if (call.replay_from) headers.add("X-Space-Replay", std::to_string(*call.replay_from));
  if (call.timeout) headers.add("Connect-Timeout-Ms", std::to_string(call.timeout->count()));
}

std::string files_target(std::string const& path, std::string const& user) {
  auto target = "/files?path=" + http::percent_encode(path);
  if (!user.empty()) target += "&username=" + http::percent_encode(user);
  return target;
}

}  // namespace

async::Task<json::object> GuestClient::unary(GuestTarget target,
                                             GuestCall call,
                                             base::Deadline deadline) {
  auto head = head_of(target, "POST", "/" + call.method);
  head.headers.add("Content-Type", "application/json");
  add_call_headers(head.headers, call);
  auto response = co_await client_.request(
      std::move(head), wire::to_text(call.message), deadline, answer_bytes_max);
  if (!response) co_return base::passing(response, "the sandbox");
  if (response->status != 200)
    co_return std::unexpected(error_of(response->status, response->body));
  auto value = wire::parse_json(response->body, answer_bytes_max);
  auto* object = value ? value->if_object() : nullptr;
  if (!object)
    co_return base::fail(Code::unavailable, "the sandbox sent an answer that cannot be read");
  co_return std::move(*object);
}

async::Task<std::unique_ptr<GuestStream>> GuestClient::stream(GuestTarget target,
                                                              GuestCall call,
                                                              base::Deadline deadline) {
  auto head = head_of(target, "POST", "/" + call.method);
  head.headers.add("Content-Type", "application/connect+json");
  head.headers.add("Keepalive-Ping-Interval", "15");
  add_call_headers(head.headers, call);
  auto exchange =
      co_await client_.stream(std::move(head), envelope(wire::to_text(call.message)), deadline);
  if (!exchange) co_return base::passing(exchange, "the sandbox");
  if ((*exchange)->head.status != 200) {
    auto reading = error_from(std::move(*exchange));
    auto error = co_await async::with_deadline(deadline, std::move(reading));
    if (!error) co_return base::passing(error);
    co_return std::unexpected(std::move(*error));
  }
  co_return std::make_unique<GuestStream>(std::move(*exchange));
}

async::Task<std::unique_ptr<http::Exchange>> GuestClient::read_file(GuestTarget target,
                                                                    std::string path,
                                                                    std::string user,
                                                                    std::string range,
                                                                    base::Deadline deadline) {
  auto head = head_of(target, "GET", files_target(path, user));
  head.headers.add("Accept-Encoding", "identity");
  if (!range.empty()) head.headers.add("Range", range);
  auto exchange = co_await client_.stream(std::move(head), {}, deadline);
  if (!exchange) co_return base::passing(exchange, "the sandbox");
  if ((*exchange)->head.status >= 300 || (*exchange)->head.status < 200) {
    auto reading = error_from(std::move(*exchange));
    auto error = co_await async::with_deadline(deadline, std::move(reading));
    if (!error) co_return base::passing(error);
    co_return std::unexpected(std::move(*error));
  }
  co_return exchange;
}

async::Task<std::unique_ptr<GuestUpload>> GuestClient::begin_write(
    GuestTarget target,
    std::string path,
    std::string user,
    std::optional<std::uint32_t> mode,
    std::optional<std::string> content_length,
    base::Deadline deadline) {
  auto connecting = net::connect_unix(proxy_socket_);
  auto stream = co_await async::with_deadline(deadline, std::move(connecting));
  if (!stream) co_return base::passing(stream, "the sandbox");
  http::Connection connection(std::move(*stream));
  auto place = files_target(path, user);
  if (mode) place += fmt::format("&mode={}", *mode);
  auto head = head_of(target, "POST", std::move(place));
  head.headers.add("Content-Type", "application/octet-stream");
  if (content_length) head.headers.add("Content-Length", std::move(*content_length));
  auto begun = co_await connection.begin(std::move(head));
  if (!begun) co_return base::passing(begun, "the sandbox");
  co_return std::make_unique<GuestUpload>(std::move(connection));
}

async::Task<json::object> GuestUpload::finish(base::Deadline deadline) {
  auto finishing = connection_.finish_request();
  auto exchange = co_await async::with_deadline(deadline, std::move(finishing));
  if (!exchange) co_return base::passing(exchange, "the sandbox");
  auto const status = (*exchange)->head.status;
  auto reading = read_error(std::move(*exchange));
  auto body = co_await async::with_deadline(deadline, std::move(reading));
  if (!body) co_return base::passing(body, "the sandbox");
  if (status != 200) co_return std::unexpected(error_of(status, *body));
  auto value = wire::parse_json(*body, error_bytes_max);
  auto const* array = value ? value->if_array() : nullptr;
  if (!array || array->size() != 1 || !array->front().is_object()) {
    co_return base::fail(Code::unavailable, "the sandbox sent an answer that cannot be read");
  }
  co_return array->front().get_object();
}

}  // namespace controlplane
