#include "agent/files_write.hpp"

#include "agent/filesystem_entry.hpp"
#include "agent/filesystem_tree.hpp"
#include "agent/path.hpp"

#include <sys/stat.h>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr mode_t new_file_mode = 0666;  // minus the umask
constexpr int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;

struct Opened {
  os::Fd file;
  bool created = false;
};

/// Tells a new file from an old one without a gap between the two questions.
FileResult<Opened> open_or_create(std::string const& path) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    os::Fd created(::open(path.c_str(), flags | O_CREAT | O_EXCL, new_file_mode));
    if (created) return Opened{std::move(created), true};
    if (errno != EEXIST) break;
    os::Fd existing(::open(path.c_str(), flags));
    if (existing) return Opened{std::move(existing), false};
    if (errno != ENOENT) break;
    // A dangling link, whose target may be created; or the file vanished just now.
    os::Fd target(::open(path.c_str(), flags | O_CREAT, new_file_mode));
    if (target) return Opened{std::move(target), true};
    if (errno != ENOENT && errno != EEXIST) break;
  }
  if (errno == EISDIR) return file_fail(EISDIR, fmt::format("path is a directory: {}", path));
  if (errno == ENXIO) return file_fail(EINVAL, fmt::format("path is not a regular file: {}", path));
  if (errno == ENOSPC || errno == EDQUOT)
    return file_fail(errno, "not enough inodes available: not enough disk space available");
  return file_fail_errno(errno, "open", path);
}

}  // namespace

FileResult<FileWriter> FileWriter::open(std::string path, User const& user) {
  if (path.ends_with('/')) {
    struct stat status{};
    bool const directory = ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
    return file_fail(EISDIR,
                     fmt::format("path {} a directory: {}", directory ? "is" : "names", path));
  }
  auto parents = ensure_directories(parent_of(path), user);
  if (!parents) return std::unexpected(parents.error());
  auto opened = open_or_create(path);
  if (!opened) return std::unexpected(opened.error());
  FileWriter writer(std::move(opened->file), std::move(path), opened->created);
  struct stat status{};
  if (::fstat(writer.file_.get(), &status) != 0)
    return file_fail_errno(errno, "look at", writer.path_);
  if (!S_ISREG(status.st_mode))
    return file_fail(EINVAL, fmt::format("path is not a regular file: {}", writer.path_));
  // EPERM: the agent is not root, which only tests are.
  if (::fchown(writer.file_.get(), user.uid, user.gid) != 0 && errno != EPERM) {
    auto failed = file_fail_errno(errno, "change the owner of", writer.path_);
    writer.discard();
    return failed;
  }
  // Emptying an empty file would tell watchers of a write that never was.
  if (status.st_size > 0 && ::ftruncate(writer.file_.get(), 0) != 0)
    return file_fail_errno(errno, "empty", writer.path_);
  return writer;
}

FileResult<void> FileWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    auto const written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_fail_errno(errno, "write", path_);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

FileResult<void> FileWriter::finish(std::map<std::string, std::string> const& metadata,
                                    std::optional<mode_t> mode) {
  // What an older file was told about its old content goes with that content.
  if (!metadata.empty() || !created_) {
    auto set = set_metadata(file_.get(), path_, metadata);
    if (!set) return set;
  }
  if (mode && ::fchmod(file_.get(), *mode) != 0)
    return file_fail_errno(errno, "change the mode of", path_);
  // Some file systems report a full disk only here.
  if (::close(file_.release()) != 0 && errno != EINTR)
    return file_fail_errno(errno, "write", path_);
  return {};
}

void FileWriter::discard() noexcept {
  file_.reset();
  if (std::exchange(created_, false)) ::unlink(path_.c_str());
}

}  // namespace agent
