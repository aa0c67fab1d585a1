#include "hostd/host.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "hostd/answers.hpp"
#include "hostd/slot_network.hpp"
#include "hostd/uplink.hpp"
#include "os/netns.hpp"
#include "os/process.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <set>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace hostd {
namespace {

std::string group_of(std::uint32_t slot) {
  return fmt::format("slot-{}", slot);
}

base::Result<void> make_directory(std::string const& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return base::fail_errno("make a directory", path);
  if (::chmod(path.c_str(), mode) != 0) return base::fail_errno("protect a directory", path);
  return {};
}

}  // namespace

Host::Host(wire::Config config, std::unique_ptr<os::ControlGroups> groups)
    : config_(std::move(config)),
      directory_(config_.run_dir + "/hostd"),
      groups_(std::move(groups)) {}

Host::~Host() {
  groups_->remove_parent();
  // Stopped for good with nothing left: the directory's own mount goes as well, so that it can be
  // deleted.
  if (!numbered_entries(directory_ + "/netns").empty()) return;
  if (config_.uplink == "host") {
    auto removed = remove_uplink(config_);
    if (!removed)
      base::log::error("uplink_not_removed",
                       {{"why", removed.error().message()}, {"detail", removed.error().detail()}});
  }
  os::release_netns_directory(directory_ + "/netns");
}

base::Result<std::unique_ptr<Host>> Host::open(wire::Config config) {
  auto groups = os::open_control_groups(config.instance);
  // Without groups a machine could neither be found again nor be killed whole.
  if (groups->version() == 1 && groups->doors("any").empty()) {
    return base::fail(base::Code::unavailable,
                      "this host has no control groups, or does not let us make any");
  }
  std::unique_ptr<Host> host(new Host(std::move(config), std::move(groups)));
  auto prepared = host->prepare();
  if (!prepared) return base::passing(prepared);
  host->repair();
  if (host->config_.uplink == "host") {
    // Without it machines run all the same; a gateway's start tries again and tells why.
    auto made = ensure_uplink(host->config_);
    host->rule_watch_.uplink_made(host->config_);
    if (!made)
      base::log::error("uplink_not_made",
                       {{"why", made.error().message()}, {"detail", made.error().detail()}});
  } else if (standing_uplink(host->config_)) {  // of a killed predecessor, configured otherwise
    auto removed = remove_uplink(host->config_);
    if (!removed) return base::passing(removed, "remove the former uplink");
  }
  return host;
}

base::Result<void> Host::prepare() {
  auto step = make_directory(directory_ + "/slots", 0700);
  if (step) step = make_directory(directory_ + "/jail", 0700);
  if (step) step = os::prepare_netns_directory(directory_ + "/netns");
  return step;
}

void Host::repair() {
  std::set<std::uint32_t> slots;
  for (char const* part : {"/netns", "/slots"}) {
    for (auto const slot : numbered_entries(directory_ + part))
      slots.insert(slot);
  }
  for (auto const& group : groups_->list()) {
    for (std::string_view const prefix : {"slot-", "gateway-"}) {
      if (!group.starts_with(prefix)) continue;
      if (auto const slot = parse_slot(std::string_view(group).substr(prefix.size())))
        slots.insert(*slot);
    }
  }
  for (auto const slot : slots)
    repair_slot(slot);
}

void Host::repair_slot(std::uint32_t slot) {
  auto const own = files(slot);
  own.remove_leftovers();
  bool const machine = own.record().has_value() && !own.spent().has_value();
  auto const netns = os::open_pinned_netns(own.netns());
  if (!machine) {
    // A group without a record is a start that was killed before it promised anything, or an end
    // nearly done.
    undo_start(slot);
    if (!netns || !own.exists()) {
      auto removed = os::unpin_netns(own.netns());
      if (removed) removed = own.remove();
      if (!removed)
        base::log::error("slot_not_repaired", {{"slot", slot}, {"why", removed.error().message()}});
    }
  }
  // Of a slot that is gone, or of a start that was killed half-way.
  if (state_of(slot) == SlotState::absent || !find_gateway(slot)) {
    auto cleared = clear_gateway(slot);
    if (!cleared)
      base::log::error("gateway_not_cleared", {{"slot", slot}, {"why", cleared.error().message()}});
  }
  base::log::info("slot_found", {{"slot", slot}, {"state", static_cast<int>(state_of(slot))}});
}

Bounds Host::bounds() const noexcept {
  return {.slots = config_.slots_max,
          .kvm = ::access("/dev/kvm", F_OK) == 0 && config_.accelerator != "tcg",
          .firecracker = !firecracker_program().empty()};
}

Answer Host::handle(Request const& request, Passed passed) {
  reap();
  switch (request.action) {
    case Action::hello:
      return hello();
    case Action::make_slot:
      return make_slot(request.slot);
    case Action::remove_slot:
      return remove_slot(request.slot);
    case Action::start_vmm:
      return start_vmm(request, passed);
    case Action::attach_vmm:
      return attach_vmm(request.slot);
    case Action::inspect_slot:
      return inspect_slot(request.slot);
    case Action::dial:
      return dial(request.slot, static_cast<std::uint16_t>(request.port));
    case Action::start_gateway:
      return start_gateway(request.slot);
    case Action::attach_gateway:
      return attach_gateway(request.slot);
    case Action::end_gateway:
      return end_gateway(request.slot);
    case Action::open_memory:
      return open_memory(request.slot);
    case Action::renew_broker:
      return renew_broker(request.slot);
    case Action::let_through:
      return let_through(request.slot, request.passage);
    case Action::check_rules:
      return check_rules(request.slot, request.passage);
    case Action::check_uplink:
      return check_uplink();
    case Action::count_drops:
      return count_drops(request.slot);
    case Action::end_vmm:
      break;
  }
  return answer_of(Status::refused, "action: not handled here");
}

Answer Host::hello() const {
  auto answer = answer_of(Status::ok);
  auto const limits = groups_->features();
  answer.reply.features = (groups_->version() == 2 ? cgroup_v2 : 0U) |
                          ((limits & os::group_memory) != 0 ? limits_memory : 0U) |
                          ((limits & os::group_cpu) != 0 ? limits_cpu : 0U) |
                          ((limits & os::group_pids) != 0 ? limits_pids : 0U) |
                          ((limits & os::group_io) != 0 ? limits_io : 0U) |
                          (bounds().kvm ? kvm_device : 0U) |
                          (bounds().firecracker ? firecracker_found : 0U);
  return answer;
}

Answer Host::make_slot(std::uint32_t slot) {
  auto const own = files(slot);
  if (state_of(slot) != SlotState::absent) return answer_of(Status::busy, "the slot exists");
  // Debris of a failed make or of a restarted host.
  auto step = os::unpin_netns(own.netns());
  if (step) step = own.remove();
  if (step) step = own.make();
  if (!step) return failed(step.error(), "slot_not_made", slot);
  auto network = make_slot_network();
  if (SPACE_FAULT("hostd.slot.before_pin"))
    network = base::fail(base::Code::internal, "told to fail");
  if (!network) {
    auto removed = own.remove();
    return failed(removed ? network.error() : removed.error(), "slot_not_made", slot);
  }
  // The commit point. Before it, everything of the slot goes with our descriptors.
  step = os::pin_netns(network->netns, own.netns());
  if (!step) return failed(step.error(), "slot_not_made", slot);
  if (SPACE_FAULT("hostd.slot.pinned")) return answer_of(Status::failed, "told to fail");
  Kept kept;
  kept.netns = std::move(network->netns);
  kept.tap = std::move(network->tap);
  kept.rules = RuleState(network->rules_generation);
  kept.net_bytes_per_s = 0;
  auto& made = kept_.insert_or_assign(slot, std::move(kept)).first->second;
  // Here, and not while somebody waits for a machine. Its start tries again when this fails.
  auto const limited = limit_network_of(made, std::uint64_t{config_.net_mib_per_s_max} << 20);
  static_cast<void>(limited);
  return answer_of(Status::ok);
}

/// Nothing to do when it is known to have that budget; 0 is none.
base::Result<void> Host::limit_network_of(Kept& kept, std::uint64_t bytes_per_s) {
  if (kept.net_bytes_per_s == bytes_per_s) return {};
  auto const netns = os::FdRef(kept.netns);
  auto limited = kept.rules.change(netns, [&] { return limit_network(netns, bytes_per_s); });
  kept.net_bytes_per_s.reset();
  if (limited) kept.net_bytes_per_s = bytes_per_s;
  return limited;
}

Answer Host::remove_slot(std::uint32_t slot) {
  auto const state = state_of(slot);
  if (state == SlotState::absent) return answer_of(Status::absent, "no such slot");
  if (state == SlotState::running || state == SlotState::exited)
    return answer_of(Status::busy, "end its machine first");
  auto step = clear_gateway(slot);
  if (!step) return failed(step.error(), "slot_not_removed", slot);
  kept_.erase(slot);
  auto const own = files(slot);
  step = os::unpin_netns(own.netns());
  if (!step) return failed(step.error(), "slot_not_removed", slot);
  if (SPACE_FAULT("hostd.slot.unpinned")) return answer_of(Status::failed, "told to fail");
  step = own.remove();
  if (!step) return failed(step.error(), "slot_not_removed", slot);
  return answer_of(Status::ok);
}

SlotState Host::state_of(std::uint32_t slot) {
  auto const own = files(slot);
  if (own.record()) return find_machine(slot) ? SlotState::running : SlotState::exited;
  if (own.spent()) return SlotState::spent;
  return own.exists() && netns_of(slot) ? SlotState::empty : SlotState::absent;
}

base::Result<int> Host::netns_of(std::uint32_t slot) {
  auto& kept = kept_[slot];
  if (!kept.netns) {
    auto netns = os::open_pinned_netns(files(slot).netns());
    if (!netns) return base::passing(netns);
    kept.netns = std::move(*netns);
  }
  return kept.netns.get();
}

bool Host::find_machine(std::uint32_t slot) {
  auto& kept = kept_[slot];
  if (kept.wait_status) return false;
  if (kept.pidfd) return !os::has_ended(kept.pidfd);
  for (auto const pid : groups_->members(group_of(slot))) {
    auto pidfd = os::open_process(pid);
    if (!pidfd) continue;
    // Looked at after the descriptor was opened: it is this process and not a later one of the same
    // number.
    auto const members = groups_->members(group_of(slot));
    if (std::ranges::find(members, pid) == members.end() ||
        os::user_of_process(pid) != user_of(slot))
      continue;
    kept.pid = pid;
    kept.pidfd = std::move(*pidfd);
    kept.child = false;
    return true;
  }
  return false;
}

void Host::describe(std::uint32_t slot, Reply& reply) {
  auto const own = files(slot);
  reply.state = state_of(slot);
  reply.user_id = user_of(slot);
  if (auto const record = own.record()) {
    record->sandbox.copy(reply.sandbox.data(), reply.sandbox.size() - 1);
    reply.epoch = record->epoch;
  }
  if (auto const end = own.spent()) {
    reply.wait_status = end->wait_status;
    reply.out_of_memory = end->out_of_memory ? 1 : 0;
  }
  auto const& kept = kept_[slot];
  if (reply.state == SlotState::running) reply.pid = kept.pid;
  if (reply.state == SlotState::exited && kept.wait_status) reply.wait_status = *kept.wait_status;
}

Answer Host::inspect_slot(std::uint32_t slot) {
  auto answer = answer_of(Status::ok);
  describe(slot, answer.reply);
  if (answer.reply.state == SlotState::absent) kept_.erase(slot);
  return answer;
}

Answer Host::dial(std::uint32_t slot, std::uint16_t port) {
  auto netns = netns_of(slot);
  if (!netns) return answer_of(Status::absent, "no such slot");
  auto socket = dial_guest(os::FdRef(*netns), port);
  if (!socket) return failed(socket.error(), "dial_failed", slot);
  auto answer = answer_of(Status::ok);
  answer.fds.push_back(std::move(*socket));
  return answer;
}

void Host::reap() {
  for (auto& [slot, kept] : kept_) {
    if (!kept.child || kept.wait_status || !kept.pidfd) continue;
    auto const status = os::try_collect(kept.pid);
    if (status) kept.wait_status = status;
  }
  for (auto& [slot, gateway] : gateways_) {
    if (gateway.child && !gateway.collected)
      gateway.collected = os::try_collect(gateway.pid).has_value();
  }
}

}  // namespace hostd
