// The actions of Host that start, find and end a machine.

#include "base/fault.hpp"
#include "base/log.hpp"
#include "hostd/answers.hpp"
#include "hostd/guest_memory.hpp"
#include "hostd/host.hpp"
#include "hostd/jail.hpp"
#include "hostd/jail_view.hpp"
#include "hostd/slot_network.hpp"
#include "hostd/system_filter.hpp"
#include "os/block_device.hpp"
#include "os/packet_socket.hpp"
#include "os/process.hpp"
#include "vmm/qemu_command.hpp"

#include <sys/stat.h>

#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr std::uint64_t mib = 1024ULL * 1024;
/// vCPUs, the main loop, and QEMU's workers for disk requests (64 at most).
constexpr std::uint32_t vmm_tasks = 80;

std::string group_of(std::uint32_t slot) {
  return fmt::format("slot-{}", slot);
}

/// A descriptor that came with a request becomes a new opening of the same file: its locks and
/// flags are then not shared with the sender. Only what the sender may write itself is opened for
/// writing.
base::Result<os::Fd> reopen(os::Fd const& passed, int mode) {
  os::Fd file(::open(fmt::format("/proc/self/fd/{}", passed.get()).c_str(), mode | O_CLOEXEC));
  if (!file) return base::fail_errno("open a file of the machine");
  return file;
}

/// Regular, and opened by the sender for at least reading, or for both.
bool is_file(os::Fd const& passed, bool writable, struct stat& info) {
  if (!passed || ::fstat(passed.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  int const flags = ::fcntl(passed.get(), F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0) return false;
  int const mode = flags & O_ACCMODE;
  return mode == O_RDWR || (mode == O_RDONLY && !writable);
}

base::Result<os::Fd> reopen_disk(os::Fd const& passed, std::uint64_t& bytes) {
  struct stat info{};
  if (!is_file(passed, true, info)) {
    return base::fail(base::Code::invalid_argument,
                      "disk: not a regular file opened for reading and writing");
  }
  bytes = static_cast<std::uint64_t>(info.st_size);
  if (bytes < mib || bytes % 512 != 0)
    return base::fail(base::Code::invalid_argument, "disk: at least 1 MiB, a multiple of 512");
  return reopen(passed, O_RDWR);
}

/// For a restore the VMM gets it open for reading alone: what many machines share none of them can
/// change.
base::Result<os::Fd> reopen_memory(os::Fd const& passed, Machine const& machine) {
  bool const writable = machine.start == MachineStart::record;
  struct stat info{};
  if (!is_file(passed, writable, info)) {
    return base::fail(base::Code::invalid_argument,
                      writable ? "memory: not a regular file opened for reading and writing"
                               : "memory: not a regular file opened for reading");
  }
  if (static_cast<std::uint64_t>(info.st_size) != machine.memory_mib * mib)
    return base::fail(base::Code::invalid_argument, "memory: not as large as the machine's memory");
  return reopen(passed, writable ? O_RDWR : O_RDONLY);
}

/// What the VMM puts over its memory at its start. Its content is the VMM's business: it is read
/// inside the jail.
base::Result<os::Fd> reopen_changes(os::Fd const& passed) {
  struct stat info{};
  if (!is_file(passed, false, info)) {
    return base::fail(base::Code::invalid_argument,
                      "changed pages: not a regular file opened for reading");
  }
  return reopen(passed, O_RDONLY);
}

bool same_file(os::Fd const& one, os::Fd const& other) {
  struct stat a{}, b{};
  return ::fstat(one.get(), &a) != 0 || ::fstat(other.get(), &b) != 0 ||
         (a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

vmm::QemuMemory memory_of(MachineStart start) {
  switch (start) {
    case MachineStart::boot:
      break;
    case MachineStart::record:
      return vmm::QemuMemory::recorded;
    case MachineStart::restore:
      return vmm::QemuMemory::restored;
  }
  return vmm::QemuMemory::own;
}

}  // namespace

Answer Host::start_vmm(Request const& request, Passed const& passed) {
  auto const state = state_of(request.slot);
  if (state == SlotState::absent) return answer_of(Status::absent, "no such slot");
  if (state == SlotState::spent) return answer_of(Status::refused, "the slot is spent");
  if (state != SlotState::empty) return answer_of(Status::busy, "a machine is there");
  auto opened = reopen_files(request.machine, passed);
  base::Result<Answer> answer;
  if (opened) {
    answer = try_start(request, std::move(*opened));
  } else {
    answer = base::passing(opened);
  }
  if (answer) return std::move(*answer);
  bool const callers_bug = answer.error().code() == base::Code::invalid_argument;
  base::log::error("vmm_not_started",
                   {{"slot", request.slot},
                    {"why", answer.error().message()},
                    {"detail", answer.error().detail()}});
  return answer_of(callers_bug ? Status::refused : Status::failed, answer.error().message());
}

base::Result<Host::Files> Host::reopen_files(Machine const& machine, Passed const& passed) {
  Files opened;
  auto own_disk = reopen_disk(passed.disk, opened.disk_bytes);
  if (!own_disk) return base::passing(own_disk);
  opened.disk = std::move(*own_disk);
  if (machine.start == MachineStart::boot) return opened;
  auto own_memory = reopen_memory(passed.memory, machine);
  if (!own_memory) return base::passing(own_memory);
  opened.memory = std::move(*own_memory);
  if (same_file(opened.disk, opened.memory))
    return base::fail(base::Code::invalid_argument, "memory: the same file as the disk");
  if (machine.changed_pages == 0) return opened;
  auto own_changes = reopen_changes(passed.changes);
  if (!own_changes) return base::passing(own_changes);
  opened.changes = std::move(*own_changes);
  return opened;
}

base::Result<Answer> Host::try_start(Request const& request, Files opened) {
  auto const slot = request.slot;
  auto const own = files(slot);
  bool const firecracker = request.machine.engine == Engine::firecracker;
  auto ready = firecracker ? refresh_firecracker_view()
                           : refresh_view(request.machine.accelerator == Accelerator::kvm);
  if (!ready) return base::passing(ready);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return base::fail_errno("make a pipe");
  os::Fd errors(ends[0]);
  os::Fd const errors_write(ends[1]);

  // From here on the slot is used up, whatever happens.
  auto netns = netns_of(slot);
  if (!netns) return base::passing(netns);
  auto step = limit_network_of(kept_[slot], request.machine.net_bytes_per_s_max);
  if (step) step = groups_->make(group_of(slot), limits_for(request.machine, opened.disk));
  if (step && SPACE_FAULT("hostd.vmm.group_made"))
    step = base::fail(base::Code::internal, "told to fail");
  if (step)
    step =
        own.write_record({.sandbox = std::string(request.sandbox.data()), .epoch = request.epoch});
  if (step && SPACE_FAULT("hostd.vmm.recorded"))
    step = base::fail(base::Code::internal, "told to fail");
  if (step)
    step = firecracker ? launch_firecracker(request, opened)
                       : launch(request, opened, errors_write.get());
  if (step && SPACE_FAULT("hostd.vmm.started"))
    step = base::fail(base::Code::internal, "told to fail");
  auto answer = answer_of(Status::ok);
  if (step) step = connect_ends(slot, answer);
  if (!step) {
    auto failure = base::passing(step);
    undo_start(slot);
    // Also when it came no further than the network's limit: the next machine must not inherit
    // that.
    auto marked = own.spent() ? base::Result<void>() : own.mark_spent({});
    if (!marked)
      base::log::error("slot_not_marked", {{"slot", slot}, {"why", marked.error().message()}});
    return failure;
  }
  if (!firecracker) answer.fds.push_back(std::move(errors));
  return answer;
}

base::Result<void> Host::launch(Request const& request, Files const& opened, int errors) {
  auto const slot = request.slot;
  auto const own = files(slot);
  auto& kept = kept_[slot];
  auto const& machine = request.machine;
  auto qmp = os::listen_stream(own.qmp_socket());
  if (!qmp) return base::passing(qmp);
  auto console = os::listen_stream(own.console_socket());
  if (!console) return base::passing(console);
  if (!kept.tap) {
    auto netns = netns_of(slot);
    if (!netns) return base::passing(netns);
    auto tap = reopen_tap(os::FdRef(*netns));
    if (!tap) return base::passing(tap);
    kept.tap = std::move(*tap);
  }
  if (SPACE_FAULT("hostd.vmm.sockets_made"))
    return base::fail(base::Code::internal, "told to fail");

  static_assert(first_jail_fd + 4 == vmm::qemu_memory_fd &&
                first_jail_fd + 5 == vmm::qemu_changes_fd);
  std::vector<int> fds{opened.disk.get(), kept.tap.get(), qmp->get(), console->get()};
  std::vector<std::string> environment;
  if (opened.memory) {
    fds.push_back(opened.memory.get());
    environment.push_back(fmt::format("LD_PRELOAD={}", jail_preload));
  }
  if (opened.changes) {
    fds.push_back(opened.changes.get());
    environment.push_back(fmt::format("{}=1", vmm::qemu_changes_name));
  }
  vmm::QemuSpec const qemu{.kvm = machine.accelerator == Accelerator::kvm,
                           .memory = memory_of(machine.start),
                           .vcpus = machine.vcpus,
                           .memory_mib = machine.memory_mib,
                           .tb_size_mib = machine.tb_size_mib,
                           .disk_bytes_per_s_max = machine.disk_bytes_per_s_max,
                           .disk_ops_per_s_max = machine.disk_ops_per_s_max,
                           .tsc_khz = machine.tsc_khz,
                           .disk_fd = first_jail_fd,
                           .tap_fd = first_jail_fd + 1,
                           .qmp_fd = first_jail_fd + 2,
                           .console_fd = first_jail_fd + 3};
  bool const limits_memory_here = (groups_->features() & os::group_memory) != 0;
  JailSpec const jail{
      .program = vmm::qemu_binary,
      .argv = vmm::qemu_command(qemu),
      .environment = std::move(environment),
      .user = user_of(slot),
      .view = view_,
      .group_doors = groups_->clone_directory(group_of(slot)).empty()
                         ? groups_->doors(group_of(slot))
                         : std::vector<std::string>{},
      .clone_group = groups_->clone_directory(group_of(slot)),
      .fds = std::move(fds),
      .errors = errors,
      .filter = &filter_,
      .file_bytes_max = opened.disk_bytes,
      // Maps libraries and stacks beside what it uses: generous, yet an end.
      .address_bytes_max =
          limits_memory_here ? 0 : (machine.memory_mib + machine.tb_size_mib + 2048ULL) * mib,
      .tasks_max = vmm_tasks + machine.vcpus};
  auto jailed = start_jailed(jail);
  if (!jailed) return base::passing(jailed);
  kept.tap.reset();  // the machine's alone now: the slot has no second one
  kept.pid = jailed->pid;
  kept.pidfd = std::move(jailed->pidfd);
  kept.child = true;
  return {};
}

base::Result<void> Host::connect_ends(std::uint32_t slot, Answer& answer) {
  auto const own = files(slot);
  if (::access(own.log_fifo().c_str(), F_OK) == 0) return connect_firecracker(slot, answer);
  auto pidfd = kept_[slot].pidfd.duplicate();
  if (!pidfd) return base::passing(pidfd);
  auto qmp = os::connect_stream(own.qmp_socket());
  if (!qmp) return base::passing(qmp, "connect to the machine's control socket");
  auto console = os::connect_stream(own.console_socket());
  if (!console) return base::passing(console, "connect to the machine's console");
  answer.fds.push_back(std::move(*pidfd));
  answer.fds.push_back(std::move(*qmp));
  answer.fds.push_back(std::move(*console));
  describe(slot, answer.reply);
  return {};
}

Answer Host::attach_vmm(std::uint32_t slot) {
  if (state_of(slot) != SlotState::running)
    return answer_of(Status::absent, "no machine runs there");
  auto answer = answer_of(Status::ok);
  auto connected = connect_ends(slot, answer);
  if (connected) return answer;
  base::log::error("vmm_not_attached", {{"slot", slot}, {"why", connected.error().message()}});
  return answer_of(Status::failed, connected.error().message());
}

void Host::undo_start(std::uint32_t slot) {
  auto& kept = kept_[slot];
  // Two seconds for what dies at once; the start-up of a successor is the next try.
  for (int i = 0; i < 400; ++i) {
    auto killed = groups_->kill(group_of(slot));
    static_cast<void>(killed);  // remove() below is the judge
    reap();
    // A dead child is in no group any more, yet waits to be collected.
    bool const collected = !kept.child || !kept.pidfd || kept.wait_status;
    if (collected && groups_->members(group_of(slot)).empty() && groups_->remove(group_of(slot)))
      break;
    ::poll(nullptr, 0, 5);
  }
  auto const own = files(slot);
  own.remove_sockets();
  kept.pid = 0;
  kept.pidfd.reset();
  kept.wait_status.reset();
  kept.child = false;
  if (!own.record()) return;
  auto done = own.spent() ? base::Result<void>() : own.mark_spent({});
  if (done) done = own.remove_record();
  if (!done)
    base::log::error("slot_not_cleared", {{"slot", slot}, {"why", done.error().message()}});
}

std::optional<Answer> Host::begin_end(Request const& request) {
  auto const slot = request.slot;
  auto const own = files(slot);
  if (!own.record()) {
    auto const end = own.spent();
    if (!end) return answer_of(Status::absent, "no machine was there");
    auto answer = answer_of(Status::ok);
    describe(slot, answer.reply);
    return answer;
  }
  find_machine(slot);  // so that its end can be awaited
  auto killed = groups_->kill(group_of(slot));
  if (!killed)
    base::log::error("vmm_not_killed", {{"slot", slot}, {"why", killed.error().message()}});
  // Nobody is left for it to serve. Tried again by remove_slot().
  auto cleared = clear_gateway(slot);
  if (!cleared)
    base::log::error("gateway_not_cleared", {{"slot", slot}, {"why", cleared.error().message()}});
  if (SPACE_FAULT("hostd.vmm.killed")) return answer_of(Status::failed, "told to fail");
  return try_end(slot);
}

std::optional<Answer> Host::try_end(std::uint32_t slot) {
  reap();
  auto& kept = kept_[slot];
  bool const gone =
      kept.child ? kept.wait_status.has_value() : !kept.pidfd || os::has_ended(kept.pidfd);
  if (!gone) return std::nullopt;
  if (!groups_->members(group_of(slot)).empty()) {
    auto killed = groups_->kill(group_of(slot));
    static_cast<void>(killed);  // tried again until the caller's limit
    return std::nullopt;
  }
  Answer answer = answer_of(Status::ok);
  if (!finish_end(slot, answer)) return std::nullopt;
  return answer;
}

bool Host::finish_end(std::uint32_t slot, Answer& answer) {
  auto const own = files(slot);
  auto& kept = kept_[slot];
  SlotEnd const end{.wait_status = kept.wait_status.value_or(-1),
                    .out_of_memory = groups_->out_of_memory_kills(group_of(slot)) > 0};
  // Before the group goes: it is the only witness of its memory limit.
  auto step = own.spent() ? base::Result<void>() : own.mark_spent(end);
  if (step && SPACE_FAULT("hostd.vmm.end_noted")) return false;
  if (step) step = groups_->remove(group_of(slot));
  if (!step) {
    base::log::warn("vmm_not_cleared", {{"slot", slot}, {"why", step.error().message()}});
    return false;  // a member may be on its way out; tried again
  }
  if (SPACE_FAULT("hostd.vmm.group_removed")) return false;
  own.remove_sockets();
  step = own.remove_record();
  if (!step) return false;
  kept.pid = 0;
  kept.pidfd.reset();
  kept.wait_status.reset();
  kept.child = false;
  describe(slot, answer.reply);
  return true;
}

os::GroupLimits Host::limits_for(Machine const& machine, os::Fd const& disk) const {
  os::GroupLimits limits;
  // What the worker reserved for it: the limits of all machines together never exceed the host's
  // share.
  bool const kvm = machine.accelerator == Accelerator::kvm;
  limits.memory_bytes = (machine.memory_mib + vmm::overhead_mib(kvm, machine.tb_size_mib)) * mib;
  // A quarter of a core for the emulator's own loop, so that a busy guest does not starve its own
  // devices.
  limits.cpu_percent = machine.vcpus * 100 + 25;
  limits.pids = vmm_tasks + machine.vcpus;
  if (auto const device = os::device_behind(disk)) {
    limits.device_major = device->major;
    limits.device_minor = device->minor;
    limits.device_bytes_per_s = machine.disk_bytes_per_s_max;
    limits.device_ops_per_s = machine.disk_ops_per_s_max;
  }
  return limits;
}

base::Result<void> Host::refresh_view(bool kvm) {
  auto const kernel = config_.guest() + "/vmlinux";
  auto const initrd = config_.guest() + "/initrd.gz";
  auto const key = fmt::format("kvm {}\n", kvm) + key_of_file(vmm::qemu_binary) +
                   key_of_file(kernel) + key_of_file(initrd);
  if (view_ && key == view_key_) return {};
  for (auto const& file : {kernel, initrd}) {
    auto trusted = check_guest_file(file);
    if (!trusted) return base::passing(trusted);
  }
  auto parts = files_of_qemu();
  if (!parts) return base::passing(parts);
  parts->push_back({kernel, vmm::qemu_kernel});
  parts->push_back({initrd, vmm::qemu_initrd});
  auto view =
      make_jail_view({.files = std::move(*parts), .kvm = kvm, .preload = guest_memory_library()},
                     directory_ + "/jail");
  if (!view) return base::passing(view);
  if (filter_.empty() || filter_kvm_ != kvm) {
    auto filter = make_system_filter(kvm);
    if (!filter) return base::passing(filter);
    filter_ = std::move(*filter);
    filter_kvm_ = kvm;
  }
  view_ = std::move(*view);
  view_key_ = key;
  return {};
}

}  // namespace hostd
