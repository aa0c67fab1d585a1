#include "cli/log_file.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

namespace cli {

void LogFile::open_again() noexcept {
  file_ = os::Fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0640));
  struct stat status{};
  size_ = file_ && fstat(file_.get(), &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
}

void LogFile::rotate() noexcept {
  file_.reset();
  for (int generation = 3; generation > 1; --generation) {
    (void)std::rename(fmt::format("{}.{}", path_, generation - 1).c_str(),
                      fmt::format("{}.{}", path_, generation).c_str());
  }
  (void)std::rename(path_.c_str(), (path_ + ".1").c_str());
}

void LogFile::append(std::string_view bytes) noexcept {
  if (size_ + bytes.size() > bytes_max_ && size_ > 0) rotate();
  if (!file_) open_again();
  while (!bytes.empty()) {
    auto const wrote = file_ ? write(file_.get(), bytes.data(), bytes.size()) : -1;
    if (wrote < 0 && file_ && errno == EINTR) continue;
    if (wrote <= 0) {
      lost_ += bytes.size();
      return;
    }
    size_ += static_cast<std::size_t>(wrote);
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace cli
