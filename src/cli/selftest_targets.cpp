#include "cli/selftest_targets.hpp"

#include "cli/layout.hpp"

#include <netinet/in.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

/// Everywhere the same address, in the victim as in us: a fork keeps it.
char secret[] = "space-selftest-secret";
constexpr char leaked_variable[] = "SPACE_SELFTEST_SECRET";

base::Result<os::Fd> listen_unix(std::string const& path, int type) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  auto size = static_cast<socklen_t>(sizeof address);
  if (path.starts_with('@')) {
    address.sun_path[0] = '\0';
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  os::Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // SAFETY: how bind() wants it.
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(socket.get(), 128) != 0)
    return base::fail_errno("plant a socket", path);
  if (!path.starts_with('@') && ::chmod(path.c_str(), 0666) != 0)
    return base::fail_errno("open a planted socket to everybody", path);
  return socket;
}

/// Attempts on what is there: `what` and the path.
void add_existing(std::vector<Attempt>& out,
                  std::string what,
                  std::string const& action,
                  std::string const& path) {
  std::error_code failed;
  if (fs::exists(path, failed)) out.push_back({std::move(what), action, path});
}

/// Of each kind the first file below, whose sandbox it may be.
void add_first_below(std::vector<Attempt>& out,
                     std::string const& what,
                     std::string const& action,
                     std::string const& directory,
                     std::string_view name) {
  std::error_code failed;
  for (fs::recursive_directory_iterator it(directory, failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->path().filename() != name) continue;
    out.push_back({what, action, it->path().string()});
    return;
  }
}

}  // namespace

base::Result<std::unique_ptr<Targets>> Targets::plant(wire::Config const& config, uid_t intruder) {
  std::unique_ptr<Targets> targets(new Targets);
  auto path = fmt::format("/run/space-selftest-{}-XXXXXX", config.instance);
  if (::mkdtemp(path.data()) == nullptr) return base::fail_errno("make a directory", path);
  targets->directory_ = path;
  if (::chmod(path.c_str(), 0755) != 0 || ::mkdir((path + "/jail").c_str(), 0700) != 0)
    return base::fail_errno("make a directory", path);
  auto step = targets->plant_files();
  if (step) step = targets->plant_sockets();
  if (step) step = targets->plant_process(intruder);
  if (!step) return base::passing(step);
  return targets;
}

base::Result<void> Targets::plant_files() {
  auto step = write_file(directory_ + "/open", secret, 0666);
  if (step) step = write_file(directory_ + "/roots", secret, 0600);
  if (!step) return step;
  // Without close-on-exec, as a careless library might leave it.
  leaked_ = os::Fd(::open((directory_ + "/roots").c_str(), O_RDONLY));
  if (!leaked_) return base::fail_errno("open a planted file");
  ::setenv(leaked_variable, secret, 1);  // NOLINT(concurrency-mt-unsafe): one thread
  return {};
}

base::Result<void> Targets::plant_sockets() {
  auto stream = listen_unix(directory_ + "/stream", SOCK_STREAM);
  if (!stream) return base::passing(stream);
  auto packets = listen_unix(directory_ + "/packets", SOCK_SEQPACKET);
  if (!packets) return base::passing(packets);
  auto nameless = listen_unix("@" + directory_, SOCK_STREAM);
  if (!nameless) return base::passing(nameless);
  stream_ = std::move(*stream);
  packets_ = std::move(*packets);
  nameless_ = std::move(*nameless);
  tcp_ = os::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  // SAFETY: how the socket calls want it.
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  if (!tcp_ || ::bind(tcp_.get(), where, size) != 0 || ::listen(tcp_.get(), 128) != 0 ||
      ::getsockname(tcp_.get(), where, &size) != 0)
    return base::fail_errno("plant a TCP service");
  port_ = std::to_string(ntohs(address.sin_port));
  return {};
}

base::Result<void> Targets::plant_process(uid_t intruder) {
  shared_memory_ = ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0666);
  if (shared_memory_ < 0) return base::fail_errno("plant shared memory");
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const said(ready[0]);
  os::Fd saying(ready[1]);
  victim_ = ::fork();
  if (victim_ < 0) return base::fail_errno("plant a process");
  if (victim_ == 0) {
    // Dies with us, whatever happens to us.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    bool const same = ::setresgid(intruder, intruder, intruder) == 0 &&
                      ::setresuid(intruder, intruder, intruder) == 0;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a new user forgets it
    ::prctl(PR_SET_DUMPABLE, 1);
    char const word = same ? 'y' : 'n';
    static_cast<void>(::write(saying.get(), &word, 1));
    for (;;)
      ::pause();
  }
  saying.reset();
  char word = 0;
  if (::read(said.get(), &word, 1) != 1 || word != 'y')
    return base::fail(base::Code::internal, "a planted process could not take the user's place");
  return {};
}

Targets::~Targets() {
  if (victim_ > 0) {
    ::kill(victim_, SIGKILL);
    ::waitpid(victim_, nullptr, 0);
  }
  if (shared_memory_ >= 0) ::shmctl(shared_memory_, IPC_RMID, nullptr);
  ::unsetenv(leaked_variable);  // NOLINT(concurrency-mt-unsafe): one thread
  std::error_code ignored;
  if (!directory_.empty()) fs::remove_all(directory_, ignored);
}

std::vector<Attempt> Targets::attempts(wire::Config const& config) const {
  auto const victim = std::to_string(victim_);
  auto const memory = fmt::format("{}:{}", victim, reinterpret_cast<std::uintptr_t>(&secret));
  std::vector<Attempt> out = {
      {"read a planted secret that everybody may read", "read", directory_ + "/open"},
      {"read a planted secret of root's", "read", directory_ + "/roots"},
      {"write into a file that everybody may write", "append", directory_ + "/open"},
      {"make a file on the host", "create", directory_ + "/made"},
      {"make a device", "device", directory_ + "/device"},
      {"open a file by its handle, past all paths", "handle", directory_ + "/open"},
      {"read the host's passwords", "read", "/etc/shadow"},
      {"see other processes", "processes", ""},
      {"reach a socket that everybody may connect to", "stream", directory_ + "/stream"},
      {"reach a packet socket of everybody's", "packets", directory_ + "/packets"},
      {"reach a socket without a file", "stream", "@" + directory_},
      {"reach a service on the host's loopback", "tcp", "127.0.0.1:" + port_},
      {"trace a process of the same user", "ptrace", victim},
      {"signal a process of the same user", "signal", victim},
      {"hold a process of the same user", "pidfd", victim},
      {"read the memory of a process of the same user", "memory", memory},
      {"read it by its file", "memory_file", memory},
      {"attach shared memory of everybody's", "shared_memory", std::to_string(shared_memory_)},
      {"use a descriptor that was left open", "descriptor", std::to_string(leaked_.get())},
      {"read a variable that was left set", "variable", leaked_variable},
      {"mount a file system", "mount", ""},
      {"make a namespace", "unshare", ""},
      {"enter the host's network namespace", "setns", fmt::format("/proc/{}/ns/net", victim)},
      {"become root", "root", ""},
      {"load a BPF map", "bpf", ""},
      {"watch the processor", "perf", ""},
      {"open a raw socket", "raw_socket", ""},
      {"open a packet socket", "packet_socket", ""},
      {"open a netlink socket", "netlink", ""},
      {"listen for others", "listen", ""},
      {"run another program", "exec", "/bin/true"},
  };

  struct Socket {
    char const* what;
    char const* action;
    std::string path;
  };

  for (auto const& [what, action, path] :
       {Socket{"reach hostd", "packets", config.hostd_socket()},
        Socket{"reach the worker", "stream", config.worker_socket()},
        Socket{"reach the worker's dialling socket", "stream", config.dial_socket()},
        Socket{"reach the API's internal socket", "stream", config.internal_socket()},
        Socket{"reach the API", "stream", config.api_socket()},
        Socket{"reach the proxy", "stream", config.proxy_socket()},
        Socket{"reach the broker", "stream", config.broker_socket()},
        Socket{"reach the broker as a gateway", "stream", config.use_socket()},
        Socket{"reach PostgreSQL", "stream", config.database_dir() + "/.s.PGSQL.5432"}})
    add_existing(out, what, action, path);
  add_existing(out, "read the platform's configuration", "read", config.run_dir + "/config.json");
  add_existing(out, "read the first admin key", "read", config.data_dir + "/admin.key");
  add_existing(out, "read the broker's root key", "read", config.data_dir + "/broker/root.key");
  auto const slots = config.run_dir + "/hostd/slots";
  add_first_below(out, "reach another machine's control socket", "stream", slots, "qmp.sock");
  add_first_below(out, "reach another machine's console", "stream", slots, "console.sock");
  add_first_below(out, "reach another gateway", "stream", slots, "gateway.sock");
  add_first_below(out, "read another sandbox's disk", "read", config.pool(), "disk.img");
  add_first_below(out, "read another sandbox's memory", "read", config.data_dir, "memory");
  return out;
}

}  // namespace cli
