#include "http/server.hpp"

#include "async/alarm.hpp"
#include "base/log.hpp"
#include "http/session.hpp"

#include <list>

namespace http {

async::Task<std::string> BodyReader::read_all(std::size_t limit) {
  std::string out;
  std::size_t filled = 0;
  for (;;) {
    // One byte over the limit is enough to know.
    auto const room = std::min(std::max<std::size_t>(filled, 4096), limit - filled + 1);
    out.resize(filled + room);
    auto const count = co_await read_some(std::span<char>(out).subspan(filled));
    if (!count) co_return std::unexpected(count.error());
    filled += *count;
    if (filled > limit)
      co_return base::fail(base::Code::too_large, fmt::format("the body is over {} bytes", limit));
    if (*count == 0) break;
  }
  out.resize(filled);
  co_return out;
}

struct Server::Impl {
  Impl(asio::any_io_executor on, Handler& handles, Limits with)
      : executor(on),
        handler(&handles),
        limits(with),
        ended(on),
        acceptors(on),
        sessions_group(on) {}

  asio::any_io_executor executor;
  Handler* handler;
  Limits limits;
  bool closing = false;
  std::vector<std::unique_ptr<net::Listener>> listeners;
  std::list<Session*> sessions;
  async::Signal ended;  // a session went
  async::TaskGroup acceptors;
  async::TaskGroup sessions_group;

  asio::awaitable<void> accept_from(net::Listener* listener) {
    for (;;) {
      auto stream = co_await listener->accept();
      if (!stream) {
        if (stream.error().code() == base::Code::cancelled) co_return;
        base::log::error("accept_failed", {{"what", stream.error().message()}});
        co_await async::sleep_for(std::chrono::milliseconds(100));
        continue;
      }
      spawn(std::move(*stream));
    }
  }

  void spawn(net::Stream stream) {
    if (closing || sessions.size() >= limits.connections_max) return stream->close();
    sessions_group.spawn("http_connection", serve(std::move(stream)));
  }

  asio::awaitable<void> serve(net::Stream stream) {
    auto session = std::make_unique<Session>(executor, &limits, handler, std::move(stream));

    struct Listed {
      Listed(Impl* owner, Session* one)
          : impl(owner), place(impl->sessions.insert(impl->sessions.end(), one)) {}

      ~Listed() {
        impl->sessions.erase(place);
        impl->ended.notify_all();
      }

      Listed(Listed const&) = delete;
      Listed& operator=(Listed const&) = delete;
      Impl* impl;
      std::list<Session*>::iterator place;
    };

    Listed const listed(this, session.get());
    if (closing) co_return;
    co_await session->run();
  }

  void cut_all() {
    for (auto* session : sessions)
      session->cut();
    sessions_group.cancel();
  }
};

Server::Server(asio::any_io_executor executor, Handler& handler, Limits limits)
    : impl_(std::make_unique<Impl>(std::move(executor), handler, limits)) {}

Server::~Server() = default;

void Server::listen(std::unique_ptr<net::Listener> listener) {
  impl_->listeners.push_back(std::move(listener));
  impl_->acceptors.spawn("http_accept", impl_->accept_from(impl_->listeners.back().get()));
}

asio::awaitable<void> Server::serve(net::Stream connection) {
  return impl_->serve(std::move(connection));
}

void Server::spawn(net::Stream connection) {
  impl_->spawn(std::move(connection));
}

std::size_t Server::connections() const noexcept {
  return impl_->sessions.size();
}

asio::awaitable<void> Server::close(std::chrono::milliseconds grace) {
  auto* const impl = impl_.get();
  impl->closing = true;
  auto const throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  for (auto const& listener : impl->listeners)
    listener->close();
  impl->acceptors.cancel();
  co_await impl->acceptors.join();
  for (auto* session : impl->sessions)
    session->stop();
  {
    async::Alarm patience(impl->executor, [impl] { impl->cut_all(); });
    patience.set(base::system_clock().in(grace));
    co_await impl->sessions_group.join();
  }
  // What runs inside serve() belongs to its callers; all we can do is to end the connections.
  while (!impl->sessions.empty()) {
    for (auto* session : impl->sessions)
      session->cut();
    co_await async::sleep_for(std::chrono::milliseconds(1));
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
}

}  // namespace http
