#include "hostd/server.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"
#include "os/packet_socket.hpp"

#include <sys/signalfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>

#include <poll.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr std::size_t connections_max = 128;
constexpr auto end_limit = std::chrono::seconds(20);

Answer refused(Status status, std::string_view reason) {
  Answer answer;
  answer.reply.status = status;
  reason.copy(answer.reply.reason.data(), answer.reply.reason.size() - 1);
  return answer;
}

}  // namespace

Server::Server(Host& host, os::Fd listener, os::Fd signals, uid_t worker)
    : host_(host), listener_(std::move(listener)), signals_(std::move(signals)), worker_(worker) {}

base::Result<void> Server::run() {
  std::vector<pollfd> waited;
  for (;;) {
    bool const ending =
        std::ranges::any_of(connections_, [](auto const& c) { return c.ending.has_value(); });
    waited.clear();
    waited.push_back({.fd = signals_.get(), .events = POLLIN, .revents = 0});
    bool const full = connections_.size() >= connections_max;
    waited.push_back({.fd = full ? -1 : listener_.get(), .events = POLLIN, .revents = 0});
    for (auto const& connection : connections_) {
      // While it waits for an end, only its closing matters; the machine is ended all the same.
      waited.push_back(
          {.fd = connection.ending ? -1 : connection.socket.get(), .events = POLLIN, .revents = 0});
    }
    if (::poll(waited.data(), waited.size(), ending ? 2 : -1) < 0 && errno != EINTR)
      return base::fail_errno("wait for requests");
    if (waited[0].revents != 0 && !take_signals()) return {};
    std::vector<Connection> kept;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      auto& connection = connections_[i];
      bool open = true;
      if (connection.ending) {
        open = go_on_ending(connection);
      } else if (waited[i + 2].revents != 0) {
        open = serve(connection);
      }
      if (open) kept.push_back(std::move(connection));
    }
    connections_ = std::move(kept);
    if (waited[1].revents != 0) accept_all();
  }
}

bool Server::take_signals() {
  signalfd_siginfo signal{};
  bool stop = false;
  while (::read(signals_.get(), &signal, sizeof signal) == sizeof signal) {
    stop = stop || signal.ssi_signo != SIGCHLD;
  }
  host_.reap();
  return !stop;
}

void Server::accept_all() {
  while (connections_.size() < connections_max) {
    os::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    auto const peer = os::peer_user(socket);
    if (!peer || (*peer != worker_ && *peer != 0)) {
      base::log::warn("stranger_refused", {{"user", peer ? static_cast<long long>(*peer) : -1}});
      continue;
    }
    connections_.push_back({.socket = std::move(socket), .ending = std::nullopt, .give_up = {}});
  }
}

bool Server::serve(Connection& connection) {
  Request request;
  auto packet =
      os::receive_packet(connection.socket, std::as_writable_bytes(std::span(&request, 1)));
  if (!packet || packet->size == 0) return false;
  if (packet->truncated || packet->size != sizeof request || packet->fds.size() > 3) {
    base::log::warn("malformed_request", {{"bytes", packet->size}, {"fds", packet->fds.size()}});
    return false;
  }
  auto const fault = fault_in(request, host_.bounds());
  if (!fault.empty()) return answer(connection, refused(Status::refused, fault));
  std::size_t wanted = 0;
  if (request.action == Action::start_vmm)
    wanted = (request.machine.start == MachineStart::boot ? 1 : 2) + request.machine.changed_pages;
  if (packet->fds.size() != wanted) {
    return answer(connection,
                  refused(Status::refused,
                          "descriptors: one for start_vmm, two with a memory file, three with "
                          "changed pages, none for the others"));
  }
  if (request.action != Action::end_vmm) {
    packet->fds.resize(3);  // an empty one for what it does not bring
    return answer(connection,
                  host_.handle(request,
                               {.disk = std::move(packet->fds[0]),
                                .memory = std::move(packet->fds[1]),
                                .changes = std::move(packet->fds[2])}));
  }
  auto ended = host_.begin_end(request);
  if (ended) return answer(connection, *ended);
  connection.ending = request.slot;
  connection.give_up = base::system_clock().in(end_limit);
  return true;
}

bool Server::go_on_ending(Connection& connection) {
  auto ended = host_.try_end(*connection.ending);
  if (!ended && base::system_clock().steady_now() < connection.give_up) return true;
  connection.ending.reset();
  if (!ended) return answer(connection, refused(Status::failed, "the machine does not die"));
  return answer(connection, *ended);
}

bool Server::answer(Connection& connection, Answer const& answer) {
  std::vector<int> fds;
  for (auto const& fd : answer.fds)
    fds.push_back(fd.get());
  auto sent = os::send_packet(connection.socket, std::as_bytes(std::span(&answer.reply, 1)), fds);
  if (!sent) base::log::warn("answer_not_sent", {{"why", sent.error().message()}});
  return sent.has_value();
}

}  // namespace hostd
