#pragma once

#include "base/result.hpp"

#include <linux/filter.h>

#include <vector>

namespace hostd {

/// Descriptor number under which a jailed program is executed (execveat); the filter allows no
/// other.
inline constexpr int jail_program_fd = 3;

/// The system calls that a jailed QEMU may make, as a filter program: a list of what is allowed.
/// What an intruder tries (ptrace, mount, namespaces, bpf, keys, perf, io_uring, userfaultfd, new
/// sockets) ends the process, so that the attempt is seen as a SIGSYS; anything else unknown gets
/// EPERM, so that a newer library degrades. `kvm` adds KVM's own device calls.
base::Result<std::vector<sock_filter>> make_system_filter(bool kvm);
/// For Firecracker, which opens by path what QEMU is given: with KVM, and what it needs to make its
/// API socket and to take its tap.
base::Result<std::vector<sock_filter>> make_firecracker_filter();

}  // namespace hostd
