// The actions of Host that start, find and end the gateway of a slot.

#include "base/fault.hpp"
#include "base/log.hpp"
#include "hostd/answers.hpp"
#include "hostd/gateway_sockets.hpp"
#include "hostd/host.hpp"
#include "hostd/jail.hpp"
#include "hostd/jail_view.hpp"
#include "hostd/slot_network.hpp"
#include "hostd/uplink.hpp"
#include "os/netns.hpp"
#include "os/packet_socket.hpp"
#include "os/process.hpp"

#include <sys/stat.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr std::uint64_t mib = 1024ULL * 1024;
/// Buffers of 512 connections, certificates and names, with room to spare; it has 4 MiB of its own
/// when idle.
constexpr std::uint64_t gateway_memory_mib = 128;
constexpr std::uint32_t gateway_tasks = 8;
/// Two for each connection of a full budget, and its own.
constexpr std::uint32_t gateway_descriptors = 2048;

std::string group_of(std::uint32_t slot) {
  return fmt::format("gateway-{}", slot);
}

}  // namespace

Answer Host::start_gateway(std::uint32_t slot) {
  auto const state = state_of(slot);
  if (state == SlotState::absent) return answer_of(Status::absent, "no such slot");
  if (state == SlotState::exited || state == SlotState::spent)
    return answer_of(Status::refused, "the slot's machine is over");
  if (find_gateway(slot)) return answer_of(Status::busy, "a gateway is there");
  // What one that crashed left.
  auto cleared = clear_gateway(slot);
  if (!cleared) return failed(cleared.error(), "gateway_not_started", slot);
  auto answer = try_start_gateway(slot);
  if (answer) return std::move(*answer);
  auto const why = answer.error();
  cleared = clear_gateway(slot);
  if (!cleared)
    base::log::error("gateway_not_cleared", {{"slot", slot}, {"why", cleared.error().message()}});
  return failed(why, "gateway_not_started", slot);
}

base::Result<Answer> Host::try_start_gateway(std::uint32_t slot) {
  auto ready = refresh_gateway_view();
  if (!ready) return base::passing(ready);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return base::fail_errno("make a pipe");
  os::Fd errors(ends[0]);
  os::Fd const errors_write(ends[1]);
  auto step = groups_->make(group_of(slot),
                            {.memory_bytes = gateway_memory_mib * mib, .pids = gateway_tasks});
  if (step && SPACE_FAULT("hostd.gateway.group_made"))
    step = base::fail(base::Code::internal, "told to fail");
  if (step) step = launch_gateway(slot, errors_write.get());
  if (step && SPACE_FAULT("hostd.gateway.started"))
    step = base::fail(base::Code::internal, "told to fail");
  auto answer = answer_of(Status::ok);
  if (step) step = connect_gateway(slot, answer);
  if (!step) return base::passing(step);
  answer.fds.push_back(std::move(errors));
  return answer;
}

base::Result<void> Host::launch_gateway(std::uint32_t slot, int errors) {
  auto netns = netns_of(slot);
  if (!netns) return base::passing(netns);
  auto sockets = open_gateway_sockets(os::FdRef(*netns));
  if (!sockets) return base::passing(sockets);
  auto const user = gateway_user_of(slot);
  auto broker = connect_broker_as(user, config_.use_socket());
  if (!broker) return base::passing(broker);
  auto way_out = uplink();
  if (!way_out) return base::passing(way_out);
  auto control = os::listen_stream(files(slot).gateway_socket());
  if (!control) return base::passing(control);
  auto renewals = os::listen_packets(files(slot).renewal_socket(), 0);
  if (!renewals) return base::passing(renewals);
  std::vector<int> fds{control->get(),
                       sockets->tcp.get(),
                       sockets->dns_datagram.get(),
                       sockets->dns_stream.get(),
                       renewals->get()};
  if (*broker) fds.push_back(broker->get());
  auto const program = config_.program_dir + "/space-gateway";
  bool const born_in_group = !groups_->clone_directory(group_of(slot)).empty();
  JailSpec const jail{
      .program = program,
      .argv = {"space-gateway"},
      .user = user,
      .view = gateway_view_,
      .group_doors = born_in_group ? std::vector<std::string>{} : groups_->doors(group_of(slot)),
      .clone_group = groups_->clone_directory(group_of(slot)),
      .fds = std::move(fds),
      .errors = errors,
      .network = way_out->get(),
      .descriptors_max = gateway_descriptors,
      .address_bytes_max =
          (groups_->features() & os::group_memory) != 0 ? 0 : 8 * gateway_memory_mib * mib,
      .tasks_max = gateway_tasks};
  auto jailed = start_jailed(jail);
  if (!jailed) return base::passing(jailed);
  auto& kept = gateways_[slot];
  kept.pid = jailed->pid;
  kept.pidfd = std::move(jailed->pidfd);
  kept.child = true;
  kept.collected = false;
  return {};
}

base::Result<void> Host::connect_gateway(std::uint32_t slot, Answer& answer) {
  auto control = os::connect_stream(files(slot).gateway_socket());
  if (!control) return base::passing(control, "connect to the gateway");
  answer.fds.push_back(std::move(*control));
  answer.reply.pid = gateways_[slot].pid;
  answer.reply.user_id = gateway_user_of(slot);
  return {};
}

Answer Host::attach_gateway(std::uint32_t slot) {
  if (!find_gateway(slot)) return answer_of(Status::absent, "no gateway runs there");
  auto answer = answer_of(Status::ok);
  auto connected = connect_gateway(slot, answer);
  if (!connected) return failed(connected.error(), "gateway_not_attached", slot);
  return answer;
}

Answer Host::end_gateway(std::uint32_t slot) {
  auto cleared = clear_gateway(slot);
  if (!cleared) return failed(cleared.error(), "gateway_not_ended", slot);
  return answer_of(Status::ok);
}

Answer Host::renew_broker(std::uint32_t slot) {
  if (!find_gateway(slot)) return answer_of(Status::absent, "no gateway runs there");
  auto broker = connect_broker_as(gateway_user_of(slot), config_.use_socket());
  if (!broker) return failed(broker.error(), "broker_not_renewed", slot);
  if (!*broker) return answer_of(Status::absent, "no broker listens");
  // Never waits for a gateway: what it does not take from its socket's queue it will miss.
  auto to = os::connect_packets(files(slot).renewal_socket(), std::chrono::milliseconds(1));
  if (!to) return failed(to.error(), "broker_not_renewed", slot);
  std::byte const word{1};
  int const passed = broker->get();
  auto sent = os::send_packet(*to, std::span(&word, 1), std::span(&passed, 1));
  if (!sent) return failed(sent.error(), "broker_not_renewed", slot);
  return answer_of(Status::ok);
}

Answer Host::let_through(std::uint32_t slot, Passage const& passage) {
  auto netns = netns_of(slot);
  if (!netns) return answer_of(Status::absent, "no such slot");
  auto const change = [&] { return hostd::let_through(os::FdRef(*netns), passage); };
  auto changed = kept_[slot].rules.change(os::FdRef(*netns), change, &passage);
  if (!changed) return failed(changed.error(), "passage_not_changed", slot);
  return answer_of(Status::ok);
}

bool Host::find_gateway(std::uint32_t slot) {
  auto& kept = gateways_[slot];
  if (kept.pidfd) return !kept.collected && !os::has_ended(kept.pidfd);
  for (auto const pid : groups_->members(group_of(slot))) {
    auto pidfd = os::open_process(pid);
    if (!pidfd) continue;
    // Looked at after the descriptor was opened: it is this process and no later one of its number.
    auto const members = groups_->members(group_of(slot));
    if (std::ranges::find(members, pid) == members.end() ||
        os::user_of_process(pid) != gateway_user_of(slot))
      continue;
    kept.pid = pid;
    kept.pidfd = std::move(*pidfd);
    kept.child = false;
    return true;
  }
  gateways_.erase(slot);
  return false;
}

base::Result<void> Host::clear_gateway(std::uint32_t slot) {
  auto const groups = groups_->list();
  bool const known =
      gateways_.contains(slot) || std::ranges::find(groups, group_of(slot)) != groups.end();
  if (!known) return {};
  base::Result<void> removed;
  // It holds nothing that could make it wait: it dies within a millisecond or two.
  for (int i = 0; i < 1000; ++i) {
    auto killed = groups_->kill(group_of(slot));
    static_cast<void>(killed);  // remove() is the judge
    reap();
    removed = base::fail(base::Code::unavailable, "the gateway does not die");
    // A dead child is in no group any more, yet waits to be collected; nobody would once it is
    // forgotten here.
    auto const kept = gateways_.find(slot);
    bool const collected = kept == gateways_.end() || !kept->second.child || kept->second.collected;
    if (collected && groups_->members(group_of(slot)).empty())
      removed = groups_->remove(group_of(slot));
    if (removed) break;
    ::poll(nullptr, 0, 2);
  }
  if (!removed) return removed;
  gateways_.erase(slot);
  ::unlink(files(slot).gateway_socket().c_str());
  ::unlink(files(slot).renewal_socket().c_str());
  return {};
}

base::Result<void> Host::refresh_gateway_view() {
  auto const program = config_.program_dir + "/space-gateway";
  struct stat info{};
  if (::stat(program.c_str(), &info) != 0) return base::fail_errno("find the gateway", program);
  if (info.st_uid != 0 || (info.st_mode & 022) != 0)
    return base::fail(base::Code::denied,
                      "the gateway's program must belong to root, writable by nobody else",
                      program);
  auto const key = fmt::format(
      "{}:{} {}.{}", info.st_dev, info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  if (gateway_view_ && key == gateway_view_key_) return {};
  auto parts = files_of_program(program);
  if (!parts) return base::passing(parts);
  auto view = make_jail_view({.files = std::move(*parts)}, directory_ + "/jail");
  if (!view) return base::passing(view);
  gateway_view_ = std::move(*view);
  gateway_view_key_ = key;
  return {};
}

/// Empty: the gateway lives in a namespace of its own that leads nowhere.
base::Result<os::Fd> Host::uplink() const {
  if (config_.uplink == "none") return os::Fd();
  if (config_.uplink == "host") {
    auto netns = os::open_pinned_netns(uplink_path(config_));
    return netns ? std::move(netns) : ensure_uplink(config_);
  }
  return open_network_namespace(config_.uplink);
}

}  // namespace hostd
