#include "worker/dial_server.hpp"

#include "base/log.hpp"

#include <sys/socket.h>

#include <cstring>

namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::size_t line_bytes_max = 512;
constexpr std::size_t connections_max = 512;

/// One line, with the descriptor if there is one. Fails when the peer does not take it at once:
/// replies are short, and a peer that lets its buffer fill up is not waiting for them.
base::Result<void> send_reply(int socket, std::string line, int passed) {
  iovec part{.iov_base = line.data(), .iov_len = line.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  }
  auto const sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(line.size()))
    return base::fail_errno("answer on the dial socket");
  return {};
}

}  // namespace

DialServer::DialServer(asio::any_io_executor executor, Worker& worker, std::set<unsigned> allowed)
    : worker_(worker), allowed_(std::move(allowed)), tasks_(std::move(executor)) {}

void DialServer::listen(std::unique_ptr<net::Listener> listener) {
  listeners_.push_back(std::move(listener));
  tasks_.spawn("accept on the dial socket", accept(listeners_.back().get()));
}

asio::awaitable<void> DialServer::close() {
  for (auto const& listener : listeners_)
    listener->close();
  tasks_.cancel();
  co_await tasks_.join();
}

asio::awaitable<void> DialServer::accept(net::Listener* listener) {
  for (;;) {
    auto connection = co_await listener->accept();
    if (!connection) co_return;
    auto const peer = net::peer_user(**connection);
    if (!peer || !allowed_.contains(peer->uid) || tasks_.running() > connections_max) {
      base::log::warn("dial_refused",
                      {{"peer", (*connection)->peer_name()}, {"connections", tasks_.running()}});
      (*connection)->close();
      continue;
    }
    tasks_.spawn("serve the dial socket", serve(std::move(*connection)));
  }
}

asio::awaitable<void> DialServer::serve(net::Stream connection) {
  std::string pending;
  std::array<char, 1024> buffer{};
  for (;;) {
    auto const got = co_await connection->read_some(buffer);
    if (!got || *got == 0) co_return;
    pending.append(buffer.data(), *got);
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos;
         pending.erase(0, end + 1)) {
      auto socket = co_await dial(pending.substr(0, end));
      wire::DialReply reply{.ok = socket.has_value(), .code = {}, .message = {}};
      if (!socket) {
        reply.code = base::name_of(socket.error().code());
        reply.message = socket.error().message();
      }
      auto const line = wire::encode_text(reply) + "\n";
      auto const sent = send_reply(connection->native_handle(), line, socket ? socket->get() : -1);
      if (!sent) co_return;
    }
    if (pending.size() > line_bytes_max) co_return;
  }
}

async::Task<os::Fd> DialServer::dial(std::string line) {
  auto const wanted =
      wire::decode_text<wire::DialRequest>(line, wire::UnknownKeys::reject, line_bytes_max);
  if (!wanted) co_return std::unexpected(wanted.error());
  if (wanted->port == 0) co_return base::fail(base::Code::invalid_argument, "port: 1 to 65535");
  auto const sandbox = worker_.find(wanted->sandbox);
  if (!sandbox || sandbox->internal())
    co_return base::fail(base::Code::not_found, "this sandbox is not on this worker");
  if (sandbox->epoch() != wanted->epoch)
    co_return base::fail(base::Code::conflict, "this is another life of the sandbox");
  if (sandbox->state() != Sandbox::State::running)
    co_return base::fail(base::Code::conflict, "the sandbox does not run");
  auto socket = co_await worker_.host().dialer.begin(sandbox->slot(), wanted->port);
  if (!socket)
    co_return base::fail(
        base::Code::unavailable, "the sandbox cannot be reached", socket.error().message());
  // The world moved while hostd worked: never hand out a socket into a slot that is about to be
  // somebody else's.
  if (sandbox->state() != Sandbox::State::running)
    co_return base::fail(base::Code::conflict, "the sandbox does not run");
  co_return socket;
}

}  // namespace worker
