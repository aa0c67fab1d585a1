#include "http/client.hpp"
#include "http/inbound.hpp"
#include "http/serialize.hpp"

#include <charconv>

#include <poll.h>

namespace http {
namespace {

constexpr std::size_t one_write_bytes_max = 64 * 1024;

/// An idle connection has nothing to say: whatever can be read is its end or an answer to nothing.
bool is_readable(int socket) {
  pollfd watched{.fd = socket, .events = POLLIN | POLLRDHUP, .revents = 0};
  return socket >= 0 && ::poll(&watched, 1, 0) > 0;
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

bool sends_a_body(std::string_view method) {
  return method != "GET" && method != "HEAD" && method != "DELETE" && method != "OPTIONS";
}

}  // namespace

struct Connection::Impl : std::enable_shared_from_this<Connection::Impl> {
  Impl(net::Stream over, ClientLimits with)
      : stream(std::move(over)), inbound(stream.get()), limits(with) {}

  net::Stream stream;
  Inbound inbound;
  ClientLimits limits;
  std::string method;      // of the request under way
  bool sending = false;    // the request's body is not at its end yet
  bool receiving = false;  // its answer is awaited or not read to its end
  bool keep_alive = true;
  bool chunked = false;
  std::uint64_t left = 0;  // of a request body with Content-Length
  std::string out;
  std::uint64_t arrived_before = 0;  // when the request was begun

  base::Result<void> open(RequestHead const& head) {
    if (sending || receiving)
      return base::fail(base::Code::internal, "the request before is still under way");
    out.clear();
    if (!append_request_head(out, head)) {
      return base::fail(base::Code::invalid_argument, "the request's head cannot be sent");
    }
    if (!head.headers.find("Host")) append_field(out, "Host", "localhost");
    method = head.method;
    receiving = true;
    arrived_before = inbound.arrived();
    return {};
  }

  void give_up() noexcept {
    keep_alive = false;
    stream->close();
  }

  async::Task<ParsedResponse> read_head() {
    for (int interim = 0; interim <= limits.interim_answers_max; ++interim) {
      auto const length = co_await inbound.await_head(limits.head_bytes_max);
      if (!length) {
        keep_alive = false;
        co_return std::unexpected(length.error());
      }
      auto parsed = parse_response_head(inbound.pending().substr(0, *length), method);
      inbound.consume(*length);
      if (!parsed) co_return base::passing(parsed);
      if (parsed->head.status >= 200 || parsed->head.status == 101) co_return std::move(*parsed);
    }
    co_return base::fail(base::Code::invalid_argument, "too many interim answers");
  }

  /// The answer's end was reached: may the connection go on?
  void answered(bool server_keeps) {
    receiving = false;
    // An answer before the end of the request: the server will not read the rest as what it is.
    if (!server_keeps || sending || !inbound.pending().empty()) keep_alive = false;
  }

  class Answer final : public Exchange, public BodyReader {
   public:
    Answer(std::shared_ptr<Impl> owner, ParsedResponse parsed)
        : owner_(std::move(owner)), body_(parsed.framing), keeps_(parsed.keep_alive) {
      head = std::move(parsed.head);
      if (body_.finished()) owner_->answered(keeps_);
    }

    ~Answer() override {
      if (!body_.finished()) owner_->give_up();
      owner_->receiving = false;
    }

    BodyReader& body() override { return *this; }

    async::Task<std::size_t> read_some(std::span<char> into) override {
      if (body_.finished()) co_return std::size_t{0};
      auto const count = co_await body_.read_some(&owner_->inbound, into);
      if (body_.finished()) owner_->answered(keeps_);
      co_return count;
    }

   private:
    std::shared_ptr<Impl> owner_;
    Body body_;
    bool keeps_;
  };
};

Connection::Connection(net::Stream stream, ClientLimits limits)
    : impl_(std::make_shared<Impl>(std::move(stream), limits)) {}

Connection::~Connection() = default;
Connection::Connection(Connection&&) noexcept = default;
Connection& Connection::operator=(Connection&&) noexcept = default;

async::Task<std::unique_ptr<Exchange>> Connection::start(RequestHead head, std::string body) {
  auto const impl = impl_;
  auto const opened = impl->open(head);
  if (!opened) co_return std::unexpected(opened.error());
  if (!body.empty() || sends_a_body(head.method))
    append_field(impl->out, "Content-Length", std::to_string(body.size()));
  impl->out += "\r\n";
  bool const at_once = body.size() <= one_write_bytes_max;
  if (at_once) impl->out += body;
  auto sent = co_await impl->stream->write_text(impl->out);
  if (sent && !at_once) sent = co_await impl->stream->write_text(body);
  // A server that refuses early closes its reading side, and its answer may be here nevertheless.
  auto answer = co_await response();
  if (!answer && !sent) co_return std::unexpected(sent.error());
  if (!sent) impl->keep_alive = false;
  co_return answer;
}

async::Task<void> Connection::begin(RequestHead head) {
  auto const impl = impl_;
  auto const opened = impl->open(head);
  if (!opened) co_return std::unexpected(opened.error());
  auto const declared = declared_length(head.headers);
  impl->chunked = !declared;
  impl->left = declared.value_or(0);
  if (declared)
    append_field(impl->out, "Content-Length", std::to_string(*declared));
  else
    append_field(impl->out, "Transfer-Encoding", "chunked");
  impl->out += "\r\n";
  impl->sending = true;
  co_return co_await impl->stream->write_text(impl->out);
}

async::Task<void> Connection::write(std::string_view bytes) {
  auto const impl = impl_;
  if (!impl->sending) co_return base::fail(base::Code::internal, "no request was begun");
  if (bytes.empty()) co_return base::Result<void>();
  if (!impl->chunked) {
    if (bytes.size() > impl->left)
      co_return base::fail(base::Code::internal, "the body is longer than its Content-Length");
    impl->left -= bytes.size();
    co_return co_await impl->stream->write_text(bytes);
  }
  impl->out.clear();
  append_chunk(impl->out, bytes);
  co_return co_await impl->stream->write_text(impl->out);
}

async::Task<void> Connection::end_request() {
  auto const impl = impl_;
  if (!impl->sending) co_return base::fail(base::Code::internal, "no request was begun");
  if (!impl->chunked) {
    if (impl->left > 0)
      co_return base::fail(base::Code::internal, "the body is shorter than its Content-Length");
    impl->sending = false;
    co_return base::Result<void>();
  }
  auto const sent = co_await impl->stream->write_text("0\r\n\r\n");
  if (sent) impl->sending = false;
  co_return sent;
}

async::Task<std::unique_ptr<Exchange>> Connection::finish_request() {
  auto const ended = co_await end_request();
  // As in start(): a refusal may have come before the end of the body.
  auto answer = co_await response();
  if (!answer && !ended) co_return std::unexpected(ended.error());
  co_return answer;
}

async::Task<std::unique_ptr<Exchange>> Connection::response() {
  auto const impl = impl_;
  if (!impl->receiving) co_return base::fail(base::Code::internal, "no request was sent");
  auto parsed = co_await impl->read_head();
  if (!parsed) {
    impl->receiving = false;
    impl->give_up();
    co_return base::passing(parsed);
  }
  co_return std::make_unique<Impl::Answer>(impl, std::move(*parsed));
}

bool Connection::reusable() const noexcept {
  return impl_ && impl_->keep_alive && !impl_->sending && !impl_->receiving &&
         impl_->inbound.pending().empty() && !is_readable(impl_->stream->native_handle());
}

bool Connection::heard_anything() const noexcept {
  return impl_->inbound.arrived() > impl_->arrived_before;
}

std::string Connection::take_unread() {
  return impl_->inbound.take_pending();
}

net::ByteStream& Connection::stream() noexcept {
  return *impl_->stream;
}

void Connection::close() noexcept {
  if (impl_) impl_->give_up();
}

}  // namespace http
