#include "http/session.hpp"

#include "base/log.hpp"
#include "http/serialize.hpp"

#include <charconv>

#include <poll.h>

namespace http {
namespace {

constexpr std::size_t drain_bytes_max = 256 * 1024;
constexpr std::chrono::milliseconds drain_timeout{2'000};
constexpr std::size_t one_write_bytes_max =
    64 * 1024;  // up to here copying is cheaper than a second system call
constexpr std::size_t pipelined_bytes_max = 64 * 1024;

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

bool peer_has_hung_up(int socket) {
  pollfd watched{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&watched, 1, 0) > 0;
}

int status_of(base::Error const& error) {
  if (error.code() == base::Code::too_large) return 431;
  return 400;
}

std::optional<std::uint64_t> declared_length(Headers const& headers) {
  auto const text = headers.find("Content-Length");
  std::uint64_t length = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), length).ptr !=
                   text->data() + text->size()) {
    return std::nullopt;
  }
  return length;
}

}  // namespace

Session::Session(asio::any_io_executor const& executor,
                 Limits const* limits,
                 Handler* handler,
                 net::Stream stream)
    : executor_(executor),
      limits_(limits),
      handler_(handler),
      stream_(std::move(stream)),
      alarm_(executor, [this] { cut(); }),
      inbound_(stream_.get()) {}

void Session::stop() noexcept {
  stopping_ = true;
  if (idle_) cut();
}

void Session::cut() noexcept {
  if (stream_) stream_->close();
}

asio::awaitable<void> Session::run() {
  while (!stopping_) {
    auto parsed = co_await next_request();
    if (!parsed) {
      auto const code = parsed.error().code();
      if (code == base::Code::invalid_argument || code == base::Code::too_large) {
        co_await refuse(std::move(parsed.error()));
      }
      break;
    }
    bool const again = co_await serve_one(std::move(*parsed));
    if (!again) break;
  }
  cut();
}

async::Task<ParsedRequest> Session::next_request() {
  if (inbound_.pending().empty()) {
    idle_ = true;
    alarm_.set(in(limits_->idle_timeout));
    auto const arrived = co_await inbound_.fill(limits_->head_bytes_max);
    idle_ = false;
    if (!arrived) co_return std::unexpected(arrived.error());
    if (!*arrived) co_return base::fail(base::Code::not_found, "the connection was closed");
  }
  // RFC 9112 2.2: an empty line before a request is read over; old clients end a body with one.
  alarm_.set(in(limits_->head_timeout));
  if (inbound_.pending().starts_with("\r\n")) inbound_.consume(2);
  auto const length = co_await inbound_.await_head(limits_->head_bytes_max);
  alarm_.cancel();
  if (!length) co_return std::unexpected(length.error());
  auto parsed = parse_request_head(inbound_.pending().substr(0, *length));
  inbound_.consume(*length);
  co_return parsed;
}

asio::awaitable<bool> Session::serve_one(ParsedRequest parsed) {
  body_ = Body(parsed.framing);
  is_head_ = parsed.head.method == "HEAD";
  http_1_0_ = parsed.http_1_0;
  keep_alive_ = parsed.keep_alive && !stopping_;
  expects_continue_ = parsed.expects_continue;
  answer_ = Answer::none;
  if (parsed.head.target.size() > limits_->target_bytes_max) {
    keep_alive_ = false;
    co_await refuse(base::Error(base::Code::exhausted, "the request target is too long"));
    co_return false;
  }
  Request request{.head = std::move(parsed.head),
                  .body = *this,
                  .connection = *stream_,
                  .connection_state = &handler_state_};
  bool failed = false;
  try {
    co_await handler_->handle(request, *this);
  } catch (boost::system::system_error const& error) {
    if (error.code() == asio::error::operation_aborted) throw;
    base::log::error("request_failed", {{"what", error.what()}});
    failed = true;
  } catch (std::exception const& error) {
    base::log::error("request_failed", {{"what", error.what()}});
    failed = true;
  }
  if (answer_ == Answer::given_away) co_return false;
  if (answer_ == Answer::none) {
    if (!failed) base::log::error("request_not_answered", {{"method", request.head.method}});
    auto const sent = co_await send({.status = 500,
                                     .headers = {{"Content-Type", "application/json"}},
                                     .body = error_body(500, "internal error")});
    if (!sent) co_return false;
  }
  // A begun stream whose handler gave up must not look complete.
  if (answer_ != Answer::complete || stopping_) co_return false;
  bool const usable = co_await drain_body();
  if (!usable || !keep_alive_) {
    co_await linger();
    co_return false;
  }
  co_return true;
}

asio::awaitable<bool> Session::drain_body() {
  if (body_.finished()) co_return true;
  // A client that waits for "100 Continue" may or may not send its body now: only closing is safe.
  if (expects_continue_ || body_.failed()) co_return false;
  alarm_.set(in(drain_timeout));
  std::vector<char> scratch(16 * 1024);
  std::size_t read = 0;
  while (!body_.finished() && read < drain_bytes_max) {
    auto const count = co_await body_.read_some(&inbound_, scratch);
    if (!count) co_return false;
    read += *count;
  }
  alarm_.cancel();
  co_return body_.finished();
}

/// Closing a socket with unread bytes makes the kernel send a reset, which can destroy the answer
/// on its way: so we end our side first and read on for a moment.
asio::awaitable<void> Session::linger() {
  if (!stream_) co_return;
  auto const ended = co_await stream_->shutdown_write();
  if (!ended) co_return;
  alarm_.set(in(drain_timeout));
  std::vector<char> scratch(16 * 1024);
  std::size_t read = 0;
  while (read < drain_bytes_max) {
    auto const count = co_await stream_->read_some(scratch);
    if (!count || *count == 0) break;
    read += *count;
  }
  alarm_.cancel();
}

asio::awaitable<void> Session::refuse(base::Error error) {
  int const status = error.code() == base::Code::exhausted ? 414 : status_of(error);
  is_head_ = false;
  http_1_0_ = false;
  keep_alive_ = false;
  answer_ = Answer::none;
  auto const sent = co_await send({.status = status,
                                   .headers = {{"Content-Type", "application/json"}},
                                   .body = error_body(status, error.message())});
  if (sent) co_await linger();
}

async::Task<std::size_t> Session::read_some(std::span<char> into) {
  if (expects_continue_ && answer_ == Answer::none) {
    auto const invited = co_await stream_->write_text("HTTP/1.1 100 Continue\r\n\r\n");
    if (!invited) co_return std::unexpected(invited.error());
  }
  expects_continue_ = false;
  co_return co_await body_.read_some(&inbound_, into);
}

bool Session::body_is_allowed(int status) const noexcept {
  return !is_head_ && status != 204 && status != 304;
}

base::Result<void> Session::append_head(ResponseHead const& head) {
  out_.clear();
  if (head.status < 200 || head.status > 599 ||
      !append_response_head(out_, head.status, head.headers)) {
    return base::fail(base::Code::internal, "the answer's head cannot be sent");
  }
  if (equal_ignoring_case(head.headers.get("Connection"), "close")) keep_alive_ = false;
  // A client that we will not hear out must not send its next request here.
  if (expects_continue_ || body_.failed()) keep_alive_ = false;
  if (!keep_alive_)
    append_field(out_, "Connection", "close");
  else if (http_1_0_)
    append_field(out_, "Connection", "keep-alive");
  return {};
}

async::Task<void> Session::send(Response response) {
  if (started()) co_return base::fail(base::Code::internal, "the request was answered already");
  auto const declared = declared_length(response.headers);
  auto const headed =
      append_head({.status = response.status, .headers = std::move(response.headers)});
  if (!headed) co_return headed;
  answer_ = Answer::complete;
  if (is_head_ && response.body.empty() && declared) {
    append_field(out_,
                 "Content-Length",
                 std::to_string(*declared));  // a HEAD answer tells what GET would send
  } else if (response.status != 204 && response.status != 304) {
    append_field(out_, "Content-Length", std::to_string(response.body.size()));
  }
  out_ += "\r\n";
  bool const with_body = body_is_allowed(response.status);
  bool const at_once = response.body.size() <= one_write_bytes_max;
  if (with_body && at_once) out_ += response.body;
  auto sent = co_await stream_->write_text(out_);
  if (sent && with_body && !at_once) sent = co_await stream_->write_text(response.body);
  if (!sent) keep_alive_ = false;
  co_return sent;
}

async::Task<void> Session::begin(ResponseHead head) {
  if (started()) co_return base::fail(base::Code::internal, "the request was answered already");
  left_ = declared_length(head.headers);
  discards_body_ = !body_is_allowed(head.status);
  chunked_ = !left_ && !http_1_0_;
  if (!left_ && http_1_0_)
    keep_alive_ = false;  // HTTP/1.0 knows no chunks: the end is the end of the connection
  auto const headed = append_head(head);
  if (!headed) co_return headed;
  if (head.status != 204 && head.status != 304) {
    if (left_)
      append_field(out_, "Content-Length", std::to_string(*left_));
    else if (chunked_)
      append_field(out_, "Transfer-Encoding", "chunked");
  }
  out_ += "\r\n";
  answer_ = Answer::streaming;
  co_return co_await stream_->write_text(out_);
}

async::Task<void> Session::write(std::string_view bytes) {
  if (answer_ != Answer::streaming)
    co_return base::fail(base::Code::internal, "no answer was begun");
  if (discards_body_ || bytes.empty()) co_return base::Result<void>();
  if (left_) {
    if (bytes.size() > *left_)
      co_return base::fail(base::Code::internal, "the answer is longer than its Content-Length");
    *left_ -= bytes.size();
  }
  if (!chunked_) co_return co_await stream_->write_text(bytes);
  out_.clear();
  append_chunk(out_, bytes);
  co_return co_await stream_->write_text(out_);
}

async::Task<void> Session::finish() {
  if (answer_ != Answer::streaming)
    co_return base::fail(base::Code::internal, "no answer was begun");
  if (!discards_body_ && left_.value_or(0) > 0) {
    co_return base::fail(base::Code::internal, "the answer is shorter than its Content-Length");
  }
  answer_ = Answer::complete;
  if (discards_body_ || !chunked_) co_return base::Result<void>();
  co_return co_await stream_->write_text("0\r\n\r\n");
}

asio::awaitable<void> Session::wait_client_gone() {
  for (;;) {
    if (inbound_.pending().size() >= pipelined_bytes_max) {
      // No room for more of its next request: all that is left to ask for is the state of the
      // socket.
      if (stream_->native_handle() >= 0 && peer_has_hung_up(stream_->native_handle())) co_return;
      co_await async::sleep_for(std::chrono::seconds(1));
      continue;
    }
    auto const more = co_await inbound_.fill(pipelined_bytes_max);
    if (!more || !*more) co_return;
  }
}

std::pair<net::Stream, std::string> Session::upgrade() {
  answer_ = Answer::given_away;
  return {std::move(stream_), inbound_.take_pending()};
}

}  // namespace http
