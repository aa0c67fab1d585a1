// Runs inside a jail and says what it finds there. Static and free of libraries, so that the jail
// holds only it.
//
//   call NAME       makes one system call; prints "made" or the error's name
//   view            every path of the file system with type and mode
//   who             user, groups, capabilities, process id, rlimits, links of the network
//   write PATH…     tries to make or to change each
//   alloc MIB       touches so much memory, prints "touched"
//   fork            forks until refused, prints how often; then all wait
//   spin MS         burns CPU for so long by the clock; prints the CPU milliseconds it got
//   disk FD BYTES   writes directly to a descriptor, prints the milliseconds that took
//   grow FD BYTES   writes one byte at that offset

#include <linux/capability.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace {

long named_call(char const* name) {
  auto const is = [&](char const* other) { return std::strcmp(name, other) == 0; };
  if (is("ptrace")) return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  if (is("mount")) return ::mount("none", "/dev", "tmpfs", 0, nullptr);
  if (is("umount2")) return ::umount2("/dev", MNT_DETACH);
  if (is("unshare")) return ::unshare(CLONE_NEWUSER);
  if (is("setns")) return ::setns(0, 0);
  if (is("bpf")) return ::syscall(SYS_bpf, 0, nullptr, 0);
  if (is("keyctl")) return ::syscall(SYS_keyctl, 0, -1, 0, 0, 0);
  if (is("perf_event_open")) return ::syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0);
  if (is("io_uring_setup")) return ::syscall(SYS_io_uring_setup, 4, nullptr);
  if (is("io_uring_enter")) return ::syscall(SYS_io_uring_enter, 0, 0, 0, 0, nullptr, 0);
  if (is("userfaultfd")) return ::syscall(SYS_userfaultfd, 0);
  if (is("memfd_create")) return ::syscall(SYS_memfd_create, "x", 0);
  if (is("socket")) return ::socket(AF_INET, SOCK_STREAM, 0);
  if (is("socket_unix")) return ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (is("socket_vsock")) return ::socket(AF_VSOCK, SOCK_STREAM, 0);
  if (is("connect")) return ::connect(0, nullptr, 0);
  if (is("execve")) return ::execl("/probe", "/probe", nullptr);
  if (is("fork")) return ::fork();
  if (is("vfork_clone")) return ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (is("clone3")) return ::syscall(SYS_clone3, nullptr, 0);
  if (is("setuid")) return ::syscall(SYS_setresuid, 0, 0, 0);
  if (is("open_by_handle_at")) return ::syscall(SYS_open_by_handle_at, 0, nullptr, 0);
  if (is("process_vm_readv")) return ::syscall(SYS_process_vm_readv, 1, nullptr, 0, nullptr, 0, 0);
  if (is("ioctl_tunsetiff")) return ::ioctl(0, TUNSETIFF, nullptr);
  if (is("ioctl_tiocsti")) return ::ioctl(0, TIOCSTI, "x");
  if (is("setrlimit")) {
    rlimit const limit{.rlim_cur = 1, .rlim_max = 1};
    return ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (is("chmod")) return ::chmod("/probe", 0777);
  if (is("kill")) return ::kill(-1, SIGTERM);
  if (is("tgkill_other")) return ::syscall(SYS_tgkill, 2, 2, 0);
  if (is("getpid")) return ::getpid();
  std::printf("unknown call\n");
  std::exit(2);
}

void view(char const* path) {
  DIR* const directory = ::opendir(path);
  if (directory == nullptr) return;
  while (auto const* entry = ::readdir(directory)) {
    if (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0) continue;
    char full[512];
    std::snprintf(
        full, sizeof full, "%s/%s", std::strcmp(path, "/") == 0 ? "" : path, entry->d_name);
    struct stat info{};
    ::lstat(full, &info);
    char const type = S_ISDIR(info.st_mode)   ? 'd'
                      : S_ISCHR(info.st_mode) ? 'c'
                      : S_ISREG(info.st_mode) ? 'f'
                                              : '?';
    std::printf("%c %o %s\n", type, info.st_mode & 07777, full);
    if (type == 'd') view(full);
  }
  ::closedir(directory);
}

void who() {
  gid_t groups[64];
  std::printf("uid %u gid %u groups %d pid %d ppid %d sid %d\n",
              ::getuid(),
              ::getgid(),
              ::getgroups(64, groups),
              ::getpid(),
              ::getppid(),
              ::getsid(0));
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2] = {};
  ::syscall(SYS_capget, &header, data);
  std::printf("caps %x %x %x %x\n",
              data[0].effective,
              data[1].effective,
              data[0].permitted,
              data[0].inheritable);
  rlimit core{};
  ::getrlimit(RLIMIT_CORE, &core);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::printf("core %lu files %lu\n", core.rlim_max, files.rlim_max);
  char host[65] = "";
  ::gethostname(host, sizeof host);
  for (unsigned i = 1; i < 64; ++i) {
    char name[IF_NAMESIZE];
    if (::if_indextoname(i, name) != nullptr) std::printf("link %s\n", name);
  }
  for (int fd = 0; fd < 256; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) std::printf("fd %d\n", fd);
  }
}

void try_write(char const* path) {
  int const fd = ::open(path, O_WRONLY | O_CREAT, 0666);
  std::printf("%s %s\n", path, fd >= 0 ? "written" : strerrorname_np(errno));
}

void fork_all() {
  int made = 0;
  while (::fork() > 0)
    ++made;
  if (errno == 0 || made == 0) {
    // a child: waits like its parent
  }
  if (::getpid() == 1) std::printf("forked %d\n", made);
  std::fflush(stdout);
  for (;;)
    ::pause();
}

long milliseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void spin(long duration) {
  auto const end = milliseconds(CLOCK_MONOTONIC) + duration;
  while (milliseconds(CLOCK_MONOTONIC) < end) {
  }
  std::printf("cpu %ld\n", milliseconds(CLOCK_PROCESS_CPUTIME_ID));
}

void write_disk(int fd, long bytes) {
  constexpr std::size_t part = 1 << 20;
  void* const memory =
      ::mmap(nullptr, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto const start = milliseconds(CLOCK_MONOTONIC);
  for (long done = 0; done < bytes; done += part) {
    if (::pwrite(fd, memory, part, done) < 0) std::printf("error %s\n", strerrorname_np(errno));
  }
  std::printf("took %ld\n", milliseconds(CLOCK_MONOTONIC) - start);
}

}  // namespace

int main(int argc, char** argv) {
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
  auto const is = [&](char const* name) { return argc > 1 && std::strcmp(argv[1], name) == 0; };
  if (is("call") && argc > 2) {
    auto const result = named_call(argv[2]);
    std::printf("%s\n", result >= 0 ? "made" : strerrorname_np(errno));
  } else if (is("view")) {
    view("/");
  } else if (is("who")) {
    who();
  } else if (is("write")) {
    for (int i = 2; i < argc; ++i)
      try_write(argv[i]);
  } else if (is("alloc") && argc > 2) {
    auto const bytes = std::strtoul(argv[2], nullptr, 10) << 20;
    auto* const memory = static_cast<char*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (std::size_t at = 0; at < bytes; at += 4096)
      memory[at] = 1;
    std::printf("touched\n");
  } else if (is("fork")) {
    fork_all();
  } else if (is("spin") && argc > 2) {
    spin(std::atol(argv[2]));
  } else if (is("disk") && argc > 3) {
    write_disk(std::atoi(argv[2]), std::atol(argv[3]));
  } else if (is("grow") && argc > 3) {
    ::signal(SIGXFSZ, SIG_IGN);
    std::printf("%s\n",
                ::pwrite(std::atoi(argv[2]), "x", 1, std::atol(argv[3])) == 1
                    ? "grown"
                    : strerrorname_np(errno));
  } else if (is("wait")) {
    std::printf("waiting\n");
    for (;;)
      ::pause();
  } else {
    return 2;
  }
  return 0;
}
