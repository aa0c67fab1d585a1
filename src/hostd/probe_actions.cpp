#include "hostd/probe_actions.hpp"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/perf_event.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr int patience_ms = 1000;

int result_of(long returned) {
  return returned < 0 ? errno : 0;
}

int closing(int fd) {
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

int read_file(std::string const& path) {
  int const fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno;
  char byte = 0;
  int const result = result_of(::read(fd, &byte, 1));
  ::close(fd);
  return result;
}

int create_file(std::string const& path) {
  int const fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  ::close(fd);
  ::unlink(path.c_str());
  return 0;
}

int append_to_file(std::string const& path) {
  return closing(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
}

int see_processes(std::string const&) {
  std::unique_ptr<DIR, int (*)(DIR*)> const directory(::opendir("/proc"), &::closedir);
  if (!directory) return errno;
  int others = 0;
  while (auto const* entry = ::readdir(directory.get())) {
    int const pid = std::atoi(static_cast<char const*>(entry->d_name));
    if (pid > 0 && pid != ::getpid()) ++others;
  }
  return others > 0 ? 0 : ENOENT;
}

/// `path` with '@' in front is a name without a file.
int connect_unix(std::string const& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(static_cast<char*>(address.sun_path), path.data(), path.size());
  socklen_t size = sizeof address;
  if (path.starts_with('@')) {
    address.sun_path[0] = '\0';
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  int const fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  // SAFETY: how connect() wants it. A full queue is a door that opens.
  int result = result_of(::connect(fd, reinterpret_cast<sockaddr*>(&address), size));
  if (result == EAGAIN) result = 0;
  ::close(fd);
  return result;
}

int connect_stream(std::string const& path) {
  return connect_unix(path, SOCK_STREAM);
}

int connect_packets(std::string const& path) {
  return connect_unix(path, SOCK_SEQPACKET);
}

int connect_tcp(std::string const& where) {
  auto const colon = where.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(where.c_str() + colon + 1)));
  if (::inet_pton(AF_INET, where.substr(0, colon).c_str(), &address.sin_addr) != 1) return EINVAL;
  int const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  // SAFETY: how connect() wants it.
  int result = result_of(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address));
  if (result == EINPROGRESS) {
    pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof result;
    result = ETIMEDOUT;
    if (::poll(&wait, 1, patience_ms) == 1) ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &result, &size);
  }
  ::close(fd);
  return result;
}

int trace(std::string const& process) {
  pid_t const pid = std::atoi(process.c_str());
  int const result = result_of(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr));
  if (result == 0) {
    ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr);
    ::waitpid(pid, nullptr, __WALL);
    ::ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
  }
  return result;
}

int signal_process(std::string const& process) {
  return result_of(::kill(std::atoi(process.c_str()), 0));
}

int hold_process(std::string const& process) {
  return closing(static_cast<int>(::syscall(SYS_pidfd_open, std::atoi(process.c_str()), 0)));
}

struct Place {
  pid_t pid = 0;
  unsigned long address = 0;
};

Place place_of(std::string const& text) {
  auto const colon = text.find(':');
  if (colon == std::string::npos) return {};
  return {std::atoi(text.c_str()), std::strtoul(text.c_str() + colon + 1, nullptr, 10)};
}

int read_memory(std::string const& where) {
  auto const [pid, address] = place_of(where);
  char byte = 0;
  iovec const to{&byte, 1};
  // SAFETY: an address in another process; the kernel checks it there.
  iovec const from{reinterpret_cast<void*>(address), 1};
  return result_of(::process_vm_readv(pid, &to, 1, &from, 1, 0));
}

int read_memory_file(std::string const& where) {
  auto const [pid, address] = place_of(where);
  int const fd = ::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  char byte = 0;
  int const result = result_of(::pread(fd, &byte, 1, static_cast<off_t>(address)));
  ::close(fd);
  return result;
}

int attach_shared_memory(std::string const& id) {
  void* const at = ::shmat(std::atoi(id.c_str()), nullptr, SHM_RDONLY);
  // SAFETY: the documented sign of failure.
  if (at == reinterpret_cast<void*>(-1)) return errno;
  ::shmdt(at);
  return 0;
}

int mount_something(std::string const&) {
  // In a mount namespace of its own when it may have one, so that nothing stays.
  if (::unshare(CLONE_NEWNS) != 0) return errno;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
  return result_of(::mount("probe", "/", "tmpfs", 0, nullptr));
}

int enter_namespace(std::string const& path) {
  int const fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  int const result = result_of(::setns(fd, 0));
  ::close(fd);
  return result;
}

int make_namespace(std::string const&) {
  return result_of(::unshare(CLONE_NEWNET));
}

int make_device(std::string const& path) {
  int const result = result_of(::mknod(path.c_str(), S_IFCHR | 0600, 0x0103));
  if (result == 0) ::unlink(path.c_str());
  return result;
}

int open_by_handle(std::string const& path) {
  alignas(file_handle) std::array<char, sizeof(file_handle) + MAX_HANDLE_SZ> bytes{};
  // SAFETY: the buffer has room for the largest handle.
  auto* const handle = reinterpret_cast<file_handle*>(bytes.data());
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount_id = 0;
  if (::name_to_handle_at(AT_FDCWD, path.c_str(), handle, &mount_id, 0) != 0) return errno;
  int const root = ::open("/", O_RDONLY | O_CLOEXEC);
  int const result =
      closing(::open_by_handle_at(root >= 0 ? root : AT_FDCWD, handle, O_RDONLY | O_CLOEXEC));
  if (root >= 0) ::close(root);
  return result;
}

int become_root(std::string const&) {
  return result_of(::syscall(SYS_setresuid, 0, 0, 0));
}

int load_bpf(std::string const&) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = 4;
  attributes.value_size = 4;
  attributes.max_entries = 1;
  return closing(
      static_cast<int>(::syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes)));
}

int watch_performance(std::string const&) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_CPU_CLOCK;
  return closing(static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0)));
}

int open_socket(int family, int type, int protocol) {
  return closing(::socket(family, type | SOCK_CLOEXEC, protocol));
}

int raw_socket(std::string const&) {
  return open_socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
}

int packet_socket(std::string const&) {
  return open_socket(AF_PACKET, SOCK_RAW, 0);
}

int netlink_socket(std::string const&) {
  return open_socket(AF_NETLINK, SOCK_RAW, 0);
}

int run_program(std::string const& path) {
  char name[] = "probe";
  char* const argv[] = {name, nullptr};
  char* const environment[] = {nullptr};
  // Where it works this process is that program then, and ends with its exit code, 0.
  ::execve(path.c_str(), argv, environment);
  return errno;
}

int keep_descriptor(std::string const& number) {
  return result_of(::fcntl(std::atoi(number.c_str()), F_GETFD));
}

int keep_variable(std::string const& name) {
  return ::getenv(name.c_str()) != nullptr ? 0 : ENOENT;  // NOLINT(concurrency-mt-unsafe)
}

int see_link(std::string const& name) {
  return ::if_nametoindex(name.c_str()) != 0 ? 0 : errno;
}

int listen_for_others(std::string const&) {
  int const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int const result = result_of(::listen(fd, 1));
  ::close(fd);
  return result;
}

struct Action {
  std::string_view name;
  int (*run)(std::string const&);
};

constexpr Action actions[] = {
    {"read", read_file},
    {"create", create_file},
    {"append", append_to_file},
    {"processes", see_processes},
    {"stream", connect_stream},
    {"packets", connect_packets},
    {"tcp", connect_tcp},
    {"ptrace", trace},
    {"signal", signal_process},
    {"pidfd", hold_process},
    {"memory", read_memory},
    {"memory_file", read_memory_file},
    {"shared_memory", attach_shared_memory},
    {"mount", mount_something},
    {"setns", enter_namespace},
    {"unshare", make_namespace},
    {"device", make_device},
    {"handle", open_by_handle},
    {"root", become_root},
    {"bpf", load_bpf},
    {"perf", watch_performance},
    {"raw_socket", raw_socket},
    {"packet_socket", packet_socket},
    {"netlink", netlink_socket},
    {"exec", run_program},
    {"descriptor", keep_descriptor},
    {"variable", keep_variable},
    {"link", see_link},
    {"listen", listen_for_others},
};

}  // namespace

int probe(std::string const& action, std::string const& argument) {
  for (auto const& one : actions)
    if (one.name == action) return one.run(argument);
  return -1;
}

}  // namespace hostd
