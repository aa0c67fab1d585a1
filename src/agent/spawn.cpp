#include "agent/spawn.hpp"

#include <linux/sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

// The child runs on a stack of ours that sanitizers do not know.
#define CHILD_CODE __attribute__((no_sanitize("address", "undefined"), noinline))

namespace agent {
namespace {

/// All the child needs, as plain pointers made before it starts: it must neither allocate nor lock.
struct Child {
  char const* const* programs = nullptr;  // candidates for the program, in order
  char* const* argv = nullptr;
  char* const* env = nullptr;
  SpawnPlan const* plan = nullptr;
  bool handlers_reset = false;
  int move_into_group =
      -1;  // cgroup.procs of the control group, when the kernel could not place it
  SpawnStage failed_stage = SpawnStage::none;
  int error_number = 0;
};

// SAFETY: raw system calls only. glibc's setuid and setgroups would ask the threads of this address
// space to do the same, and those belong to the parent.
template <class... Args> CHILD_CODE long call(long number, Args... args) {
  return ::syscall(number, args...);
}

[[noreturn]] CHILD_CODE void give_up(Child* child, SpawnStage stage) {
  child->failed_stage = stage;
  child->error_number = errno;
  for (;;)
    call(SYS_exit_group, 127);
}

CHILD_CODE void reset_handlers() {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal)
    ::sigaction(signal, &standard, nullptr);
}

CHILD_CODE void ignore_no_broken_pipes() {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGPIPE, &standard, nullptr);
}

/// Children of a protected agent are ordinary processes again: the first to go when memory runs
/// out.
CHILD_CODE void lose_protection(SpawnPlan const& plan) {
  if (plan.reset_oom_score) {
    auto const file =
        call(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
    if (file >= 0) {
      call(SYS_write, file, "0", 1);
      call(SYS_close, file);
    }
  }
  if (plan.reset_real_time) {
    // Below the agent, which takes over as soon as we have exec'ed and makes us ordinary.
    sched_param const priority{agent_priority - 1};
    call(SYS_sched_setscheduler, 0, SCHED_RR | SCHED_RESET_ON_FORK, &priority);
  }
}

CHILD_CODE void take_descriptors(Child* child) {
  auto const& plan = *child->plan;
  // All three are above 2, so none is overwritten before it was used.
  bool const placed = call(SYS_dup3, plan.input, 0, 0) >= 0 &&
                      call(SYS_dup3, plan.output, 1, 0) >= 0 &&
                      call(SYS_dup3, plan.error, 2, 0) >= 0;
  if (!placed) give_up(child, SpawnStage::descriptors);
  // Ours are close-on-exec anyway; this also spares the kernel a walk over thousands of them at
  // exec.
  call(SYS_close_range, 3U, ~0U, 0U);
}

CHILD_CODE void take_identity(Child* child) {
  auto const& plan = *child->plan;
  if (call(SYS_setgroups, plan.groups.size(), plan.groups.data()) != 0 ||
      call(SYS_setresgid, plan.gid, plan.gid, plan.gid) != 0 ||
      call(SYS_setresuid, plan.uid, plan.uid, plan.uid) != 0) {
    give_up(child, SpawnStage::identity);
  }
}

CHILD_CODE void run_program(Child* child) {
  // As execvp does: go on over what is not there, but tell of a program that may not be run.
  int telling = ENOENT;
  for (auto const* program = child->programs; *program; ++program) {
    call(SYS_execve, *program, child->argv, child->env);
    if (errno == EACCES) {
      telling = EACCES;
    } else if (errno != ENOENT && errno != ENOTDIR) {
      telling = errno;
      break;
    }
  }
  errno = telling;
  give_up(child, SpawnStage::exec);
}

CHILD_CODE int child_main(void* argument) {
  auto* child = static_cast<Child*>(argument);
  auto const& plan = *child->plan;
  if (!child->handlers_reset) reset_handlers();
  // The kernel's own reset spares what is ignored, and that is what the agent does with this one.
  ignore_no_broken_pipes();
  if (child->move_into_group >= 0 && call(SYS_write, child->move_into_group, "0", 1) != 1) {
    give_up(child, SpawnStage::control_group);
  }
  lose_protection(plan);
  if (call(SYS_setsid) < 0) give_up(child, SpawnStage::session);
  if (plan.terminal && call(SYS_ioctl, plan.input, TIOCSCTTY, 0) != 0)
    give_up(child, SpawnStage::terminal);
  take_descriptors(child);
  take_identity(child);
  // With the user's rights, so that nobody is put where he may not go.
  if (call(SYS_chdir, plan.cwd.c_str()) != 0) give_up(child, SpawnStage::directory);
  std::uint64_t const nothing = 0;
  call(SYS_rt_sigprocmask, SIG_SETMASK, &nothing, nullptr, sizeof nothing);
  run_program(child);
  return 127;
}

alignas(16) char child_stack[64 * 1024];

#if defined(__x86_64__)
/// clone3 with a stack of its own for the child, which calls `run` and never comes back. glibc has
/// no wrapper for it, and returning twice from a function with a shared stack would break the
/// parent's frame.
CHILD_CODE long clone3_onto_stack(clone_args* args, int (*run)(void*), void* argument) {
  long result = SYS_clone3;
  register auto* child_function asm("r12") = run;
  register void* child_argument asm("r13") = argument;
  // SAFETY: r12 and r13 survive the system call in both; the child starts with rsp at the (aligned)
  // end of args->stack and never passes the hlt.
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %%r13, %%rdi\n\t"
      "call *%%r12\n\t"
      "hlt\n"
      "1:\n"
      : "+a"(result)
      : "D"(args), "S"(sizeof *args), "r"(child_function), "r"(child_argument)
      : "rcx", "r11", "memory", "cc");
  if (result < 0) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}
#else
long clone3_onto_stack(clone_args*, int (*)(void*), void*) {
  errno = ENOSYS;
  return -1;
}
#endif

/// The child is placed into its control group by the kernel: it cannot fork out of it before.
long start_in_group(Child* child) {
  clone_args args{};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND;
  if (child->plan->control_group >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<std::uint64_t>(child->plan->control_group);
  }
  args.exit_signal = SIGCHLD;
  args.stack = reinterpret_cast<std::uint64_t>(child_stack);
  args.stack_size = sizeof child_stack;
  child->handlers_reset = true;
  return clone3_onto_stack(&args, child_main, child);
}

/// The way of older kernels.
long start_and_move(Child* child) {
  os::Fd group;
  if (child->plan->control_group >= 0) {
    group = os::Fd(::openat(child->plan->control_group, "cgroup.procs", O_WRONLY | O_CLOEXEC));
    if (!group) return -1;
    child->move_into_group = group.get();
  }
  child->handlers_reset = false;
  return ::clone(
      child_main, child_stack + sizeof child_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, child);
}

std::vector<std::string> programs_of(SpawnPlan const& plan) {
  auto const& name = plan.argv.front();
  if (name.empty() || name.find('/') != std::string::npos) return {name};
  std::string_view path = "/usr/local/bin:/usr/bin:/bin";
  for (auto const& variable : plan.env) {
    if (variable.starts_with("PATH=")) path = std::string_view(variable).substr(5);
  }
  std::vector<std::string> out;
  for (;;) {
    auto const colon = path.find(':');
    auto const directory = path.substr(0, colon);
    // An empty entry is the working directory, by tradition.
    out.push_back(directory.empty() ? name : std::string(directory) + "/" + name);
    if (colon == std::string_view::npos) return out;
    path.remove_prefix(colon + 1);
  }
}

std::vector<char*> pointers_of(std::vector<std::string> const& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  // SAFETY: exec's prototype lacks the const; it writes to none of them.
  for (auto const& text : texts)
    out.push_back(const_cast<char*>(text.c_str()));  // NOLINT
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::variant<pid_t, SpawnFailure> spawn(SpawnPlan const& plan) {
  auto const programs = programs_of(plan);
  auto const program_pointers = pointers_of(programs);
  auto const argv = pointers_of(plan.argv);
  auto const env = pointers_of(plan.env);
  Child child;
  child.programs = program_pointers.data();
  child.argv = argv.data();
  child.env = env.data();
  child.plan = &plan;

  // Until it has exec'ed, the child shares our memory: no handler of ours may run in it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  long pid = -1;
  errno = ENOSYS;
  if (plan.clone3) pid = start_in_group(&child);
  if (pid < 0 && (errno == ENOSYS || errno == EINVAL || errno == EPERM || errno == EOPNOTSUPP)) {
    pid = start_and_move(&child);
  }
  int const fork_error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) return SpawnFailure{SpawnStage::fork, fork_error};
  if (child.failed_stage == SpawnStage::none) {
    sched_param const ordinary{};
    if (plan.reset_real_time) ::sched_setscheduler(static_cast<pid_t>(pid), SCHED_OTHER, &ordinary);
    return static_cast<pid_t>(pid);
  }
  // It never became a process that anybody knows of: buried here, not by the reaper.
  while (::waitpid(static_cast<pid_t>(pid), nullptr, 0) < 0 && errno == EINTR) {
  }
  return SpawnFailure{child.failed_stage, child.error_number};
}

}  // namespace agent
