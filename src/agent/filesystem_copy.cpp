#include "agent/filesystem_copy.hpp"

#include "agent/filesystem_entry.hpp"
#include "agent/filesystem_tree.hpp"
#include "agent/path.hpp"
#include "base/id.hpp"
#include "os/fd.hpp"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <climits>
#include <memory>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

FileResult<void> copy_node(std::string const& from, std::string const& to);

/// Owner, mode (after the owner, whose change clears set-id bits) and times are kept.
FileResult<void> copy_attributes(std::string const& to, struct stat const& status) {
  if (::lchown(to.c_str(), status.st_uid, status.st_gid) != 0 && errno != EPERM)
    return file_fail_errno(errno, "change the owner of", to);
  if (!S_ISLNK(status.st_mode) && ::chmod(to.c_str(), status.st_mode & 07777U) != 0)
    return file_fail_errno(errno, "change the mode of", to);
  timespec const times[2] = {status.st_atim, status.st_mtim};
  if (::utimensat(AT_FDCWD, to.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
    return file_fail_errno(errno, "set the times of", to);
  return {};
}

FileResult<void> copy_regular(std::string const& from, std::string const& to) {
  os::Fd source(::open(from.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!source) return file_fail_errno(errno, "open", from);
  os::Fd target(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!target) return file_fail_errno(errno, "create", to);
  auto copied = copy_content(source.get(), target.get(), to);
  if (!copied) return copied;
  auto const metadata = metadata_of(from);
  if (metadata.empty()) return {};
  return set_metadata(target.get(), to, metadata);
}

FileResult<void> copy_link(std::string const& from, std::string const& to) {
  std::array<char, PATH_MAX> text{};
  auto const size = ::readlink(from.c_str(), text.data(), text.size() - 1);
  if (size < 0) return file_fail_errno(errno, "read the link", from);
  if (::symlink(text.data(), to.c_str()) != 0) return file_fail_errno(errno, "make the link", to);
  return {};
}

FileResult<void> copy_directory(std::string const& from, std::string const& to) {
  if (::mkdir(to.c_str(), 0700) != 0) return file_fail_errno(errno, "make the directory", to);

  struct Close {
    void operator()(DIR* stream) const noexcept { ::closedir(stream); }
  };

  std::vector<std::string> names;
  {
    std::unique_ptr<DIR, Close> const stream(::opendir(from.c_str()));
    if (!stream) return file_fail_errno(errno, "open", from);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
    while (auto const* one = ::readdir(stream.get()))
      names.emplace_back(one->d_name);
  }
  for (auto const& name : names) {
    if (name == "." || name == "..") continue;
    // The length of a path bounds the recursion, too.
    if (from.size() + name.size() + 1 >= PATH_MAX || to.size() + name.size() + 1 >= PATH_MAX)
      return file_fail(ENAMETOOLONG, fmt::format("a path below '{}' is too long", from));
    auto copied = copy_node(from + "/" + name, to + "/" + name);
    if (!copied) return copied;
  }
  return {};
}

FileResult<void> copy_node(std::string const& from, std::string const& to) {
  struct stat status{};
  if (::lstat(from.c_str(), &status) != 0) return file_fail_errno(errno, "look at", from);
  FileResult<void> copied;
  if (S_ISREG(status.st_mode)) {
    copied = copy_regular(from, to);
  } else if (S_ISDIR(status.st_mode)) {
    copied = copy_directory(from, to);
  } else if (S_ISLNK(status.st_mode)) {
    copied = copy_link(from, to);
  } else if (S_ISFIFO(status.st_mode)) {
    if (::mkfifo(to.c_str(), 0600) != 0) copied = file_fail_errno(errno, "make the pipe", to);
  } else {
    copied = file_fail(
        EOPNOTSUPP,
        fmt::format("'{}' is a socket or device and cannot move to another file system", from));
  }
  if (!copied) return copied;
  return copy_attributes(to, status);
}

}  // namespace

FileResult<void> copy_across(std::string const& source, std::string const& destination) {
  auto const parent = parent_of(destination);
  auto const temporary =
      fmt::format("{}/.space-move-{}", parent == "/" ? "" : parent, base::random_hex(8));
  auto copied = copy_node(clean_path(source), temporary);
  if (copied && ::rename(temporary.c_str(), clean_path(destination).c_str()) != 0)
    copied = file_fail_errno(errno, "move", source);
  if (!copied) {
    auto const removed = remove_tree(temporary);
    static_cast<void>(removed);  // the first failure is the one to report
  }
  return copied;
}

FileResult<void> copy_content(int from, int to, std::string const& path) {
  constexpr std::size_t step = 1 << 20;
  for (;;) {
    auto const moved = ::copy_file_range(from, nullptr, to, nullptr, step, 0);
    if (moved == 0) break;
    if (moved > 0 || errno == EINTR) continue;
    if (errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS)
      return file_fail_errno(errno, "write", path);
    break;
  }
  // Some file systems report the end at once (those below /proc) or do not copy in the kernel: read
  // on to be sure.
  std::vector<char> buffer(64 * 1024);
  for (;;) {
    auto const count = ::read(from, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return file_fail_errno(errno, "read", path);
    if (count == 0) return {};
    for (ssize_t written = 0; written < count;) {
      auto const more =
          ::write(to, buffer.data() + written, static_cast<std::size_t>(count - written));
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return file_fail_errno(errno, "write", path);
      written += more;
    }
  }
}

}  // namespace agent
