#include "hostd/jail.hpp"

#include "hostd/system_filter.hpp"

#include <linux/capability.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr int report_fd = 4;  // closed by a successful exec
// Our own copies live above; whatever the jail gets is below.
constexpr int parking = 128;

struct Failure {
  int error_number;
  char step[60];
};

/// The child between clone and exec. No allocation, no lock: system calls only. A failed step is
/// reported and ends it.
class Inside {
 public:
  Inside(JailSpec const& spec, char* const* argv, char* const* environment, int report)
      : spec_(spec), argv_(argv), environment_(environment), report_(report) {}

  [[noreturn]] void run() {
    // Until exec nobody else would end a half-made machine when we are killed. Changing user clears
    // this.
    must(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "tie the child to its parent");
    reset_signals();
    join_groups();
    if (spec_.network >= 0)
      must(::setns(spec_.network, CLONE_NEWNET) == 0, "enter the network namespace");
    take_descriptors();
    enter_view();
    limit_resources();
    drop_rights();
    if (spec_.filter != nullptr) install_filter();
    ::syscall(SYS_execveat, jail_program_fd, "", argv_, environment_, AT_EMPTY_PATH);
    must(false, "execute the program");
    ::_exit(127);
  }

 private:
  void must(bool good, char const* step) const {
    if (good) return;
    Failure failure{.error_number = errno, .step = {}};
    for (std::size_t i = 0; i + 1 < sizeof failure.step && step[i] != '\0'; ++i)
      failure.step[i] = step[i];
    static_cast<void>(::write(report_, &failure, sizeof failure));
    ::_exit(127);
  }

  void reset_signals() const {
    sigset_t none;
    sigemptyset(&none);
    must(::sigprocmask(SIG_SETMASK, &none, nullptr) == 0, "unblock signals");
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    for (int number = 1; number < 32; ++number)
      ::sigaction(number, &plain, nullptr);
    must(::setsid() > 0, "make a session");
  }

  void join_groups() const {
    for (auto const& door : spec_.group_doors) {
      int const file = ::open(door.c_str(), O_WRONLY | O_CLOEXEC);
      must(file >= 0 && ::write(file, "0", 1) == 1, "join a control group");
      ::close(file);
    }
    // The first to go when the host itself runs out of memory; a lower value would need a
    // capability to undo.
    int const score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    must(score >= 0 && ::write(score, "500", 3) == 3,
         "offer the process to the out-of-memory killer");
    ::close(score);
  }

  /// stdin, stdout, stderr, [program and report], then what the program was given, and nothing
  /// else.
  void take_descriptors() {
    int parked[16];
    must(spec_.fds.size() <= 16, "count the descriptors");
    report_ = ::fcntl(report_, F_DUPFD_CLOEXEC, parking);
    view_ = ::fcntl(spec_.view.get(), F_DUPFD_CLOEXEC, parking);
    must(report_ >= 0 && view_ >= 0, "park descriptors");
    for (std::size_t i = 0; i < spec_.fds.size(); ++i) {
      parked[i] = ::fcntl(spec_.fds[i], F_DUPFD_CLOEXEC, parking);
      must(parked[i] >= 0, "park descriptors");
    }
    int const nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    int const errors =
        ::fcntl(spec_.errors >= 0 ? spec_.errors : nowhere, F_DUPFD_CLOEXEC, parking);
    int const output = spec_.output >= 0 ? ::fcntl(spec_.output, F_DUPFD_CLOEXEC, parking) : errors;
    must(nowhere >= 0 && errors >= 0 && output >= 0, "open the standard descriptors");
    must(::dup2(nowhere, 0) == 0 && ::dup2(output, 1) == 1 && ::dup2(errors, 2) == 2,
         "set the standard descriptors");
    must(::dup3(report_, report_fd, O_CLOEXEC) == report_fd, "set the report's descriptor");
    report_ = report_fd;
    for (std::size_t i = 0; i < spec_.fds.size(); ++i) {
      int const target = first_jail_fd + static_cast<int>(i);
      must(::dup2(parked[i], target) == target, "set a descriptor");
    }
    auto const last = first_jail_fd + static_cast<int>(spec_.fds.size());
    must(view_ > last, "keep the view");
    must(::close_range(static_cast<unsigned>(last), static_cast<unsigned>(view_) - 1, 0) == 0 &&
             ::close_range(static_cast<unsigned>(view_) + 1, ~0U, 0) == 0,
         "close descriptors");
  }

  void enter_view() const {
    must(::setns(view_, CLONE_NEWNS) == 0, "enter the view");
    must(::unshare(CLONE_NEWNS) == 0, "copy the view");
    must(::chdir("/") == 0, "enter the root of the view");
    ::close(view_);
    mount_files();
    int const program = ::open(spec_.program.c_str(), O_PATH | O_CLOEXEC);
    must(program >= 0, "open the program");
    if (program != jail_program_fd) {
      must(::dup3(program, jail_program_fd, O_CLOEXEC) == jail_program_fd,
           "set the program's descriptor");
      ::close(program);
    }
  }

  void mount_files() const {
    if (spec_.machine_mount.empty()) return;
    must(::mount("jail",
                 "/machine",
                 "tmpfs",
                 MS_NOSUID | MS_NODEV | MS_NOEXEC,
                 spec_.machine_mount.c_str()) == 0,
         "mount the machine's directory");
    for (auto const& file : spec_.mounts) {
      int const made = ::open(file.target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      must(made >= 0, "make a file of the machine");
      if (file.fd < 0)
        must(::fchown(made, spec_.user, spec_.user) == 0, "give a file to the machine");
      ::close(made);
      if (file.fd < 0) continue;
      must(::syscall(SYS_move_mount, file.fd, "", AT_FDCWD, file.target, MOVE_MOUNT_F_EMPTY_PATH) ==
               0,
           "mount a file of the machine");
      ::close(file.fd);
    }
  }

  void limit(__rlimit_resource resource, std::uint64_t value, char const* step) const {
    rlimit const both{.rlim_cur = value, .rlim_max = value};
    must(::setrlimit(resource, &both) == 0, step);
  }

  void limit_resources() const {
    limit(RLIMIT_CORE, 0, "limit core dumps");
    limit(RLIMIT_NOFILE, spec_.descriptors_max, "limit descriptors");
    limit(RLIMIT_MEMLOCK, 0, "limit locked memory");
    limit(RLIMIT_MSGQUEUE, 0, "limit message queues");
    if (spec_.file_bytes_max > 0) limit(RLIMIT_FSIZE, spec_.file_bytes_max, "limit files");
    if (spec_.address_bytes_max > 0) limit(RLIMIT_AS, spec_.address_bytes_max, "limit memory");
    if (spec_.tasks_max > 0) limit(RLIMIT_NPROC, spec_.tasks_max, "limit processes");
  }

  void drop_rights() const {
    for (int capability = 0; capability < 64; ++capability) {
      if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) continue;
      must(errno == EINVAL, "drop a capability");
      break;
    }
    must(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0,
         "drop ambient capabilities");
    must(::syscall(SYS_setgroups, 0, nullptr) == 0, "drop groups");
    must(::syscall(SYS_setresgid, spec_.user, spec_.user, spec_.user) == 0, "change group");
    must(::syscall(SYS_setresuid, spec_.user, spec_.user, spec_.user) == 0, "change user");
    must(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "renounce new rights");
    ::umask(077);
  }

  void install_filter() const {
    sock_fprog const program{
        .len = static_cast<unsigned short>(spec_.filter->size()),
        .filter = const_cast<sock_filter*>(spec_.filter->data())};  // NOLINT: read only
    must(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0, "install the filter");
  }

  JailSpec const& spec_;
  char* const* argv_;
  char* const* environment_;
  int report_;
  int view_ = -1;
};

std::vector<char*> words_of(std::vector<std::string> const& texts) {
  std::vector<char*> words;
  // SAFETY: exec does not write to the strings; its signature is older than const.
  for (auto const& text : texts)
    words.push_back(const_cast<char*>(text.c_str()));  // NOLINT
  words.push_back(nullptr);
  return words;
}

}  // namespace

base::Result<Jailed> start_jailed(JailSpec const& spec) {
  auto argv = words_of(spec.argv);
  auto environment = words_of(spec.environment);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const report(ends[0]);
  os::Fd report_write(ends[1]);
  os::Fd group;
  int pidfd = -1;
  clone_args args{};
  args.flags = CLONE_PIDFD | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
  if (spec.network < 0) args.flags |= CLONE_NEWNET;
  args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);  // SAFETY: how clone3 takes it
  args.exit_signal = SIGCHLD;
  if (!spec.clone_group.empty()) {
    group = os::Fd(::open(spec.clone_group.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!group) return base::fail_errno("open a control group", spec.clone_group);
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<std::uint64_t>(group.get());
  }
  auto const child = ::syscall(SYS_clone3, &args, sizeof args);
  if (child < 0) return base::fail_errno("start a process in namespaces");
  if (child == 0) Inside(spec, argv.data(), environment.data(), report_write.get()).run();

  Jailed jailed{.pid = static_cast<pid_t>(child), .pidfd = os::Fd(pidfd)};
  report_write.reset();
  Failure failure{};
  ssize_t got = 0;
  do {
    got = ::read(report.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return jailed;  // the pipe closed itself: the program runs
  ::kill(jailed.pid, SIGKILL);
  while (::waitpid(jailed.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (got != sizeof failure) return base::fail(base::Code::internal, "start a jailed process");
  failure.step[sizeof failure.step - 1] = '\0';
  return base::fail_errno(failure.error_number, failure.step);
}

}  // namespace hostd
