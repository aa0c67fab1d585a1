// The actions of Host that start and find a Firecracker. docs/decisions/0010-firecracker.md.

#include "base/fault.hpp"
#include "base/log.hpp"
#include "hostd/answers.hpp"
#include "hostd/file_mount.hpp"
#include "hostd/host.hpp"
#include "hostd/jail.hpp"
#include "hostd/jail_view.hpp"
#include "hostd/slot_network.hpp"
#include "hostd/system_filter.hpp"
#include "os/netns.hpp"
#include "os/packet_socket.hpp"
#include "os/process.hpp"
#include "vmm/firecracker_command.hpp"

#include <linux/if_tun.h>
#include <linux/openat2.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace hostd {
namespace {

namespace fc = vmm::firecracker;

/// Beside its vCPUs: the API, the devices, and room.
constexpr std::uint32_t tasks_beside = 16;
/// From its start to its socket: 5 ms on an idle host.
constexpr int socket_patience_ms = 5000;

/// What every machine runs in must not be exchangeable by anybody but root.
bool is_trusted_program(std::string const& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == 0 &&
         (info.st_mode & 022) == 0 && (info.st_mode & 0111) != 0;
}

/// A pipe with a name, for `user`. Both ends open: whoever comes and goes, nobody is told of a
/// broken pipe.
base::Result<os::Fd> make_fifo(std::string const& path, uid_t user) {
  if (::mkfifo(path.c_str(), 0600) != 0) return base::fail_errno("make a pipe of a machine", path);
  if (::chown(path.c_str(), user, user) != 0)
    return base::fail_errno("give a pipe to a machine", path);
  os::Fd both(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!both) return base::fail_errno("open a pipe of a machine", path);
  return both;
}

base::Result<os::Fd> open_fifo(std::string const& path) {
  os::Fd end(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!end) return base::fail_errno("open a pipe of a machine", path);
  return end;
}

/// A file as the process sees it. No link of its making is followed out of its root.
base::Result<os::Fd> open_inside(pid_t pid, char const* path, int flags, mode_t type) {
  os::Fd const root(
      ::open(fmt::format("/proc/{}/root", pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return base::fail_errno("look into a jail");
  open_how how{};
  // Never waits, also when it is a pipe by now.
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC | O_NOFOLLOW);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  os::Fd found(static_cast<int>(::syscall(SYS_openat2, root.get(), path, &how, sizeof how)));
  struct stat info{};
  if (!found || ::fstat(found.get(), &info) != 0) return base::fail_errno("find a file of a jail");
  if ((info.st_mode & S_IFMT) != type)
    return base::fail(base::Code::internal, "a file of a jail is of another kind", path);
  return found;
}

/// Lets `user`, and nobody else without rights, take the tap by its name.
base::Result<void> give_tap(os::FdRef netns, uid_t user) {
  auto tap = reopen_tap(netns);
  if (!tap) return base::passing(tap);
  if (::ioctl(tap->get(), TUNSETOWNER, user) != 0) return base::fail_errno("give the tap away");
  return {};
}

}  // namespace

std::string Host::firecracker_program() const {
  for (auto const& path : {config_.guest() + "/firecracker",
                           std::string("/usr/local/bin/firecracker"),
                           std::string("/usr/bin/firecracker")}) {
    if (is_trusted_program(path)) return path;
  }
  return {};
}

base::Result<void> Host::refresh_firecracker_view() {
  auto const program = firecracker_program();
  auto const kernel = config_.guest() + "/vmlinux";
  auto const initrd = config_.guest() + "/initrd.gz";
  auto const key = key_of_file(program) + key_of_file(kernel) + key_of_file(initrd);
  if (firecracker_view_ && key == firecracker_view_key_) return {};
  for (auto const& file : {kernel, initrd}) {
    auto trusted = check_guest_file(file);
    if (!trusted) return base::passing(trusted);
  }
  // A release is static and needs itself alone; the linker knows of others.
  auto parts = files_of_program(program);
  std::vector<JailFile> files;
  if (parts) {
    for (auto& part : *parts)
      if (part.source != program) files.push_back(std::move(part));
  }
  files.push_back({program, fc::binary});
  files.push_back({kernel, fc::kernel});
  files.push_back({initrd, fc::initrd});
  auto view = make_jail_view({.files = std::move(files), .kvm = true, .tun = true, .machine = true},
                             directory_ + "/jail");
  if (!view) return base::passing(view);
  auto filter = make_firecracker_filter();
  if (!filter) return base::passing(filter);
  firecracker_filter_ = std::move(*filter);
  firecracker_view_ = std::move(*view);
  firecracker_view_key_ = key;
  return {};
}

base::Result<void> Host::launch_firecracker(Request const& request, Files const& opened) {
  auto const slot = request.slot;
  auto const own = files(slot);
  auto const user = user_of(slot);
  auto const& machine = request.machine;
  auto& kept = kept_[slot];
  auto console = make_fifo(own.console_fifo(), user);
  if (!console) return base::passing(console);
  auto log = make_fifo(own.log_fifo(), user);
  if (!log) return base::passing(log);
  auto netns = netns_of(slot);
  if (!netns) return base::passing(netns);
  kept.tap.reset();  // one holder at a time
  auto given = give_tap(os::FdRef(*netns), user);
  if (!given) return base::passing(given);
  if (SPACE_FAULT("hostd.firecracker.files_made"))
    return base::fail(base::Code::internal, "told to fail");

  std::vector<os::Fd> mounts;
  std::vector<JailMount> targets;
  std::vector<int> fds;
  auto const add = [&](base::Result<os::Fd> mount, char const* target) -> base::Result<void> {
    if (!mount) return base::passing(mount, target);
    targets.push_back({.fd = first_jail_fd + static_cast<int>(fds.size()), .target = target});
    fds.push_back(mount->get());
    mounts.push_back(std::move(*mount));
    return {};
  };
  auto step = add(mount_for_user(opened.disk, user, true), fc::disk);
  bool const recorded = machine.start == MachineStart::record;
  if (step && opened.memory) step = add(mount_for_user(opened.memory, user, recorded), fc::memory);
  targets.push_back({.fd = -1, .target = fc::state});
  if (step) step = add(mount_of_path(own.log_fifo()), fc::log);
  if (!step) return step;

  auto const memory_bytes = std::uint64_t{machine.memory_mib} << 20;
  bool const limits_memory_here = (groups_->features() & os::group_memory) != 0;
  auto const group = fmt::format("slot-{}", slot);
  JailSpec const jail{
      .program = fc::binary,
      .argv = fc::command(),
      .user = user,
      .view = firecracker_view_,
      .group_doors = groups_->clone_directory(group).empty() ? groups_->doors(group)
                                                             : std::vector<std::string>{},
      .clone_group = groups_->clone_directory(group),
      .fds = std::move(fds),
      .errors = log->get(),
      .output = console->get(),
      .machine_mount = fmt::format("size=8m,mode=700,uid={0},gid={0}", user),
      .mounts = std::move(targets),
      .filter = &firecracker_filter_,
      .network = *netns,
      .file_bytes_max = recorded ? std::max(opened.disk_bytes, memory_bytes) : opened.disk_bytes,
      .address_bytes_max = limits_memory_here ? 0 : memory_bytes + (1ULL << 30),
      .tasks_max = tasks_beside + machine.vcpus};
  auto jailed = start_jailed(jail);
  if (!jailed) return base::passing(jailed);
  kept.pid = jailed->pid;
  kept.pidfd = std::move(jailed->pidfd);
  kept.child = true;
  return {};
}

base::Result<void> Host::connect_firecracker(std::uint32_t slot, Answer& answer) {
  auto const own = files(slot);
  auto const& kept = kept_[slot];
  auto pidfd = kept.pidfd.duplicate();
  if (!pidfd) return base::passing(pidfd);
  base::Result<os::Fd> api;
  for (int waited = 0;; ++waited) {
    auto found = open_inside(kept.pid, fc::api_socket, O_PATH, S_IFSOCK);
    if (found) {
      api = os::connect_stream(fmt::format("/proc/self/fd/{}", found->get()));
    } else {
      api = base::passing(found);
    }
    // It makes its socket after its start, and listens to it a moment later.
    if (api || waited >= socket_patience_ms || os::has_ended(kept.pidfd)) break;
    ::poll(nullptr, 0, 1);
  }
  if (!api) return base::passing(api, "connect to the machine's control socket");
  auto const peer = os::peer_user(*api);
  if (!peer || *peer != user_of(slot))
    return base::fail(base::Code::internal, "the machine's control socket is somebody else's");
  auto console = open_fifo(own.console_fifo());
  if (!console) return base::passing(console);
  auto log = open_fifo(own.log_fifo());
  if (!log) return base::passing(log);
  auto exchange = open_inside(kept.pid, fc::state, O_RDWR | O_NONBLOCK, S_IFREG);
  if (!exchange) return base::passing(exchange);
  answer.fds.push_back(std::move(*pidfd));
  answer.fds.push_back(std::move(*api));
  answer.fds.push_back(std::move(*console));
  answer.fds.push_back(std::move(*log));
  answer.fds.push_back(std::move(*exchange));
  describe(slot, answer.reply);
  answer.reply.engine = Engine::firecracker;
  return {};
}

}  // namespace hostd
