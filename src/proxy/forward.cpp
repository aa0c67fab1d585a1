#include "proxy/forward.hpp"

#include "http/serialize.hpp"
#include "proxy/access.hpp"
#include "proxy/envelopes.hpp"

namespace proxy {
namespace {

constexpr std::size_t buffer_bytes = 32 * 1024;

bool announces_body(http::Headers const& headers) {
  if (headers.find("Transfer-Encoding")) return true;
  auto const length = headers.find("Content-Length");
  return length && *length != "0";
}

bool is_connect_stream(http::Headers const& headers) {
  return headers.get("Content-Type").starts_with("application/connect+");
}

}  // namespace

Forward::Forward(http::Request& request,
                 http::ResponseWriter& response,
                 http::Connection& onward,
                 http::RequestHead head,
                 Visit* visit)
    : request_(request),
      response_(response),
      onward_(onward),
      head_(std::move(head)),
      visit_(visit),
      has_body_(announces_body(request.head.headers)),
      wants_upgrade_(wants_upgrade(request.head.headers)) {}

asio::awaitable<Forward::Outcome> Forward::run() {
  if (has_body_) {
    auto const begun = co_await onward_.begin(head_);
    // A failed write is no end yet: the other side may have answered before it closed.
    if (!begun && begun.error().code() == base::Code::invalid_argument)
      co_return Outcome::bad_request;
  }
  // The names of the operations come first: nothing but them may stand beside co_await.
  auto body = send_body();
  auto answer = take_answer();
  auto const first = co_await async::race(std::move(body), std::move(answer));
  if (first == async::First::right) {
    if (upgraded_) co_return co_await switch_protocols();
    co_return outcome_;
  }
  onward_.close();
  if (bad_request_ && !response_.started()) co_return Outcome::bad_request;
  co_return Outcome::gone;
}

/// Ends only when the visitor is gone or its body is malformed: an answer ends the race from the
/// other side.
asio::awaitable<void> Forward::send_body() {
  if (has_body_) {
    std::vector<char> buffer(buffer_bytes);
    bool open = true;
    while (open) {
      auto const count = co_await request_.body.read_some(buffer);
      if (!count) {
        bad_request_ = count.error().code() == base::Code::invalid_argument;
        co_return;
      }
      if (*count == 0) break;
      took_body_ = true;
      auto const sent = co_await onward_.write(std::string_view(buffer.data(), *count));
      open = sent.has_value();
    }
    if (open) (void)co_await onward_.end_request();
  }
  co_await response_.wait_client_gone();
}

asio::awaitable<void> Forward::take_answer() {
  base::Result<std::unique_ptr<http::Exchange>> exchange;
  if (has_body_)
    exchange = co_await onward_.response();
  else
    exchange = co_await onward_.start(head_, {});
  if (!exchange) {
    auto const code = exchange.error().code();
    bool const malformed = code == base::Code::invalid_argument || code == base::Code::too_large;
    outcome_ = malformed ? Outcome::bad_answer : Outcome::no_answer;
    co_return;
  }
  if ((*exchange)->head.status == 101) {
    // 101 without having been asked would make a tunnel out of the visitor's connection.
    if (wants_upgrade_)
      upgraded_ = std::move(*exchange);
    else
      outcome_ = Outcome::bad_answer;
    if (!wants_upgrade_) onward_.close();
    co_return;
  }
  outcome_ = co_await pass_on(exchange->get());
}

asio::awaitable<Forward::Outcome> Forward::pass_on(http::Exchange* exchange) {
  auto head = head_for_visitor(exchange->head);
  bool const connect_stream = is_connect_stream(head.headers);
  head.headers.remove("Transfer-Encoding");
  bool const bodiless = request_.head.method == "HEAD" || head.status == 204 ||
                        head.status == 304 || head.headers.get("Content-Length") == "0";
  if (bodiless) {
    auto const sent = co_await response_.send(
        {.status = head.status, .headers = std::move(head.headers), .body = {}});
    if (!sent && !response_.started()) co_return Outcome::bad_answer;
    co_return sent ? Outcome::complete : Outcome::gone;
  }
  auto const begun = co_await response_.begin(std::move(head));
  if (!begun && !response_.started()) co_return Outcome::bad_answer;
  if (!begun) co_return Outcome::gone;
  co_return co_await pass_body(exchange, connect_stream);
}

asio::awaitable<Forward::Outcome> Forward::pass_body(http::Exchange* exchange,
                                                     bool connect_stream) {
  std::vector<char> buffer(buffer_bytes);
  Envelopes envelopes;
  for (;;) {
    auto const count = co_await exchange->body().read_some(buffer);
    if (!count) {
      if (!connect_stream || !envelopes.can_end() || visit_ == nullptr || !visit_->is_cut())
        co_return Outcome::cut_short;
      auto const last =
          last_envelope("unavailable", "The sandbox was not found: it has ended or was paused");
      auto const told = co_await response_.write(last);
      if (!told) co_return Outcome::gone;
      break;
    }
    if (*count == 0) break;
    std::string_view const bytes(buffer.data(), *count);
    auto const sent = co_await response_.write(bytes);
    if (!sent) {
      onward_.close();
      co_return Outcome::gone;
    }
    if (connect_stream) envelopes.pass(bytes);
  }
  auto const finished = co_await response_.finish();
  co_return finished ? Outcome::complete : Outcome::gone;
}

asio::awaitable<Forward::Outcome> Forward::switch_protocols() {
  std::string const protocol(upgraded_->head.headers.get("Upgrade"));
  auto const head = head_for_visitor(std::move(upgraded_->head));
  std::string text;
  bool good = http::append_response_head(text, 101, head.headers);
  http::append_field(text, "Connection", "Upgrade");
  if (!protocol.empty()) http::append_field(text, "Upgrade", protocol);
  text += "\r\n";
  text += onward_.take_unread();
  auto [visitor, early] = response_.upgrade();
  if (good) good = (co_await visitor->write_text(text)).has_value();
  if (good && !early.empty()) good = (co_await onward_.stream().write_text(early)).has_value();
  if (good) co_await net::relay(*visitor, onward_.stream());
  // The visit must not close a stream that is about to be destroyed.
  if (visit_ != nullptr) visit_->watch(nullptr, nullptr);
  onward_.close();
  co_return Outcome::gone;
}

}  // namespace proxy
