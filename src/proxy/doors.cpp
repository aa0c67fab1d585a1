#include "proxy/doors.hpp"

#include "base/log.hpp"

namespace proxy {
namespace {

constexpr std::chrono::milliseconds handshake_patience{10'000};
constexpr std::size_t handshakes_max = 512;

class UsersListener final : public net::Listener {
 public:
  UsersListener(std::unique_ptr<net::Listener> inner, std::vector<unsigned> users)
      : inner_(std::move(inner)), users_(std::move(users)) {}

  async::Task<net::Stream> accept() override {
    for (;;) {
      auto stream = co_await inner_->accept();
      if (!stream) co_return stream;
      auto const peer = net::peer_user(**stream);
      if (peer && std::ranges::find(users_, peer->uid) != users_.end()) co_return stream;
      base::log::warn("peer_refused", {{"peer", (*stream)->peer_name()}});
    }
  }

  void close() noexcept override { inner_->close(); }

  std::uint16_t port() const noexcept override { return inner_->port(); }

 private:
  std::unique_ptr<net::Listener> inner_;
  std::vector<unsigned> users_;
};

}  // namespace

std::unique_ptr<net::Listener> only_users(std::unique_ptr<net::Listener> listener,
                                          std::vector<unsigned> users) {
  return std::make_unique<UsersListener>(std::move(listener), std::move(users));
}

TlsDoor::TlsDoor(asio::any_io_executor executor,
                 std::shared_ptr<tls::ServerContext> context,
                 http::Server& server)
    : context_(std::move(context)), server_(server), acceptors_(executor), handshakes_(executor) {}

void TlsDoor::listen(std::unique_ptr<net::Listener> listener) {
  listeners_.push_back(std::move(listener));
  acceptors_.spawn("tls_accept", accept_from(listeners_.back().get()));
}

asio::awaitable<void> TlsDoor::accept_from(net::Listener* listener) {
  for (;;) {
    auto raw = co_await listener->accept();
    if (!raw && raw.error().code() == base::Code::cancelled) co_return;
    if (!raw) {
      base::log::error("accept_failed", {{"what", raw.error().message()}});
      co_await async::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    // Beyond that somebody opens connections and says nothing: new ones pay for it, established
    // ones do not.
    if (handshakes_.running() >= handshakes_max) continue;
    handshakes_.spawn("tls_handshake", shake_hands(std::move(*raw)));
  }
}

asio::awaitable<void> TlsDoor::shake_hands(net::Stream raw) {
  auto stream =
      co_await tls::accept(context_, std::move(raw), base::system_clock().in(handshake_patience));
  if (stream)
    server_.spawn(std::move(*stream));
  else
    base::log::debug("tls_refused", {{"what", stream.error().message()}});
}

asio::awaitable<void> TlsDoor::close() {
  auto const throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  for (auto const& listener : listeners_)
    listener->close();
  acceptors_.cancel();
  handshakes_.cancel();
  co_await acceptors_.join();
  co_await handshakes_.join();
  co_await asio::this_coro::throw_if_cancelled(throws);
}

}  // namespace proxy
