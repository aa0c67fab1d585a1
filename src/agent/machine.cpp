#include "agent/machine.hpp"

#include "agent/connections.hpp"
#include "agent/small_files.hpp"
#include "agent/spawn.hpp"
#include "base/log.hpp"
#include "os/fd.hpp"

#include <linux/fs.h>
#include <linux/random.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace agent {
namespace {

/// A call takes this long anyway; a smaller difference is the transport's, and the clock is not set
/// back by it.
constexpr std::chrono::milliseconds clock_tolerance{50};

/// EXT4_IOC_RESIZE_FS, which no header for programs has.
constexpr unsigned long ext4_resize_fs = _IOW('f', 16, std::uint64_t);

void warn_errno(std::string_view event) {
  base::log::warn(event, {{"what", std::strerror(errno)}});
}

void warn_failed(std::string_view event, base::Error const& error) {
  base::log::warn(event, {{"what", error.message()}, {"where", error.detail()}});
}

void pause_ms(long ms) {
  timespec const time{0, ms * 1'000'000};
  ::nanosleep(&time, nullptr);
}

}  // namespace

void GuestMachine::step_clock(base::WallTime time) {
  auto const off = time - base::system_clock().wall_now();
  if (off < clock_tolerance && off > -clock_tolerance) return;
  auto const since = time.time_since_epoch();
  auto const seconds = std::chrono::floor<std::chrono::seconds>(since);
  auto const rest = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds);
  timespec const now{seconds.count(), rest.count()};
  if (::clock_settime(CLOCK_REALTIME, &now) != 0) warn_errno("clock_not_set");
}

void GuestMachine::credit_entropy(std::string_view bytes) {
  constexpr std::size_t bytes_max = 1024;

  struct {
    int entropy_count;
    int buf_size;
    char buf[bytes_max];
  } pool{};

  auto const size = std::min(bytes.size(), bytes_max);
  pool.entropy_count = static_cast<int>(size * 8);
  pool.buf_size = static_cast<int>(size);
  std::memcpy(pool.buf, bytes.data(), size);
  os::Fd const random(::open("/dev/urandom", O_RDWR | O_CLOEXEC));
  if (!random || ::ioctl(random.get(), RNDADDENTROPY, &pool) != 0)
    return warn_errno("entropy_not_credited");
  if (::ioctl(random.get(), RNDRESEEDCRNG) != 0) warn_errno("random_not_reseeded");
  ::explicit_bzero(pool.buf, sizeof pool.buf);
}

std::string hosts_text(std::string_view old, std::string_view hostname) {
  constexpr std::string_view mark = "# written by the sandbox's agent";
  std::string out;
  bool has_localhost = false;
  while (!old.empty()) {
    auto const line = old.substr(0, old.find('\n'));
    old.remove_prefix(std::min(old.size(), line.size() + 1));
    if (line.ends_with(mark)) continue;
    has_localhost |=
        line.starts_with("127.0.0.1") && line.find("localhost") != std::string_view::npos;
    out.append(line).push_back('\n');
  }
  std::string ours;
  if (!has_localhost) {
    ours += fmt::format("127.0.0.1\tlocalhost {0}\n::1\tlocalhost ip6-localhost ip6-loopback {0}\n",
                        mark);
  }
  if (!hostname.empty() && hostname != "localhost")
    ours += fmt::format("127.0.1.1\t{} {}\n", hostname, mark);
  return ours + out;
}

void GuestMachine::set_hostname(std::string const& hostname) {
  if (::sethostname(hostname.data(), hostname.size()) != 0) return warn_errno("hostname_not_set");
  auto const named = place_file("/etc", "hostname", hostname + "\n");
  if (!named) warn_failed("hostname_not_written", named.error());
  auto const old = read_small_file("/etc/hosts").value_or(std::string());
  auto const placed = place_file("/etc", "hosts", hosts_text(old, hostname));
  if (!placed) warn_failed("hosts_not_written", placed.error());
}

void GuestMachine::set_machine_id(std::string const& machine_id) {
  auto const placed = place_file("/etc", "machine-id", machine_id + "\n");
  if (!placed) warn_failed("machine_id_not_written", placed.error());
}

void GuestMachine::trust_authority(std::string const& pem) {
  for (char const* directory : {"/etc/ssl", "/etc/ssl/certs"}) {
    if (::mkdir(directory, 0755) != 0 && errno != EEXIST) warn_errno("directory_not_made");
  }
  auto placed = place_file("/etc/ssl/certs", "space-gateway.pem", pem);
  if (!placed) warn_failed("authority_not_written", placed.error());
  auto const old = read_small_file(trusted_bundle).value_or(std::string());
  placed = place_file("/etc/ssl/certs", "ca-certificates.crt", bundle_text(old, pem));
  if (!placed) warn_failed("authorities_not_written", placed.error());
}

std::optional<Ext4Size> ext4_size(std::string_view superblock) {
  constexpr std::size_t bytes_min = 1024;
  constexpr std::uint64_t magic = 0xef53;
  constexpr std::uint64_t incompat_64bit = 0x80;
  auto const number = [&](std::size_t at, std::size_t bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(superblock[at + i]);
    return value;
  };
  if (superblock.size() < bytes_min || number(56, 2) != magic) return std::nullopt;
  auto const shift = number(24, 4);
  if (shift > 6) return std::nullopt;
  auto blocks = number(4, 4);
  if ((number(96, 4) & incompat_64bit) != 0) blocks |= number(0x150, 4) << 32;
  return Ext4Size{blocks, 1024ULL << shift};
}

void GuestMachine::grow_root() {
  // Not to be kept waiting by whatever a root of the guest may have put there.
  os::Fd const disk(::open(root_disk, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!disk || ::fstat(disk.get(), &info) != 0 || !S_ISBLK(info.st_mode)) return;
  std::uint64_t bytes = 0;
  std::string superblock(1024, '\0');
  if (::ioctl(disk.get(), BLKGETSIZE64, &bytes) != 0) return warn_errno("disk_size_unknown");
  if (::pread(disk.get(), superblock.data(), superblock.size(), 1024) !=
      static_cast<ssize_t>(superblock.size()))
    return warn_errno("disk_not_read");
  auto const now = ext4_size(superblock);
  // Less than a megabyte more is rounding, and not worth a write.
  if (!now || bytes < now->blocks * now->block_bytes + (1U << 20)) return;
  std::uint64_t wanted = bytes / now->block_bytes;
  os::Fd const root(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root || ::ioctl(root.get(), ext4_resize_fs, &wanted) != 0) warn_errno("root_not_grown");
}

void GuestMachine::end_connections() {
  auto const ended = end_outward_connections();
  if (!ended) warn_failed("connections_not_ended", ended.error());
}

std::string bundle_text(std::string_view old, std::string_view pem) {
  constexpr std::string_view begin = "# the sandbox's gateway: begin\n";
  constexpr std::string_view end = "# the sandbox's gateway: end\n";
  std::string out(old);
  for (auto from = out.find(begin); from != std::string::npos; from = out.find(begin)) {
    auto const to = out.find(end, from);
    out.erase(from, to == std::string::npos ? std::string::npos : to + end.size() - from);
  }
  if (!out.empty() && !out.ends_with('\n')) out.push_back('\n');
  out.append(begin).append(pem);
  if (!out.ends_with('\n')) out.push_back('\n');
  return out.append(end);
}

Protection protect_agent() {
  Protection out;
  out.oom_score = write_kernel_file("/proc/self/oom_score_adj", "-1000").has_value();
  sched_param const priority{agent_priority};
  out.real_time = ::sched_setscheduler(0, SCHED_RR, &priority) == 0;
  if (!out.oom_score || !out.real_time) base::log::warn("agent_not_protected");
  return out;
}

void power_off() {
  ::kill(-1, SIGTERM);
  // Two seconds for those who want to say goodbye; PID 1 gets every orphan, so "no child" is
  // "nobody left".
  for (int turn = 0; turn < 200; ++turn) {
    auto const gone = ::waitpid(-1, nullptr, WNOHANG);
    if (gone < 0 && errno == ECHILD) break;
    if (gone == 0) pause_ms(10);
  }
  ::kill(-1, SIGKILL);
  ::sync();
  ::mount(nullptr, "/", nullptr, MS_REMOUNT | MS_RDONLY, nullptr);
  ::reboot(RB_POWER_OFF);
  // No power to switch off: stop in a way that every machine monitor notices.
  ::reboot(RB_AUTOBOOT);
  for (;;)
    ::pause();
}

}  // namespace agent
