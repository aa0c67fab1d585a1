#include "os/process.hpp"

#include "os/text_file.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>

#include <poll.h>
#include <unistd.h>

namespace os {

base::Result<Fd> open_process(pid_t pid) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return base::fail_errno("open a process");
  return pidfd;
}

bool has_ended(FdRef pidfd) {
  pollfd waited{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, 0) == 1;
}

std::optional<uid_t> user_of_process(pid_t pid) {
  auto const text = read_text(fmt::format("/proc/{}/status", pid));
  if (!text) return std::nullopt;
  auto const at = text->find("\nUid:\t");
  uid_t user = 0;
  if (at == std::string::npos || std::sscanf(text->c_str() + at, "\nUid:\t%u", &user) != 1)
    return std::nullopt;  // NOLINT(cert-err34-c)
  return user;
}

std::optional<int> try_collect(pid_t child) {
  int status = 0;
  pid_t const got = ::waitpid(child, &status, WNOHANG);
  if (got == child) return status;
  if (got < 0 && errno == ECHILD) return -1;
  return std::nullopt;
}

}  // namespace os
