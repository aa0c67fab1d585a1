#include "base/fault.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace base {
namespace {

char const* fault_file() noexcept {
  static char const* const path = std::getenv("SPACE_FAULT_FILE");  // NOLINT(concurrency-mt-unsafe)
  return path;
}

/// Takes the first line for `point` out of the file, "" when there is none. Locked: several
/// processes share it.
std::string take_line(char const* point) {
  int const fd = ::open(fault_file(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return {};
  std::string taken;
  if (::flock(fd, LOCK_EX) == 0) {
    std::string text(65536, '\0');
    auto const got = ::pread(fd, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    auto const wanted = std::string(point) + " ";
    for (std::size_t at = 0; at < text.size();) {
      auto const end = std::min(text.find('\n', at), text.size());
      if (text.compare(at, wanted.size(), wanted) == 0) {
        taken = text.substr(at, end - at);
        text.erase(at, end - at + 1);
        if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0)
          std::perror("fault file");
        break;
      }
      at = end + 1;
    }
  }
  ::close(fd);
  return taken;
}

}  // namespace

bool fault_point(char const* point) noexcept {
  if (!fault_file()) return false;
  try {
    auto const line = take_line(point);
    if (line.empty()) return false;
    auto const action = line.substr(std::string(point).size() + 1);
    if (action == "kill") {
      ::raise(SIGKILL);
      ::_exit(
          137);  // PID 1, which the kernel does not let be killed by a signal of its own machine
    }
    if (action.starts_with("delay "))
      ::poll(nullptr, 0, std::atoi(action.c_str() + 6));  // NOLINT(cert-err34-c)
    return action == "fail";
  } catch (...) {
    return false;
  }
}

}  // namespace base
