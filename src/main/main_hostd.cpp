// space-hostd --config FILE: the privileged hand of the worker. Reads its configuration, repairs
// what a predecessor left, answers on its socket. Machines outlive it.

#include "base/log.hpp"
#include "hostd/server.hpp"
#include "os/packet_socket.hpp"

#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

namespace {

base::Result<os::Fd> take_over_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int const number : {SIGCHLD, SIGTERM, SIGINT})
    sigaddset(&set, number);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return base::fail_errno("block signals");
  os::Fd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return base::fail_errno("take over signals");
  return signals;
}

base::Result<void> make_directory(std::string const& path, mode_t mode, gid_t group) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST)
    return base::fail_errno("make a directory", path);
  if (::chown(path.c_str(), 0, group) != 0 || ::chmod(path.c_str(), mode) != 0)
    return base::fail_errno("protect a directory", path);
  return {};
}

/// Held for the life of the process: a second hostd would take the socket away from the first.
base::Result<os::Fd> lock_directory(std::string const& directory) {
  os::Fd lock(::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return base::fail_errno("open the lock");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK)
    return base::fail(base::Code::conflict, "another space-hostd of this installation runs");
  return base::fail_errno("take the lock");
}

base::Result<void> run(std::string const& path) {
  auto config = wire::load_config(path);
  if (!config) return base::passing(config);
  auto const* worker = ::getpwnam(config->worker_user.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (worker == nullptr)
    return base::fail(base::Code::not_found,
                      "worker_user: there is no such user on this host",
                      config->worker_user);
  auto const worker_user = worker->pw_uid;
  auto const worker_group = worker->pw_gid;
  ::umask(077);
  if (::mkdir(config->run_dir.c_str(), 0755) != 0 && errno != EEXIST)
    return base::fail_errno("make the run directory");
  auto made = make_directory(config->run_dir + "/hostd", 0750, worker_group);
  if (!made) return made;
  auto const lock = lock_directory(config->run_dir + "/hostd");
  if (!lock) return base::fail(lock.error().code(), lock.error().message());
  auto signals = take_over_signals();
  if (!signals) return base::passing(signals);
  auto const socket = config->hostd_socket();
  auto host = hostd::Host::open(std::move(*config));
  if (!host) return base::passing(host);
  auto listener = os::listen_packets(socket, worker_group);
  if (!listener) return base::passing(listener);
  base::log::info("listening", {{"socket", socket}});
  hostd::Server server(**host, std::move(*listener), std::move(*signals), worker_user);
  return server.run();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--config") {
    std::fputs("usage: space-hostd --config FILE\n", stderr);
    return 2;
  }
  base::log::configure("space-hostd", base::log::Level::info);
  if (::geteuid() != 0) {
    std::fputs("space-hostd: makes namespaces, mounts and users' processes: run it as root\n",
               stderr);
    return 1;
  }
  auto const done = run(argv[2]);
  if (done) return 0;
  base::log::error("stopped", {{"why", done.error().message()}, {"detail", done.error().detail()}});
  return 1;
}
