#include "proxy/dialer.hpp"

#include "base/log.hpp"

#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <fcntl.h>

namespace proxy {
namespace {

using Socket = asio::generic::stream_protocol::socket;
using std::chrono::milliseconds;

constexpr auto as_result = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t reply_bytes_max = 4096;
constexpr std::size_t idle_max = 8;
constexpr milliseconds worker_patience{5'000};
constexpr milliseconds guest_patience{5'000};
constexpr milliseconds worker_pause{200};
constexpr std::array<milliseconds, 4> pauses = {
    milliseconds(100), milliseconds(200), milliseconds(300), milliseconds(400)};

struct Received {
  std::string line;
  os::Fd descriptor;
};

/// Takes whatever has arrived; descriptors beyond the first are closed, as one was promised.
base::Result<bool> receive(int socket, Received& into) {
  std::array<char, 1024> bytes{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  iovec vector{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto const count = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (count <= 0) return base::fail(base::Code::unavailable, "the worker closed the dial socket");
  for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    auto const descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < descriptors; ++i) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(header) + i * sizeof(int), sizeof one);
      os::Fd owned(one);
      if (!into.descriptor) into.descriptor = std::move(owned);
    }
  }
  into.line.append(bytes.data(), static_cast<std::size_t>(count));
  return true;
}

/// A connection to one worker's dial socket; carries one request at a time.
class Line {
 public:
  explicit Line(Socket socket) : socket_(std::move(socket)) {}

  static async::Task<Line> open(std::string path) {
    auto stream = co_await net::connect_unix(path);
    if (!stream)
      co_return base::fail(
          base::Code::unavailable, "the worker cannot be reached", stream.error().message());
    int const copy = ::fcntl((*stream)->native_handle(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) co_return base::fail_errno("duplicate the dial socket");
    os::Fd owned(copy);
    Socket socket(co_await asio::this_coro::executor);
    boost::system::error_code error;
    socket.assign(asio::generic::stream_protocol(AF_UNIX, 0), owned.get(), error);
    if (error)
      co_return base::fail(base::Code::internal, "adopt the dial socket: " + error.message());
    (void)owned.release();
    socket.non_blocking(true, error);
    co_return Line(std::move(socket));
  }

  /// The worker's socket to the guest, its connect() under way.
  async::Task<os::Fd> ask(std::string request) {
    request += '\n';
    std::size_t sent = 0;
    while (sent < request.size()) {
      auto [error, count] = co_await socket_.async_write_some(
          asio::buffer(request.data() + sent, request.size() - sent), as_result);
      if (error)
        co_return base::fail(base::Code::unavailable, "ask the worker: " + error.message());
      sent += count;
    }
    Received received;
    while (!received.line.ends_with('\n')) {
      if (received.line.size() > reply_bytes_max)
        co_return base::fail(base::Code::unavailable, "the worker's answer is too long");
      auto [error] = co_await socket_.async_wait(asio::socket_base::wait_read, as_result);
      if (error)
        co_return base::fail(base::Code::unavailable, "ask the worker: " + error.message());
      auto const more = receive(socket_.native_handle(), received);
      if (!more) co_return std::unexpected(more.error());
    }
    auto const reply = wire::decode_text<wire::DialReply>(received.line, wire::UnknownKeys::ignore);
    if (!reply)
      co_return base::fail(
          base::Code::unavailable, "the worker's answer is malformed", reply.error().message());
    usable_ = true;
    if (!reply->ok) {
      auto const code = base::code_named(reply->code);
      // "denied" is what this class says of a closed port, and never the worker's word for one.
      co_return base::fail(code == base::Code::denied ? base::Code::unavailable : code,
                           reply->message);
    }
    if (!received.descriptor)
      co_return base::fail(base::Code::unavailable,
                           "the worker's answer came without a descriptor");
    co_return std::move(received.descriptor);
  }

  /// Did the last exchange end as it should?
  bool take_usable() noexcept { return std::exchange(usable_, false); }

 private:
  Socket socket_;
  bool usable_ = false;
};

}  // namespace

struct Dialer::Impl {
  Impl(asio::any_io_executor on, std::string socket, milliseconds patience)
      : executor(std::move(on)), default_socket(std::move(socket)), worker_return(patience) {}

  asio::any_io_executor executor;
  std::string default_socket;
  milliseconds worker_return;
  std::vector<std::pair<std::string, Line>> idle;

  std::optional<Line> take(std::string const& path) {
    for (auto it = idle.begin(); it != idle.end(); ++it) {
      if (it->first != path) continue;
      Line line = std::move(it->second);
      idle.erase(it);
      return line;
    }
    return std::nullopt;
  }

  async::Task<os::Fd> descriptor(std::string path, std::string request) {
    auto kept = take(path);
    if (kept) {
      auto fd = co_await kept->ask(request);
      if (keep_or_drop(path, std::move(*kept)) || fd) co_return fd;
      // The worker was restarted meanwhile: a dial changes nothing, so it is asked again on a new
      // connection.
    }
    auto line = co_await Line::open(path);
    if (!line) co_return base::passing(line);
    auto fd = co_await line->ask(request);
    keep_or_drop(path, std::move(*line));
    co_return fd;
  }

  bool keep_or_drop(std::string const& path, Line line) {
    if (!line.take_usable()) return false;
    if (idle.size() >= idle_max) idle.erase(idle.begin());
    idle.emplace_back(path, std::move(line));
    return true;
  }
};

Dialer::Dialer(asio::any_io_executor executor,
               std::string default_socket,
               milliseconds worker_return)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(default_socket), worker_return)) {
}

Dialer::~Dialer() = default;

async::Task<net::Stream> Dialer::dial(std::string worker, wire::DialRequest request) {
  auto const path = worker.empty() ? impl_->default_socket : worker + "/dial.sock";
  auto asking = impl_->descriptor(path, wire::encode_text(request));
  auto fd =
      co_await async::with_deadline(base::system_clock().in(worker_patience), std::move(asking));
  if (!fd && fd.error().code() == base::Code::deadline_exceeded) {
    co_return base::fail(base::Code::unavailable, "the worker did not answer in time");
  }
  if (!fd) co_return base::passing(fd);
  auto connecting = net::finish_connect(std::move(*fd));
  auto stream =
      co_await async::with_deadline(base::system_clock().in(guest_patience), std::move(connecting));
  if (stream || stream.error().code() == base::Code::cancelled) co_return stream;
  co_return base::fail(base::Code::denied, "port is not open", stream.error().message());
}

async::Task<net::Stream> Dialer::dial_patiently(std::string worker, wire::DialRequest request) {
  auto const start = base::system_clock().steady_now();
  std::size_t refusals = 0;
  for (;;) {
    auto stream = co_await dial(worker, request);
    if (stream) co_return stream;
    auto const waited = base::system_clock().steady_now() - start;
    if (stream.error().code() == base::Code::unavailable) {
      if (waited >= impl_->worker_return) co_return stream;
      co_await async::sleep_for(worker_pause);
      continue;
    }
    // A guest that is silent instead of saying no has had its time already.
    bool const may_be_starting = stream.error().code() == base::Code::denied &&
                                 waited < guest_patience && refusals < pauses.size();
    if (!may_be_starting) co_return stream;
    co_await async::sleep_for(pauses[refusals++]);
  }
}

}  // namespace proxy
