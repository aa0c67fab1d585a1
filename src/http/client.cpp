#include "http/client.hpp"

namespace http {
namespace {

bool may_repeat(std::string_view method) {
  return method == "GET" || method == "HEAD" || method == "PUT" || method == "DELETE";
}

}  // namespace

struct Client::Impl {
  Impl(asio::any_io_executor executor, Connect how, std::size_t most)
      : connect(std::move(how)), connections_max(most), freed(std::move(executor)) {}

  Connect connect;
  std::size_t connections_max;
  std::size_t in_use = 0;
  std::vector<Connection> idle;
  async::Signal freed;

  /// The right to use one of the `connections_max` connections.
  class Place {
   public:
    explicit Place(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) { ++impl_->in_use; }

    ~Place() {
      --impl_->in_use;
      impl_->freed.notify_all();
    }

    Place(Place const&) = delete;
    Place& operator=(Place const&) = delete;

   private:
    std::shared_ptr<Impl> impl_;
  };

  std::optional<Connection> take_idle() {
    while (!idle.empty()) {
      auto connection = std::move(idle.back());
      idle.pop_back();
      if (connection.reusable()) return connection;
    }
    return std::nullopt;
  }

  async::Task<Response> once(Connection* connection,
                             RequestHead head,
                             std::string body,
                             std::size_t limit) {
    auto exchange = co_await connection->start(std::move(head), std::move(body));
    if (!exchange) co_return base::passing(exchange);
    auto content = co_await (*exchange)->body().read_all(limit);
    if (!content) co_return base::passing(content, "read the answer");
    Response response;
    response.status = (*exchange)->head.status;
    response.headers = std::move((*exchange)->head.headers);
    response.body = std::move(*content);
    co_return response;
  }

  static async::Task<Response> exchange(std::shared_ptr<Impl> self,
                                        RequestHead head,
                                        std::string body,
                                        std::size_t limit) {
    while (self->in_use >= self->connections_max)
      co_await self->freed.wait();
    Place const place(self);
    auto kept = self->take_idle();
    if (kept) {
      bool const repeatable = may_repeat(head.method);
      auto answer = co_await self->once(
          &*kept, repeatable ? head : std::move(head), repeatable ? body : std::move(body), limit);
      if (answer && kept->reusable()) self->idle.push_back(std::move(*kept));
      // Not a byte of an answer came: the server closed it just when we chose it.
      bool const stale = !answer && answer.error().code() == base::Code::not_found;
      bool const broken =
          !answer && answer.error().code() == base::Code::unavailable && !kept->heard_anything();
      if (!(stale || broken) || !repeatable) co_return translated(std::move(answer));
    }
    auto stream = co_await self->connect();
    if (!stream) co_return base::passing(stream);
    Connection fresh(std::move(*stream));
    auto answer = co_await self->once(&fresh, std::move(head), std::move(body), limit);
    if (answer && fresh.reusable()) self->idle.push_back(std::move(fresh));
    co_return translated(std::move(answer));
  }

  /// "Closed before an answer" is our parser's not_found; to the caller the server is unavailable.
  static base::Result<Response> translated(base::Result<Response> answer) {
    if (answer || answer.error().code() != base::Code::not_found) return answer;
    return base::fail(base::Code::unavailable,
                      "the server closed the connection without an answer");
  }
};

Client::Client(asio::any_io_executor executor, Connect connect, std::size_t connections_max)
    : impl_(std::make_shared<Impl>(std::move(executor), std::move(connect), connections_max)) {}

Client::~Client() = default;

async::Task<Response> Client::request(RequestHead head,
                                      std::string body,
                                      base::Deadline deadline,
                                      std::size_t limit) {
  auto running = Impl::exchange(impl_, std::move(head), std::move(body), limit);
  co_return co_await async::with_deadline(deadline, std::move(running));
}

namespace {

/// Keeps the connection for as long as the answer is read.
class OwnedExchange final : public Exchange {
 public:
  OwnedExchange(Connection connection, std::unique_ptr<Exchange> inner)
      : connection_(std::move(connection)), inner_(std::move(inner)) {
    head = inner_->head;
  }

  BodyReader& body() override { return inner_->body(); }

 private:
  Connection connection_;
  std::unique_ptr<Exchange> inner_;
};

async::Task<std::unique_ptr<Exchange>> open_stream(Client::Connect connect,
                                                   RequestHead head,
                                                   std::string body) {
  auto stream = co_await connect();
  if (!stream) co_return base::passing(stream);
  Connection connection(std::move(*stream));
  auto exchange = co_await connection.start(std::move(head), std::move(body));
  if (!exchange) co_return base::passing(exchange);
  co_return std::make_unique<OwnedExchange>(std::move(connection), std::move(*exchange));
}

}  // namespace

async::Task<std::unique_ptr<Exchange>> Client::stream(RequestHead head,
                                                      std::string body,
                                                      base::Deadline head_deadline) {
  auto running = open_stream(impl_->connect, std::move(head), std::move(body));
  co_return co_await async::with_deadline(head_deadline, std::move(running));
}

}  // namespace http
