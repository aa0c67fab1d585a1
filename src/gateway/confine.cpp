#include "gateway/control.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <seccomp.h>

namespace gateway {
namespace {

// What a single-threaded network program with timers and memory needs, and nothing that opens,
// starts or mounts.
constexpr int allowed[] = {
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(close),
    SCMP_SYS(recvfrom),
    SCMP_SYS(sendto),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendmsg),
    SCMP_SYS(accept),
    SCMP_SYS(accept4),
    SCMP_SYS(connect),
    SCMP_SYS(shutdown),
    SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(bind),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_create1),
    SCMP_SYS(eventfd2),
    SCMP_SYS(timerfd_create),
    SCMP_SYS(timerfd_settime),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(mprotect),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    SCMP_SYS(futex),
    SCMP_SYS(getrandom),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(fcntl),
    SCMP_SYS(ioctl),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(lseek),
    SCMP_SYS(pipe2),
    SCMP_SYS(rseq),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(tgkill),
    SCMP_SYS(sched_yield),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(sysinfo),
    SCMP_SYS(uname),
    SCMP_SYS(socketpair),
};

struct Release {
  void operator()(void* filter) const noexcept { seccomp_release(filter); }
};

}  // namespace

base::Result<void> confine() {
  rlimit const none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0 || ::setrlimit(RLIMIT_FSIZE, &none) != 0)
    return base::fail_errno("set limits");
  if (::prctl(PR_SET_DUMPABLE, 0) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return base::fail_errno("give up privileges");
  // A file that a library looks for later (OpenSSL's configuration, say) is "not there", and no
  // reason to die.
  std::unique_ptr<void, Release> const filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)));
  if (!filter) return base::fail(base::Code::internal, "make a seccomp filter");
  int failed = 0;
  for (int const call : allowed)
    failed |= seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  for (int const family : {AF_INET, AF_INET6})
    failed |= seccomp_rule_add(filter.get(),
                               SCMP_ACT_ALLOW,
                               SCMP_SYS(socket),
                               1,
                               scmp_arg_cmp{0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(family), 0});
  // Starting a program or looking into another one: only code that broke in wants that.
  failed |= seccomp_rule_add(filter.get(), SCMP_ACT_KILL_PROCESS, SCMP_SYS(execve), 0);
  failed |= seccomp_rule_add(filter.get(), SCMP_ACT_KILL_PROCESS, SCMP_SYS(execveat), 0);
  failed |= seccomp_rule_add(filter.get(), SCMP_ACT_KILL_PROCESS, SCMP_SYS(ptrace), 0);
  if (failed != 0 || seccomp_load(filter.get()) != 0)
    return base::fail(base::Code::internal, "load the seccomp filter");
  return {};
}

}  // namespace gateway
