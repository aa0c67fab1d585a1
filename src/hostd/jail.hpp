#pragma once

#include "os/fd.hpp"

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hostd {

/// A file that appears at a path of the jail: the detached mount (file_mount.hpp) is one of
/// JailSpec::fds, and gone from them when the program starts.
struct JailMount {
  int fd = -1;  // its number in the jail; -1: no mount but an empty file of the jail's user
  char const* target = nullptr;
};

/// How one program is confined. Descriptors are borrowed.
struct JailSpec {
  std::string program;                     // path inside the view
  std::vector<std::string> argv;           // with the name first
  std::vector<std::string> environment{};  // "NAME=value"
  std::uint32_t user = 0;                  // user and group id; no other groups
  os::FdRef view;                          // make_jail_view()
  std::vector<std::string> group_doors;    // files of control groups to join by writing "0"
  std::string clone_group;                 // or the directory of a version 2 group to be born in
  std::vector<int> fds;                    // become first_jail_fd, first_jail_fd + 1, …
  int errors = -1;                         // becomes stderr and stdout; -1 is /dev/null
  int output = -1;                         // becomes stdout instead
  /// Options of a file system in memory at /machine, which the view must have; "" is none.
  std::string machine_mount{};
  std::vector<JailMount> mounts{};  // below /machine
  // Null for a program that installs its own before it reads a stranger's byte (the gateway).
  std::vector<sock_filter> const* filter = nullptr;
  int network = -1;  // a network namespace to live in; -1 is a new, empty one
  std::uint32_t descriptors_max = 512;
  std::uint64_t file_bytes_max = 0;  // no file grows beyond; 0 = not limited
  std::uint64_t address_bytes_max =
      0;                        // for hosts that cannot limit memory by groups; 0 = not limited
  std::uint32_t tasks_max = 0;  // processes and threads of the user; 0 = not limited
};

inline constexpr int first_jail_fd = 5;

struct Jailed {
  pid_t pid = 0;  // in our process id namespace
  os::Fd pidfd;
};

/// Starts the program as process 1 of new process, network, IPC and host name namespaces,
/// in a copy of the view, with no capability and no way to gain one. Returns once it was executed;
/// on failure nothing is left but a child that was waited for. It outlives us: only its own end or
/// its group's kill ends it.
base::Result<Jailed> start_jailed(JailSpec const& spec);

}  // namespace hostd
