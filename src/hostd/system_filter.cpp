#include "hostd/system_filter.hpp"

#include "os/fd.hpp"

#include <linux/if_tun.h>
#include <linux/sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include <fcntl.h>
#include <seccomp.h>
#include <unistd.h>

namespace hostd {
namespace {

using Filter = std::unique_ptr<void, void (*)(scmp_filter_ctx)>;

// Reading, writing, memory, threads, time: what an emulator does all day on descriptors that it was
// given.
constexpr int allowed[] = {SCMP_SYS(read),
                           SCMP_SYS(write),
                           SCMP_SYS(readv),
                           SCMP_SYS(writev),
                           SCMP_SYS(pread64),
                           SCMP_SYS(pwrite64),
                           SCMP_SYS(preadv),
                           SCMP_SYS(pwritev),
                           SCMP_SYS(preadv2),
                           SCMP_SYS(pwritev2),
                           SCMP_SYS(lseek),
                           SCMP_SYS(close),
                           SCMP_SYS(fdatasync),
                           SCMP_SYS(fsync),
                           SCMP_SYS(fallocate),
                           SCMP_SYS(fadvise64),  // when a restored machine takes its disk over
                           SCMP_SYS(ftruncate),
                           SCMP_SYS(dup),
                           SCMP_SYS(dup2),
                           SCMP_SYS(dup3),
                           SCMP_SYS(pipe2),
                           SCMP_SYS(fcntl),
                           SCMP_SYS(open),
                           SCMP_SYS(openat),
                           SCMP_SYS(stat),
                           SCMP_SYS(fstat),
                           SCMP_SYS(lstat),
                           SCMP_SYS(newfstatat),
                           SCMP_SYS(statx),
                           SCMP_SYS(statfs),
                           SCMP_SYS(fstatfs),
                           SCMP_SYS(access),
                           SCMP_SYS(faccessat),
                           SCMP_SYS(faccessat2),
                           SCMP_SYS(readlink),
                           SCMP_SYS(readlinkat),
                           SCMP_SYS(getcwd),
                           SCMP_SYS(getdents64),
                           SCMP_SYS(umask),
                           SCMP_SYS(mmap),
                           SCMP_SYS(munmap),
                           SCMP_SYS(mprotect),
                           SCMP_SYS(mremap),
                           SCMP_SYS(madvise),
                           SCMP_SYS(brk),
                           SCMP_SYS(futex),
                           SCMP_SYS(set_robust_list),
                           SCMP_SYS(rseq),
                           SCMP_SYS(set_tid_address),
                           SCMP_SYS(arch_prctl),
                           SCMP_SYS(membarrier),
                           SCMP_SYS(sched_yield),
                           SCMP_SYS(sched_getaffinity),
                           SCMP_SYS(getcpu),
                           SCMP_SYS(exit),
                           SCMP_SYS(exit_group),
                           SCMP_SYS(restart_syscall),
                           SCMP_SYS(rt_sigaction),
                           SCMP_SYS(rt_sigprocmask),
                           SCMP_SYS(rt_sigreturn),
                           SCMP_SYS(rt_sigtimedwait),
                           SCMP_SYS(rt_sigsuspend),
                           SCMP_SYS(rt_sigpending),
                           SCMP_SYS(sigaltstack),
                           SCMP_SYS(tgkill),
                           SCMP_SYS(signalfd4),
                           SCMP_SYS(getpid),
                           SCMP_SYS(gettid),
                           SCMP_SYS(getppid),
                           SCMP_SYS(getuid),
                           SCMP_SYS(geteuid),
                           SCMP_SYS(getgid),
                           SCMP_SYS(getegid),
                           SCMP_SYS(getresuid),
                           SCMP_SYS(getresgid),
                           SCMP_SYS(getrusage),
                           SCMP_SYS(sysinfo),
                           SCMP_SYS(uname),
                           SCMP_SYS(getrandom),
                           SCMP_SYS(clock_gettime),
                           SCMP_SYS(clock_getres),
                           SCMP_SYS(clock_nanosleep),
                           SCMP_SYS(nanosleep),
                           SCMP_SYS(gettimeofday),
                           SCMP_SYS(time),
                           SCMP_SYS(times),
                           SCMP_SYS(timer_create),
                           SCMP_SYS(timer_settime),
                           SCMP_SYS(timer_gettime),
                           SCMP_SYS(timer_getoverrun),
                           SCMP_SYS(timer_delete),
                           SCMP_SYS(timerfd_create),
                           SCMP_SYS(timerfd_settime),
                           SCMP_SYS(timerfd_gettime),
                           SCMP_SYS(eventfd2),
                           SCMP_SYS(epoll_create1),
                           SCMP_SYS(epoll_ctl),
                           SCMP_SYS(epoll_wait),
                           SCMP_SYS(epoll_pwait),
                           SCMP_SYS(poll),
                           SCMP_SYS(ppoll),
                           SCMP_SYS(select),
                           SCMP_SYS(pselect6),
                           // Sockets that exist: nothing here makes or names one.
                           SCMP_SYS(listen),
                           SCMP_SYS(accept),
                           SCMP_SYS(accept4),
                           SCMP_SYS(getsockname),
                           SCMP_SYS(getpeername),
                           SCMP_SYS(getsockopt),
                           SCMP_SYS(setsockopt),
                           SCMP_SYS(sendto),
                           SCMP_SYS(sendmsg),
                           SCMP_SYS(recvfrom),
                           SCMP_SYS(recvmsg),
                           SCMP_SYS(shutdown),
                           // QEMU's own filter, which only takes more away.
                           SCMP_SYS(seccomp)};

// Nothing that an emulator of ours has a reason for; the first sign of a guest that broke out.
constexpr int deadly[] = {SCMP_SYS(ptrace),
                          SCMP_SYS(process_vm_readv),
                          SCMP_SYS(process_vm_writev),
                          SCMP_SYS(mount),
                          SCMP_SYS(umount2),
                          SCMP_SYS(pivot_root),
                          SCMP_SYS(chroot),
                          SCMP_SYS(fsopen),
                          SCMP_SYS(fsmount),
                          SCMP_SYS(move_mount),
                          SCMP_SYS(open_tree),
                          SCMP_SYS(mount_setattr),
                          SCMP_SYS(unshare),
                          SCMP_SYS(setns),
                          SCMP_SYS(bpf),
                          SCMP_SYS(keyctl),
                          SCMP_SYS(add_key),
                          SCMP_SYS(request_key),
                          SCMP_SYS(perf_event_open),
                          SCMP_SYS(io_uring_enter),
                          SCMP_SYS(io_uring_register),
                          SCMP_SYS(userfaultfd),

                          SCMP_SYS(socketpair),
                          SCMP_SYS(bind),
                          SCMP_SYS(connect),
                          SCMP_SYS(init_module),
                          SCMP_SYS(finit_module),
                          SCMP_SYS(delete_module),
                          SCMP_SYS(kexec_load),
                          SCMP_SYS(kexec_file_load),
                          SCMP_SYS(open_by_handle_at),
                          SCMP_SYS(name_to_handle_at),
                          SCMP_SYS(setuid),
                          SCMP_SYS(setgid),
                          SCMP_SYS(setresuid),
                          SCMP_SYS(setresgid),
                          SCMP_SYS(setgroups),
                          SCMP_SYS(capset),
                          SCMP_SYS(personality),
                          SCMP_SYS(reboot),
                          SCMP_SYS(swapon),
                          SCMP_SYS(acct),
                          SCMP_SYS(quotactl),
                          SCMP_SYS(fork),
                          SCMP_SYS(vfork),
                          SCMP_SYS(execve),
                          SCMP_SYS(pidfd_getfd),
                          SCMP_SYS(mknodat)};

constexpr std::uint64_t tap_calls[] = {TUNGETFEATURES,
                                       TUNGETIFF,
                                       TUNSETOFFLOAD,
                                       TUNSETSNDBUF,
                                       TUNGETSNDBUF,
                                       TUNSETVNETHDRSZ,
                                       TUNGETVNETHDRSZ,
                                       TUNSETVNETLE,
                                       TUNSETVNETBE};
constexpr std::uint64_t other_device_calls[] = {FIONREAD, FIONBIO, TCGETS};
constexpr std::uint64_t kvm_device_type = 0xAE00;

scmp_arg_cmp masked(unsigned argument, std::uint64_t mask, std::uint64_t value) {
  return {.arg = argument, .op = SCMP_CMP_MASKED_EQ, .datum_a = mask, .datum_b = value};
}

scmp_arg_cmp equals(unsigned argument, std::uint32_t value) {
  // The kernel hands over 64 bits, of which the upper 32 of an int are anybody's choice.
  return masked(argument, 0xFFFF'FFFF, value);
}

int add_device_calls(scmp_filter_ctx filter, bool kvm) {
  int bad = 0;
  for (auto const call : tap_calls) {
    bad |= seccomp_rule_add(
        filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, equals(1, static_cast<std::uint32_t>(call)));
  }
  for (auto const call : other_device_calls) {
    bad |= seccomp_rule_add(
        filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, equals(1, static_cast<std::uint32_t>(call)));
  }
  if (kvm) {
    bad |= seccomp_rule_add(
        filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, masked(1, 0xFF00, kvm_device_type));
  }
  return bad;
}

int add_processes(scmp_filter_ctx filter) {
  // Threads, in no new namespace; never a process. clone3 hides its flags from filters: libraries
  // fall back.
  constexpr std::uint64_t fresh = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                  CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
  constexpr std::uint64_t looked_at = fresh | CLONE_THREAD | CLONE_VM;
  int bad = seccomp_rule_add(
      filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, masked(0, looked_at, CLONE_THREAD | CLONE_VM));
  bad |= seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
  bad |= seccomp_rule_add(filter,
                          SCMP_ACT_ALLOW,
                          SCMP_SYS(execveat),
                          2,
                          equals(0, jail_program_fd),
                          equals(4, AT_EMPTY_PATH));
  // A library that looks up a user tries the name service's Unix socket first and does without it;
  // any other family is an intruder's.
  bad |=
      seccomp_rule_add(filter,
                       SCMP_ACT_KILL_PROCESS,
                       SCMP_SYS(socket),
                       1,
                       scmp_arg_cmp{.arg = 0, .op = SCMP_CMP_NE, .datum_a = AF_UNIX, .datum_b = 0});
  // Reading limits of itself; setting none.
  bad |= seccomp_rule_add(filter,
                          SCMP_ACT_ALLOW,
                          SCMP_SYS(prlimit64),
                          2,
                          equals(0, 0),
                          scmp_arg_cmp{.arg = 2, .op = SCMP_CMP_EQ, .datum_a = 0, .datum_b = 0});
  for (int const option : {PR_SET_NAME,
                           PR_GET_NAME,
                           PR_SET_TIMERSLACK,
                           PR_SET_NO_NEW_PRIVS,
                           PR_GET_NO_NEW_PRIVS,
                           PR_SET_SECCOMP,
                           PR_GET_SECCOMP,
                           PR_GET_DUMPABLE,
                           PR_CAPBSET_READ}) {
    bad |= seccomp_rule_add(
        filter, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1, equals(0, static_cast<std::uint32_t>(option)));
  }
  return bad;
}

base::Result<std::vector<sock_filter>> exported(scmp_filter_ctx filter) {
  os::Fd file(::memfd_create("filter", MFD_CLOEXEC));
  if (!file) return base::fail_errno("make room for a filter");
  int const bad = seccomp_export_bpf(filter, file.get());
  if (bad != 0) return base::fail_errno(-bad, "write out a filter");
  auto const size = ::lseek(file.get(), 0, SEEK_END);
  if (size <= 0) return base::fail_errno("measure a filter");
  std::vector<sock_filter> program(static_cast<std::size_t>(size) / sizeof(sock_filter));
  if (::pread(file.get(), program.data(), static_cast<std::size_t>(size), 0) != size)
    return base::fail_errno("read a filter");
  return program;
}

// On top of the above: a socket of its own that it makes and serves, the tap, and what it does with
// a memory file.
constexpr int firecracker_calls[] = {
    SCMP_SYS(bind), SCMP_SYS(msync), SCMP_SYS(mincore), SCMP_SYS(tkill)};

base::Result<std::vector<sock_filter>> make_filter(bool kvm, bool firecracker) {
  Filter const filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)), seccomp_release);
  if (!filter) return base::fail(base::Code::internal, "make a filter");
  int bad = 0;
  for (int const call : allowed)
    bad |= seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  for (int const call : deadly) {
    if (firecracker && std::ranges::find(firecracker_calls, call) != std::end(firecracker_calls))
      continue;
    bad |= seccomp_rule_add(filter.get(), SCMP_ACT_KILL_PROCESS, call, 0);
  }
  if (firecracker) {
    for (int const call : firecracker_calls)
      bad |= seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
    bad |= seccomp_rule_add(
        filter.get(),
        SCMP_ACT_ALLOW,
        SCMP_SYS(socket),
        1,
        scmp_arg_cmp{.arg = 0, .op = SCMP_CMP_EQ, .datum_a = AF_UNIX, .datum_b = 0});
    bad |= seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, equals(1, TUNSETIFF));
  }
  bad |= add_device_calls(filter.get(), kvm);
  bad |= add_processes(filter.get());
  // A tree instead of a list: emulators make thousands of calls a second.
  bad |= seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
  if (bad != 0) return base::fail(base::Code::internal, "build a filter: a rule was refused");
  return exported(filter.get());
}

}  // namespace

base::Result<std::vector<sock_filter>> make_system_filter(bool kvm) {
  return make_filter(kvm, false);
}

base::Result<std::vector<sock_filter>> make_firecracker_filter() {
  return make_filter(true, true);
}

}  // namespace hostd
