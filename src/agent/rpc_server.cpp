#include "agent/connect_rpc.hpp"
#include "base/base64.hpp"
#include "base/log.hpp"
#include "wire/codec.hpp"

#include <charconv>

/// The side of Connect that talks HTTP: reads the call, runs the method, writes the answer in the
/// call's form.
namespace agent {
namespace {

/// How much earlier than asked a deadline acts. The callers' own timers have the same length and
/// start when they send; an answer that comes after their timer is an ugly transport error there. A
/// busy emulator is late by tens of milliseconds, so the lead grows with the time that was given.
std::chrono::milliseconds deadline_lead(std::chrono::milliseconds full) {
  return std::min(std::chrono::milliseconds(150), full / 20);
}

constexpr std::chrono::seconds keepalive_default{90};
constexpr std::size_t batch_bytes = 64 * 1024;

std::string_view media_type_of(http::RequestHead const& head) {
  auto const value = head.headers.get("content-type");
  return value.substr(0, value.find_first_of("; "));
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  auto const* end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

RpcResult<std::optional<base::Deadline>> deadline_of(http::RequestHead const& head,
                                                     base::SteadyTime arrived) {
  auto const text = head.headers.find("connect-timeout-ms");
  if (!text) return std::optional<base::Deadline>();
  auto const ms = number_of(*text);
  // Ten digits are the protocol's own bound, and far from overflowing the clock.
  if (!ms || text->size() > 10) {
    return rpc_fail(RpcCode::invalid_argument, "connect-timeout-ms: expected at most ten digits");
  }
  if (*ms == 0) return std::optional<base::Deadline>();
  std::chrono::milliseconds const full(*ms);
  return std::optional(arrived + full - deadline_lead(full));
}

std::chrono::seconds keepalive_of(http::RequestHead const& head) {
  auto const seconds = number_of(head.headers.get("keepalive-ping-interval"));
  if (!seconds || *seconds == 0) return keepalive_default;
  return std::chrono::seconds(std::min<std::uint64_t>(*seconds, 3600));
}

RpcResult<std::optional<std::string>> username_of(http::RequestHead const& head) {
  auto const value = head.headers.find("authorization");
  if (!value) return std::optional<std::string>();
  constexpr std::string_view scheme = "basic ";
  if (value->size() < scheme.size() ||
      !http::equal_ignoring_case(value->substr(0, scheme.size()), scheme)) {
    return std::optional<std::string>();
  }
  auto const pair = base::base64_decoded(value->substr(scheme.size()));
  if (!pair) return rpc_fail(RpcCode::unauthenticated, "the Authorization header holds no base64");
  auto name = pair->substr(0, pair->find(':'));
  if (name.empty()) return std::optional<std::string>();
  return std::optional(std::move(name));
}

RpcResult<RpcCall> call_of(std::string method,
                           http::RequestHead const& head,
                           base::SteadyTime arrived) {
  RpcCall call;
  call.method = std::move(method);
  call.arrived = arrived;
  auto const deadline = deadline_of(head, arrived);
  if (!deadline) return std::unexpected(deadline.error());
  call.deadline = *deadline;
  auto username = username_of(head);
  if (!username) return std::unexpected(username.error());
  call.username = std::move(*username);
  if (auto const replay = head.headers.find("x-space-replay")) {
    call.replay_from = number_of(*replay);
    if (!call.replay_from)
      return rpc_fail(RpcCode::invalid_argument, "X-Space-Replay: expected a byte offset");
  }
  return call;
}

RpcResult<json::value> parse_message(std::string_view text) {
  // An empty body is the empty message: some callers send nothing for `{}`.
  if (text.empty()) return json::value(json::object());
  auto value = wire::parse_json(text, rpc_message_bytes_max);
  if (!value) return std::unexpected(rpc_error_of(value.error()));
  return std::move(*value);
}

http::Response unary_error(RpcError const& error) {
  auto body = json::object{{"code", name_of(error.code)}, {"message", error.message}};
  return json_answer(http_status_of(error.code), std::move(body));
}

http::Response stream_error(RpcError const& error) {
  http::Response out{200, {{"content-type", "application/connect+json"}}, {}};
  append_envelope(out.body, envelope_end, end_payload(std::unexpected(error)));
  return out;
}

/// One call; lives as long as its request is handled.
class Exchange {
 public:
  Exchange(RpcService& service, http::Request& request, http::ResponseWriter& response)
      : service_(service),
        request_(request),
        response_(response),
        arrived_(base::system_clock().steady_now()) {}

  asio::awaitable<void> run(std::string method);

 private:
  asio::awaitable<void> run_unary(RpcCall call);
  asio::awaitable<RpcResult<json::value>> answer_unary(RpcCall call);
  asio::awaitable<void> run_stream(RpcCall call);
  asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> open_stream(RpcCall call);
  asio::awaitable<void> pump();
  enum class Wrote : std::uint8_t { something, nothing, the_end, reader_gone };
  asio::awaitable<Wrote> write_ready();
  asio::awaitable<void> finish_stream(RpcResult<void> result);
  asio::awaitable<void> finish_body();
  asio::awaitable<void> run_client_stream(RpcCall call);
  asio::awaitable<RpcResult<json::value>> read_message_body();
  asio::awaitable<void> send(http::Response answer);

  RpcService& service_;
  http::Request& request_;
  http::ResponseWriter& response_;
  base::SteadyTime arrived_;
  // Of a running stream:
  std::unique_ptr<MessageSource> source_;
  std::optional<base::Deadline> deadline_;
  std::chrono::seconds keepalive_ = keepalive_default;
};

asio::awaitable<void> Exchange::send(http::Response answer) {
  // A caller that left meanwhile has no use for an error of ours.
  auto const sent = co_await response_.send(std::move(answer));
  if (!sent) base::log::debug("rpc_answer_lost", {{"what", sent.error().message()}});
}

asio::awaitable<void> Exchange::run(std::string method) {
  auto const kind = service_.kind_of(method);
  if (kind == RpcKind::unknown) {
    auto const what = fmt::format("{} has no method {}", service_.name(), method);
    co_await send(unary_error({RpcCode::unimplemented, what}));
    co_return;
  }
  bool const unary = kind == RpcKind::unary;
  if (media_type_of(request_.head) != (unary ? "application/json" : "application/connect+json")) {
    auto answer = json_error(415,
                             unary ? "content-type: expected application/json"
                                   : "content-type: expected application/connect+json");
    answer.headers.add("accept-post", unary ? "application/json" : "application/connect+json");
    co_await send(std::move(answer));
    co_return;
  }
  auto call = call_of(std::move(method), request_.head, arrived_);
  if (!call) {
    co_await send(unary ? unary_error(call.error()) : stream_error(call.error()));
    co_return;
  }
  if (unary) {
    co_await run_unary(std::move(*call));
  } else if (kind == RpcKind::server_stream) {
    co_await run_stream(std::move(*call));
  } else {
    co_await run_client_stream(std::move(*call));
  }
}

asio::awaitable<void> Exchange::run_unary(RpcCall call) {
  auto const deadline = call.deadline;
  call.caller_gone = [this] { return response_.wait_client_gone(); };
  RpcResult<json::value> result;
  auto answer =
      [](Exchange* self, RpcCall asked, RpcResult<json::value>* out) -> asio::awaitable<void> {
    *out = co_await self->answer_unary(std::move(asked));
  };
  auto running = answer(this, std::move(call), &result);
  if (deadline) {
    auto const ended = co_await async::run_until(*deadline, std::move(running));
    if (ended == async::Ended::cancelled) co_return;
    if (ended == async::Ended::deadline) {
      result = rpc_fail(RpcCode::deadline_exceeded, "context deadline exceeded");
    }
  } else {
    co_await std::move(running);
  }
  co_await send(result ? json_answer(200, *result) : unary_error(result.error()));
}

asio::awaitable<RpcResult<json::value>> Exchange::answer_unary(RpcCall call) {
  auto body = co_await request_.body.read_all(rpc_message_bytes_max);
  if (!body) co_return std::unexpected(rpc_error_of(body.error()));
  auto message = parse_message(*body);
  if (!message) co_return std::unexpected(message.error());
  body->clear();
  body->shrink_to_fit();
  co_return co_await service_.unary(std::move(call), std::move(*message));
}

/// The one envelope of a server stream's request.
asio::awaitable<RpcResult<json::value>> Exchange::read_message_body() {
  auto body = co_await request_.body.read_all(rpc_message_bytes_max + 5);
  if (!body) co_return std::unexpected(rpc_error_of(body.error()));
  EnvelopeParser parser(rpc_message_bytes_max);
  parser.feed(*body);
  auto envelope = parser.next();
  if (!envelope) co_return std::unexpected(envelope.error());
  if (!*envelope || (*envelope)->flags != envelope_message || !parser.empty()) {
    co_return rpc_fail(RpcCode::invalid_argument,
                       "expected one uncompressed envelope with the message");
  }
  co_return parse_message((*envelope)->payload);
}

asio::awaitable<RpcResult<std::unique_ptr<MessageSource>>> Exchange::open_stream(RpcCall call) {
  auto message = co_await read_message_body();
  if (!message) co_return std::unexpected(message.error());
  co_return co_await service_.open_stream(std::move(call), std::move(*message));
}

asio::awaitable<void> Exchange::run_stream(RpcCall call) {
  deadline_ = call.deadline;
  keepalive_ = keepalive_of(request_.head);
  auto source = co_await open_stream(std::move(call));
  if (!source) {
    co_await send(stream_error(source.error()));
    co_return;
  }
  source_ = std::move(*source);
  auto const begun =
      co_await response_.begin({200, {{"content-type", "application/connect+json"}}});
  if (!begun) co_return;
  // A reader that left must free its subscription at once, not at the next write.
  auto pumping = pump();
  auto gone = response_.wait_client_gone();
  co_await async::race(std::move(pumping), std::move(gone));
}

/// Writes what is ready, in few and large pieces; with the last message goes the end of the stream.
asio::awaitable<Exchange::Wrote> Exchange::write_ready() {
  std::string batch;
  bool drained = false;
  while (!drained && batch.size() < batch_bytes) {
    auto const message = source_->take();
    drained = !message;
    if (message) append_envelope(batch, envelope_message, *message);
  }
  auto const result = drained ? source_->ended() : std::nullopt;
  if (result) append_envelope(batch, envelope_end, end_payload(*result));
  if (batch.empty()) co_return Wrote::nothing;
  auto const written = co_await response_.write(batch);
  if (!written) co_return Wrote::reader_gone;
  co_return result ? Wrote::the_end : Wrote::something;
}

asio::awaitable<void> Exchange::pump() {
  auto const& clock = base::system_clock();
  auto last_word = clock.steady_now();
  for (;;) {
    if (deadline_ && clock.steady_now() >= *deadline_) {
      // The frame first: the caller's timer runs. Nobody else's request is served before
      // on_deadline() has acted.
      co_await finish_stream(rpc_fail(RpcCode::deadline_exceeded, "context deadline exceeded"));
      source_->on_deadline();
      co_return;
    }
    auto const wrote = co_await write_ready();
    if (wrote == Wrote::reader_gone) co_return;
    if (wrote == Wrote::the_end) co_return co_await finish_body();
    if (wrote == Wrote::something) {
      last_word = clock.steady_now();
      continue;
    }
    auto const next_word = last_word + keepalive_;
    auto const wake = deadline_ ? std::min(*deadline_, next_word) : next_word;
    auto waiting = source_->wait();
    auto const ended = co_await async::run_until(wake, std::move(waiting));
    if (ended == async::Ended::cancelled) co_return;
    if (ended != async::Ended::deadline || wake != next_word) continue;
    std::string ping;
    append_envelope(ping, envelope_message, source_->keepalive());
    auto const written = co_await response_.write(ping);
    if (!written) co_return;
    last_word = clock.steady_now();
  }
}

asio::awaitable<void> Exchange::finish_body() {
  // Readers wait for the end of the HTTP body, so it must not be held back.
  auto const finished = co_await response_.finish();
  if (!finished) base::log::debug("rpc_end_lost", {{"what", finished.error().message()}});
}

asio::awaitable<void> Exchange::finish_stream(RpcResult<void> result) {
  std::string last;
  append_envelope(last, envelope_end, end_payload(result));
  auto const written = co_await response_.write(last);
  if (!written) co_return;
  co_await finish_body();
}

class BodyMessages final : public MessageReader {
 public:
  explicit BodyMessages(http::BodyReader& body) : body_(body), parser_(rpc_message_bytes_max) {}

  asio::awaitable<RpcResult<std::optional<json::value>>> next() override {
    for (;;) {
      auto envelope = parser_.next();
      if (!envelope) co_return std::unexpected(envelope.error());
      if (*envelope) {
        if ((*envelope)->flags == envelope_end) co_return std::optional<json::value>();
        if ((*envelope)->flags != envelope_message) {
          co_return rpc_fail(RpcCode::invalid_argument, "compressed envelopes are not accepted");
        }
        auto message = parse_message((*envelope)->payload);
        if (!message) co_return std::unexpected(message.error());
        co_return std::optional(std::move(*message));
      }
      auto const got = co_await body_.read_some(buffer_);
      if (!got) co_return std::unexpected(rpc_error_of(got.error()));
      if (*got == 0) {
        if (parser_.empty()) co_return std::optional<json::value>();
        co_return rpc_fail(RpcCode::invalid_argument, "the stream ends within an envelope");
      }
      parser_.feed({buffer_.data(), *got});
    }
  }

 private:
  http::BodyReader& body_;
  EnvelopeParser parser_;
  std::array<char, 16 * 1024> buffer_{};
};

asio::awaitable<void> Exchange::run_client_stream(RpcCall call) {
  BodyMessages messages(request_.body);
  auto const result = co_await service_.client_stream(std::move(call), messages);
  if (!result) {
    co_await send(stream_error(result.error()));
    co_return;
  }
  http::Response answer{200, {{"content-type", "application/connect+json"}}, {}};
  append_envelope(answer.body, envelope_message, wire::to_text(*result));
  append_envelope(answer.body, envelope_end, "{}");
  co_await send(std::move(answer));
}

}  // namespace

asio::awaitable<void> serve_rpc(RpcService& service,
                                std::string method,
                                http::Request& request,
                                http::ResponseWriter& response) {
  Exchange exchange(service, request, response);
  co_await exchange.run(std::move(method));
}

}  // namespace agent
