#include "agent/filesystem_tree.hpp"

#include "agent/filesystem_copy.hpp"
#include "agent/path.hpp"
#include "os/fd.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <memory>
#include <optional>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr mode_t directory_mode = 0755;

FileResult<void> make_one(std::string const& path, User const& user) {
  if (::mkdir(path.c_str(), directory_mode) != 0) {
    // Another request may have made it a moment ago, which is as good.
    struct stat status{};
    auto const error = errno;
    if (error == EEXIST && ::stat(path.c_str(), &status) == 0) {
      if (S_ISDIR(status.st_mode)) return {};
      return file_fail(ENOTDIR, fmt::format("path is not a directory: {}", path));
    }
    return file_fail_errno(error, "make the directory", path);
  }
  // The group of a new entry may come from a set-group-id parent.
  if (::lchown(path.c_str(), user.uid, user.gid) != 0)
    return file_fail_errno(errno, "change the owner of", path);
  return {};
}

/// Takes a whole directory apart without recursion and without following anything: goes down by
/// openat, up by "..", and checks on the way up that it is where it came from (the tree may be
/// moved meanwhile).
class Remover {
 public:
  Remover(os::Fd top, std::string const& path) : at_(std::move(top)), path_(path) {}

  FileResult<void> run() {
    for (;;) {
      auto emptied = empty_here();
      if (!emptied) return std::unexpected(emptied.error());
      if (*emptied) {
        if (above_.empty()) return {};
        if (auto up = go_up(); !up) return up;
      }
    }
  }

 private:
  struct Level {
    std::string name;
    dev_t device;
    ino_t inode;
  };

  /// Removes what can be removed; true when nothing is left, false after going down into a
  /// directory.
  FileResult<bool> empty_here() {
    // A descriptor of its own for the stream: at_ stays usable for the *at calls.
    os::Fd again(::openat(at_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!again) return file_fail_errno(errno, "open a directory in", path_);

    struct Close {
      void operator()(DIR* stream) const noexcept { ::closedir(stream); }
    };

    std::unique_ptr<DIR, Close> const stream(::fdopendir(again.get()));
    if (!stream) return file_fail_errno(errno, "read a directory in", path_);
    static_cast<void>(again.release());
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
    while (auto const* one = ::readdir(stream.get())) {
      std::string const name(one->d_name);
      if (name == "." || name == "..") continue;
      if (::unlinkat(at_.get(), name.c_str(), 0) == 0 || errno == ENOENT) continue;
      if (errno != EISDIR && errno != EPERM)
        return file_fail_errno(errno, "remove a file in", path_);
      auto const refused = errno;
      if (::unlinkat(at_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) continue;
      if (errno == ENOTDIR) return file_fail_errno(refused, "remove a file in", path_);
      if (errno != ENOTEMPTY && errno != EEXIST)
        return file_fail_errno(errno, "remove a directory in", path_);
      return go_down(name);
    }
    return true;
  }

  FileResult<bool> go_down(std::string const& name) {
    struct stat here{};
    os::Fd below(
        ::openat(at_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below || ::fstat(at_.get(), &here) != 0)
      return file_fail_errno(errno, "open a directory in", path_);
    above_.push_back({name, here.st_dev, here.st_ino});
    at_ = std::move(below);
    return false;
  }

  FileResult<void> go_up() {
    auto const level = std::move(above_.back());
    above_.pop_back();
    os::Fd parent(::openat(at_.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat there{};
    if (!parent || ::fstat(parent.get(), &there) != 0)
      return file_fail_errno(errno, "open a directory in", path_);
    if (there.st_dev != level.device || there.st_ino != level.inode)
      return file_fail(EBUSY, fmt::format("'{}' was moved while it was being removed", path_));
    at_ = std::move(parent);
    if (::unlinkat(at_.get(), level.name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
    if (errno != ENOTEMPTY) return file_fail_errno(errno, "remove a directory in", path_);
    // Somebody fills it as fast as we empty it: not for ever, the thread belongs to everybody.
    if (++refilled_ > refilled_max)
      return file_fail(EBUSY, fmt::format("'{}' is filled again while it is being removed", path_));
    return {};
  }

  static constexpr int refilled_max = 1000;

  os::Fd at_;
  std::string path_;
  std::vector<Level> above_;
  int refilled_ = 0;
};

}  // namespace

FileResult<void> ensure_directories(std::string const& path, User const& user) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return {};
    return file_fail(ENOTDIR, fmt::format("path is not a directory: {}", path));
  }
  auto const clean = clean_path(path);
  for (std::size_t cut = clean.find('/', 1);; cut = clean.find('/', cut + 1)) {
    auto const prefix = clean.substr(0, cut);
    if (::stat(prefix.c_str(), &status) != 0) {
      auto made = make_one(prefix, user);
      if (!made) return made;
    } else if (!S_ISDIR(status.st_mode)) {
      return file_fail(ENOTDIR, fmt::format("path is not a directory: {}", prefix));
    }
    if (cut == std::string::npos) return {};
  }
}

FileResult<void> make_directory(std::string const& path,
                                User const& user,
                                std::optional<mode_t> mode) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode))
      return file_fail(EEXIST, fmt::format("directory already exists: {}", path));
    return file_fail(EINVAL,
                     fmt::format("path already exists but it is not a directory: {}", path));
  }
  auto made = ensure_directories(path, user);
  if (!made || !mode) return made;
  // By a descriptor that follows no link: the guest may have put another thing there meanwhile.
  os::Fd const directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory || ::fchmod(directory.get(), *mode) != 0)
    return file_fail_errno(errno, "change the mode of", path);
  return {};
}

FileResult<void> move_path(std::string const& source,
                           std::string const& destination,
                           User const& user) {
  struct stat status{};
  if (::lstat(source.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return file_fail(ENOENT, fmt::format("source file not found: {}", source));
    return file_fail_errno(errno, "look at", source);
  }
  auto parents = ensure_directories(parent_of(destination), user);
  if (!parents) return parents;
  if (::rename(source.c_str(), destination.c_str()) == 0) return {};
  if (errno == ENOENT) return file_fail(ENOENT, fmt::format("source file not found: {}", source));
  if (errno != EXDEV) return file_fail_errno(errno, "move", source);
  auto copied = copy_across(source, destination);
  if (!copied) return copied;
  return remove_tree(source);
}

FileResult<void> remove_tree(std::string const& path) {
  auto const clean = clean_path(path);
  if (clean == "/") return file_fail(EINVAL, "the root directory cannot be removed");
  if (::unlink(clean.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR) return {};
  auto const refused = errno;
  if (::rmdir(clean.c_str()) == 0 || errno == ENOENT) return {};
  if (errno != ENOTEMPTY && errno != EEXIST)
    return file_fail_errno(errno == ENOTDIR ? refused : errno, "remove", path);
  os::Fd top(::open(clean.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!top) return file_fail_errno(errno, "remove", path);
  auto emptied = Remover(std::move(top), path).run();
  if (!emptied) return emptied;
  if (::rmdir(clean.c_str()) != 0 && errno != ENOENT) return file_fail_errno(errno, "remove", path);
  return {};
}

}  // namespace agent
