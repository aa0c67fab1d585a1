#include "hostd/client.hpp"

#include "os/packet_socket.hpp"

#include <cstring>

namespace hostd {
namespace {

// hostd gives up on a machine that does not die after 20 s; everything else takes milliseconds.
constexpr auto answer_limit = std::chrono::seconds(30);

struct Received {
  Reply reply;
  std::vector<os::Fd> fds;
};

template <std::size_t n> std::string text_of(std::array<char, n> const& bytes) {
  return std::string(bytes.data(), ::strnlen(bytes.data(), n));
}

base::Result<Received> ask(std::string const& path,
                           Request const& request,
                           std::size_t fds_wanted,
                           std::initializer_list<int> passed = {}) {
  // What a Firecracker has more: see protocol.hpp.
  constexpr std::size_t fds_of_firecracker = 5;
  auto socket = os::connect_packets(path, answer_limit);
  if (!socket) return base::passing(socket, "reach space-hostd");
  std::vector<int> fds;
  std::ranges::copy_if(passed, std::back_inserter(fds), [](int fd) { return fd >= 0; });
  auto sent = os::send_packet(*socket, std::as_bytes(std::span(&request, 1)), fds);
  if (!sent) return base::passing(sent, "ask space-hostd");
  Received received;
  auto packet = os::receive_packet(*socket, std::as_writable_bytes(std::span(&received.reply, 1)));
  if (!packet) return base::passing(packet, "wait for space-hostd");
  if (packet->size == 0)
    return base::fail(base::Code::unavailable,
                      "space-hostd closed the connection without an answer");
  if (packet->truncated || packet->size != sizeof received.reply) {
    return base::fail(base::Code::internal, "space-hostd speaks another version");
  }
  auto const reason = text_of(received.reply.reason);
  switch (received.reply.status) {
    case Status::ok:
      break;
    case Status::refused:
      return base::fail(base::Code::invalid_argument, "space-hostd refused the request", reason);
    case Status::absent:
      return base::fail(base::Code::not_found, "there is no such slot or machine", reason);
    case Status::busy:
      return base::fail(base::Code::conflict, "the slot is in use", reason);
    case Status::failed:
      return base::fail(base::Code::internal, "space-hostd could not do it", reason);
    case Status::altered:
      return base::fail(base::Code::denied, "somebody changed the packet rules", reason);
  }
  bool const machine = request.action == Action::start_vmm || request.action == Action::attach_vmm;
  if (machine && received.reply.engine == Engine::firecracker) fds_wanted = fds_of_firecracker;
  if (packet->fds.size() != fds_wanted)
    return base::fail(base::Code::internal, "space-hostd sent other descriptors than expected");
  received.fds = std::move(packet->fds);
  return received;
}

Request request_for(Action action, std::uint32_t slot) {
  Request request;
  request.action = action;
  request.slot = slot;
  return request;
}

Vmm vmm_of(Received received) {
  Vmm vmm;
  vmm.sandbox = text_of(received.reply.sandbox);
  vmm.epoch = received.reply.epoch;
  vmm.pid = received.reply.pid;
  vmm.user_id = received.reply.user_id;
  vmm.pidfd = std::move(received.fds[0]);
  vmm.qmp = std::move(received.fds[1]);
  vmm.console = std::move(received.fds[2]);
  if (received.fds.size() > 3) vmm.errors = std::move(received.fds[3]);
  if (received.fds.size() > 4) vmm.exchange = std::move(received.fds[4]);
  return vmm;
}

}  // namespace

base::Result<Hello> Client::hello() const {
  auto got = ask(path_, request_for(Action::hello, 0), 0);
  if (!got) return base::passing(got);
  return Hello{.version = protocol_version, .features = got->reply.features};
}

base::Result<void> Client::make_slot(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::make_slot, slot), 0);
  if (!got) return base::passing(got, "make a slot");
  return {};
}

base::Result<void> Client::remove_slot(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::remove_slot, slot), 0);
  if (!got) return base::passing(got, "remove a slot");
  return {};
}

base::Result<Vmm> Client::start_vmm(std::uint32_t slot,
                                    base::SandboxId const& sandbox,
                                    std::uint64_t epoch,
                                    Machine const& machine,
                                    os::FdRef disk,
                                    os::FdRef memory,
                                    os::FdRef changes) const {
  auto request = request_for(Action::start_vmm, slot);
  sandbox.str().copy(request.sandbox.data(), request.sandbox.size() - 1);
  request.epoch = epoch;
  request.machine = machine;
  auto got = ask(path_, request, 4, {disk.get(), memory.get(), changes.get()});
  if (!got) return base::passing(got, "start a machine");
  return vmm_of(std::move(*got));
}

base::Result<Vmm> Client::attach_vmm(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::attach_vmm, slot), 3);
  if (!got) return base::passing(got, "attach to a machine");
  return vmm_of(std::move(*got));
}

base::Result<VmmExit> Client::end_vmm(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::end_vmm, slot), 0);
  if (!got) return base::passing(got, "end a machine");
  return VmmExit{.wait_status = got->reply.wait_status,
                 .out_of_memory = got->reply.out_of_memory != 0};
}

base::Result<MachineMemory> Client::open_memory(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::open_memory, slot), 2);
  if (!got) return base::passing(got, "open a machine's memory");
  return MachineMemory{.pages = std::move(got->fds[0]), .memory = std::move(got->fds[1])};
}

base::Result<Inspected> Client::inspect_slot(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::inspect_slot, slot), 0);
  if (!got) return base::passing(got, "inspect a slot");
  auto const& reply = got->reply;
  return Inspected{.state = reply.state,
                   .sandbox = text_of(reply.sandbox),
                   .epoch = reply.epoch,
                   .pid = reply.pid,
                   .user_id = reply.user_id};
}

base::Result<os::Fd> Client::dial(std::uint32_t slot, std::uint16_t port) const {
  auto request = request_for(Action::dial, slot);
  request.port = port;
  auto got = ask(path_, request, 1);
  if (!got) return base::passing(got, "dial the guest");
  return std::move(got->fds[0]);
}

base::Result<Gateway> Client::start_gateway(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::start_gateway, slot), 2);
  if (!got) return base::passing(got, "start a gateway");
  Gateway gateway;
  gateway.pid = got->reply.pid;
  gateway.user_id = got->reply.user_id;
  gateway.control = std::move(got->fds[0]);
  gateway.errors = std::move(got->fds[1]);
  return gateway;
}

base::Result<Gateway> Client::attach_gateway(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::attach_gateway, slot), 1);
  if (!got) return base::passing(got, "attach to a gateway");
  Gateway gateway;
  gateway.pid = got->reply.pid;
  gateway.user_id = got->reply.user_id;
  gateway.control = std::move(got->fds[0]);
  return gateway;
}

base::Result<void> Client::renew_broker(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::renew_broker, slot), 0);
  if (!got) return base::passing(got, "connect a gateway to the broker");
  return {};
}

base::Result<void> Client::let_through(std::uint32_t slot, Passage const& passage) const {
  auto request = request_for(Action::let_through, slot);
  request.passage = passage;
  auto got = ask(path_, request, 0);
  if (!got) return base::passing(got, "change what a slot lets through");
  return {};
}

base::Result<void> Client::check_rules(std::uint32_t slot, Passage const& passage) const {
  auto request = request_for(Action::check_rules, slot);
  request.passage = passage;
  auto got = ask(path_, request, 0);
  if (!got) return base::passing(got, "check a slot's rules");
  return {};
}

base::Result<void> Client::check_uplink() const {
  auto got = ask(path_, request_for(Action::check_uplink, 0), 0);
  if (!got) return base::passing(got, "check the uplink's rules");
  return {};
}

base::Result<GuardDrops> Client::count_drops(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::count_drops, slot), 0);
  if (!got) return base::passing(got, "count what a slot's guard dropped");
  return got->reply.drops;
}

base::Result<void> Client::end_gateway(std::uint32_t slot) const {
  auto got = ask(path_, request_for(Action::end_gateway, slot), 0);
  if (!got) return base::passing(got, "end a gateway");
  return {};
}

}  // namespace hostd
