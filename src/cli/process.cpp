#include "cli/process.hpp"

#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <unistd.h>

namespace cli {
namespace {

constexpr std::size_t output_bytes_max = 16U << 20;
constexpr std::size_t error_bytes_kept = 64U << 10;

/// What the child reports through a pipe when it could not become the program.
struct Failure {
  int error_number = 0;
  char step = '?';
};

std::string_view name_of_step(char step) {
  switch (step) {
    case 'g':
      return "set its groups";
    case 'u':
      return "set its user";
    case 'd':
      return "set its parent-death signal";
    case 'f':
      return "set its descriptors";
    default:
      return "execute it";
  }
}

std::vector<char*> pointers_to(std::vector<std::string> const& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  // SAFETY: execve takes char* for history's sake and does not write.
  for (auto const& word : words)
    out.push_back(
        const_cast<char*>(word.c_str()));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  out.push_back(nullptr);
  return out;
}

/// Everything the child does before it is the program; all prepared by the parent, so that only
/// async-signal-safe calls are left here.
struct Child {
  Program const& program;
  char** argv;
  char** envp;
  int input, out, err, report;
  pid_t parent;

  [[noreturn]] void fail(char step) const {
    Failure const failure{errno, step};
    (void)!write(report, &failure, sizeof failure);
    _exit(127);
  }

  void become_user() const {
    if (!program.as) return;
    auto const& as = *program.as;
    if (setgroups(as.supplementary.size(), as.supplementary.data()) != 0) fail('g');
    if (setresgid(as.group, as.group, as.group) != 0) fail('g');
    if (setresuid(as.user, as.user, as.user) != 0) fail('u');
  }

  [[noreturn]] void run() const {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    std::signal(SIGPIPE, SIG_DFL);
    std::signal(SIGINT, SIG_DFL);
    if (program.own_session) setsid();
    become_user();
    // After the change of user, which clears it.
    if (program.signal_on_parent_death != 0) {
      if (prctl(PR_SET_PDEATHSIG, program.signal_on_parent_death) != 0) fail('d');
      if (getppid() != parent) _exit(127);  // the parent died before the line above
    }
    if (dup2(input, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) fail('f');
    if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) != 0) fail('f');
    if (chdir("/") != 0) fail('x');
    umask(022);
    execve(argv[0], argv, envp);
    fail('x');
  }
};

struct Pipe {
  os::Fd read;
  os::Fd write;
};

base::Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  return Pipe{os::Fd(ends[0]), os::Fd(ends[1])};
}

/// A descriptor above 2, so that the child's dup2 calls cannot overwrite one that is still needed.
base::Result<os::Fd> lifted(os::FdRef from) {
  int const fd = fcntl(from.get(), F_DUPFD_CLOEXEC, 10);
  if (fd < 0) return base::fail_errno("duplicate a descriptor");
  return os::Fd(fd);
}

int reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Feeds complete lines to `sink`, keeps the rest.
void take_lines(std::string& pending,
                std::string_view bytes,
                std::function<void(std::string_view)> const& sink) {
  if (!sink) return;
  pending.append(bytes);
  std::size_t start = 0;
  for (auto end = pending.find_first_of("\n\r"); end != std::string::npos;
       end = pending.find_first_of("\n\r", start)) {
    if (end > start) sink(std::string_view(pending).substr(start, end - start));
    start = end + 1;
  }
  pending.erase(0, start);
}

}  // namespace

base::Result<Started> start_program(Program const& program, os::FdRef out, os::FdRef err) {
  auto argv = pointers_to(program.arguments);
  auto envp = pointers_to(program.environment);
  auto report = make_pipe();
  if (!report) return base::passing(report);
  os::Fd const null_device(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_device) return base::fail_errno("open /dev/null");
  auto input = lifted(null_device);
  auto output = lifted(out);
  auto errors = lifted(err);
  auto reporter = lifted(report->write);
  if (!input || !output || !errors || !reporter) return base::fail_errno("duplicate descriptors");
  Child const child{program,
                    argv.data(),
                    envp.data(),
                    input->get(),
                    output->get(),
                    errors->get(),
                    reporter->get(),
                    getpid()};
  pid_t const pid = fork();
  if (pid < 0) return base::fail_errno("fork");
  if (pid == 0) child.run();
  report->write.reset();
  reporter->reset();
  Failure failure;
  ssize_t got = 0;
  do {
    got = read(report->read.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got != 0) {
    reap(pid);
    if (got != sizeof failure) failure = {EIO, 'x'};
    return base::fail_errno(
        failure.error_number,
        fmt::format("start {}: {}", program.arguments[0], name_of_step(failure.step)));
  }
  os::Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    auto failed = base::fail_errno("open a pidfd");
    kill(pid, SIGKILL);
    reap(pid);
    return failed;
  }
  return Started{pid, std::move(pidfd)};
}

base::Result<Outcome> run_program(Program const& program,
                                  std::function<void(std::string_view)> on_error_line) {
  auto out = make_pipe();
  auto err = make_pipe();
  if (!out || !err) return base::fail_errno("make pipes");
  auto started = start_program(program, out->write, err->write);
  out->write.reset();
  err->write.reset();
  if (!started) return base::passing(started);
  Outcome outcome;
  std::string pending;
  std::array<pollfd, 2> waits{{{out->read.get(), POLLIN, 0}, {err->read.get(), POLLIN, 0}}};
  std::array<char, 16384> buffer{};
  while (waits[0].fd >= 0 || waits[1].fd >= 0) {
    if (poll(waits.data(), waits.size(), -1) < 0) continue;  // EINTR
    for (auto& wait : waits) {
      if (wait.fd < 0 || wait.revents == 0) continue;
      auto const got = read(wait.fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        wait.fd = -1;
        continue;
      }
      std::string_view const bytes(buffer.data(), static_cast<std::size_t>(got));
      if (&wait == &waits[0]) {
        outcome.out.append(bytes);
        if (outcome.out.size() > output_bytes_max) kill(started->pid, SIGKILL);
      } else {
        outcome.err.append(bytes);
        if (outcome.err.size() > 2 * error_bytes_kept)
          outcome.err.erase(0, outcome.err.size() - error_bytes_kept);
        take_lines(pending, bytes, on_error_line);
      }
    }
  }
  outcome.exit_code = reap(started->pid);
  if (outcome.out.size() > output_bytes_max)
    return base::fail(base::Code::too_large, program.arguments[0] + " wrote too much");
  return outcome;
}

base::Result<std::string> run_checked(std::vector<std::string> arguments) {
  Program program{.arguments = std::move(arguments), .environment = plain_environment(), .as = {}};
  auto outcome = run_program(program);
  if (!outcome) return base::passing(outcome);
  if (outcome->exit_code == 0) return std::move(outcome->out);
  std::string_view text = outcome->err;
  while (text.ends_with('\n'))
    text.remove_suffix(1);
  auto const line = text.substr(text.rfind('\n') + 1);
  return base::fail(base::Code::internal,
                    fmt::format("{} ended with {}: {}",
                                program.arguments[0],
                                outcome->exit_code,
                                line.empty() ? "no message" : line),
                    outcome->err);
}

std::vector<std::string> plain_environment() {
  return {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
          "LC_ALL=C.UTF-8",
          "HOME=/"};
}

std::string find_program(std::string_view name) {
  for (std::string_view const directory :
       {"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/", "/usr/local/sbin/", "/usr/local/bin/"}) {
    auto path = std::string(directory).append(name);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

}  // namespace cli
