#include "agent/machine.hpp"
#include "agent/small_files.hpp"
#include "base/log.hpp"
#include "os/fd.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <net/route.h>
#if defined(__x86_64__)
#include <sys/io.h>
#endif
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <unistd.h>

/// What PID 1 does before it serves. In the emulator every system call and every page shows in the
/// time to the first answer, so nothing here is done twice or "to be sure".
namespace agent {
namespace {

constexpr char const* new_root = "/disk";
constexpr char const* guest_address = "192.0.2.2";
constexpr char const* guest_netmask = "255.255.255.252";
constexpr char const* gateway_address = "192.0.2.1";

void left_out(std::string_view what) {
  base::log::warn("boot_step_failed", {{"step", what}, {"what", std::strerror(errno)}});
}

void mount_kernel(char const* type,
                  char const* where,
                  unsigned long flags,
                  char const* options = nullptr) {
  ::mkdir(where, 0755);
  if (::mount(type, where, type, flags, options) != 0 && errno != EBUSY) left_out(where);
}

/// The kernel starts us without standard descriptors when the initramfs holds no /dev/console.
void open_console() {
  int console = ::open("/dev/console", O_RDWR | O_NOCTTY);
  if (console < 0) console = ::open("/dev/null", O_RDWR);
  if (console < 0) return;
  for (int fd = 0; fd < 3; ++fd)
    ::dup2(console, fd);
  if (console > 2) ::close(console);
}

void insert_modules() {
  auto const order = read_small_file("/modules/order");
  if (!order) return left_out("read the list of modules");
  std::string_view left = *order;
  while (!left.empty()) {
    std::string const name(left.substr(0, left.find('\n')));
    left.remove_prefix(std::min(left.size(), name.size() + 1));
    if (name.empty()) continue;
    auto const path = "/modules/" + name;
    os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    // EEXIST: built into this kernel.
    bool const inserted = file && ::syscall(SYS_finit_module, file.get(), "", 0) == 0;
    if (!inserted && errno != EEXIST) left_out("insert " + name);
    ::unlink(path.c_str());  // The initramfs is memory.
  }
}

base::Result<void> mount_disk() {
  // The driver has asked the device by the time its module is in; the node may still be a moment
  // away.
  constexpr int turns_max = 2000;
  for (int turn = 0; ::access(root_disk, F_OK) != 0; ++turn) {
    if (turn == turns_max) return base::fail(base::Code::unavailable, "there is no disk /dev/vda");
    timespec const pause{0, 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
  ::mkdir(new_root, 0755);
  // Reads write nothing (no access times), and what mke2fs left for later stays so: both would only
  // grow the image's private part.
  if (::mount(root_disk, new_root, "ext4", MS_NOATIME, "noinit_itable") != 0 &&
      ::mount(root_disk, new_root, "ext4", MS_NOATIME, nullptr) != 0) {
    return base::fail_errno("mount the root file system");
  }
  return {};
}

/// A real directory at `path`; whatever else bears the name is moved aside, for the machine cannot
/// do without.
void ensure_directory(std::string const& path, mode_t mode) {
  struct stat found{};
  if (::lstat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return;
    ::rename(path.c_str(), (path + ".replaced").c_str());
  }
  if (::mkdir(path.c_str(), mode) != 0) return left_out(path);
  ::chmod(path.c_str(), mode);
}

/// pivot_root refuses to leave an initramfs, so the disk is moved over the root and entered.
base::Result<void> enter_disk() {
  for (std::string const name : {"/dev", "/proc", "/sys"}) {
    auto const target = new_root + name;
    ensure_directory(target, 0755);
    if (::mount(name.c_str(), target.c_str(), nullptr, MS_MOVE, nullptr) != 0)
      left_out("move " + name);
  }
  if (::chdir(new_root) != 0 || ::mount(".", "/", nullptr, MS_MOVE, nullptr) != 0 ||
      ::chroot(".") != 0 || ::chdir("/") != 0) {
    return base::fail_errno("enter the root file system");
  }
  return {};
}

void make_link(char const* target, char const* path) {
  if (::symlink(target, path) != 0 && errno != EEXIST) left_out(path);
}

void furnish() {
  // The group "tty" is 5 everywhere.
  mount_kernel("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "mode=620,gid=5,ptmxmode=666");
  mount_kernel("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
  ensure_directory("/run", 0755);
  mount_kernel("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=755,size=20%");
  ::mkdir("/run/lock", 01777);
  ::chmod("/run/lock", 01777);
  mount_kernel("cgroup2", "/sys/fs/cgroup", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  // On the disk, not in memory: people put large files there.
  ensure_directory("/tmp", 01777);
  make_link("/proc/self/fd", "/dev/fd");
  make_link("/proc/self/fd/0", "/dev/stdin");
  make_link("/proc/self/fd/1", "/dev/stdout");
  make_link("/proc/self/fd/2", "/dev/stderr");
}

ifreq request_for(std::string_view interface) {
  ifreq out{};
  std::memcpy(out.ifr_name, interface.data(), std::min(interface.size(), sizeof out.ifr_name - 1));
  return out;
}

/// SAFETY: the kernel's own prototype of these calls is a sockaddr that is read as a sockaddr_in.
void put_address(sockaddr& into, char const* address) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  ::inet_pton(AF_INET, address, &in.sin_addr);
  static_assert(sizeof into == sizeof in);
  std::memcpy(&into, &in, sizeof in);
}

void bring_up(os::FdRef socket,
              std::string_view interface,
              char const* address,
              char const* netmask) {
  auto request = request_for(interface);
  put_address(request.ifr_addr, address);
  if (::ioctl(socket.get(), SIOCSIFADDR, &request) != 0) return left_out("set an address");
  request = request_for(interface);
  put_address(request.ifr_netmask, netmask);
  if (::ioctl(socket.get(), SIOCSIFNETMASK, &request) != 0) left_out("set a netmask");
  request = request_for(interface);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) left_out("start an interface");
}

void configure_network() {
  // The slot passes no IPv6, so the guest does not announce any.
  auto const off = write_kernel_file("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
  static_cast<void>(off);  // a kernel without IPv6 has no such file
  auto const ping = write_kernel_file("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
  if (!ping) left_out("allow ping");
  os::Fd const socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return left_out("open a socket");
  bring_up(socket, "lo", "127.0.0.1", "255.0.0.0");
  bring_up(socket, "eth0", guest_address, guest_netmask);
  rtentry route{};
  put_address(route.rt_dst, "0.0.0.0");
  put_address(route.rt_genmask, "0.0.0.0");
  put_address(route.rt_gateway, gateway_address);
  route.rt_flags = RTF_UP | RTF_GATEWAY;
  if (::ioctl(socket.get(), SIOCADDRT, &route) != 0) left_out("set the route");
}

void write_names() {
  auto const resolver =
      place_file("/etc", "resolv.conf", fmt::format("nameserver {}\n", gateway_address));
  if (!resolver) left_out("write /etc/resolv.conf");
  auto const old = read_small_file("/etc/hosts").value_or(std::string());
  auto const hosts = place_file("/etc", "hosts", hosts_text(old, {}));
  if (!hosts) left_out("write /etc/hosts");
}

void set_limits() {
  ::umask(022);
  // As ordinary systems have it; commands inherit it.
  rlimit const files{65'536, 1'048'576};
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) left_out("raise the number of descriptors");
  // ctrl-alt-del comes as SIGINT and ends the machine in order.
  ::reboot(RB_DISABLE_CAD);
}

/// A guest without room reads the pages of its programs again and again, for minutes, before its
/// kernel calls that out of memory. With this it keeps what was used within the last second, and
/// kills at once when that does not fit (Documentation/admin-guide/mm/multigen_lru.rst).
void end_thrashing() {
  // A kernel that lacks them only takes longer.
  static_cast<void>(write_kernel_file("/sys/kernel/mm/lru_gen/enabled", "y").has_value() &&
                    write_kernel_file("/sys/kernel/mm/lru_gen/min_ttl_ms", "1000").has_value());
}

/// The PC's old interval timer runs from reset on, and a kernel that uses another one (before Linux
/// 6.12) only masks its interrupt: the emulator wakes for each of its 36 edges a second, for
/// nothing. One-shot mode with a count of nothing stops it, as newer kernels do
/// (arch/x86/kernel/i8253.c, pit_timer_init).
void stop_unused_timer() {
#if defined(__x86_64__)
  constexpr std::uint16_t channel_0 = 0x40;
  constexpr std::uint16_t mode = 0x43;
  auto const used = read_small_file("/sys/devices/system/clockevents/clockevent0/current_device");
  if (!used || !used->starts_with("lapic")) return;
  if (::ioperm(channel_0, 4, 1) != 0) return;  // it only costs
  ::outb(0x30, mode);
  ::outb(0, channel_0);
  ::outb(0, channel_0);
  ::ioperm(channel_0, 4, 0);
#endif
}

/// What an idle kernel does by the clock costs each idle machine's emulator, however many there
/// are: it looks twice a second whether huge pages could be put together, and each second adds up
/// counters that are near enough without.
void be_quiet() {
  // A kernel that lacks them only costs more.
  static_cast<void>(write_kernel_file("/proc/sys/vm/compaction_proactiveness", "0"));
  static_cast<void>(write_kernel_file("/proc/sys/vm/stat_interval", "10"));
  stop_unused_timer();
}

}  // namespace

base::Result<void> boot_machine() {
  mount_kernel("devtmpfs", "/dev", MS_NOSUID);
  open_console();
  mount_kernel("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  mount_kernel("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  insert_modules();
  auto mounted = mount_disk();
  if (!mounted) return base::passing(mounted);
  auto entered = enter_disk();
  if (!entered) return base::passing(entered);
  GuestMachine().grow_root();
  furnish();
  set_limits();
  end_thrashing();
  be_quiet();
  configure_network();
  write_names();
  return {};
}

}  // namespace agent
