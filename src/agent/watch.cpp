#include "agent/watch.hpp"

#include "agent/path.hpp"

#include <linux/magic.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include <boost/json/object.hpp>
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::uint32_t event_mask = IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM |
                                     IN_MOVED_TO | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF;
constexpr std::string_view lost_events =
    "events were lost: more changed than could be kept; list the directory to see what is there "
    "now";
constexpr std::string_view too_many =
    "too many directories to watch: watch a smaller tree, or remove other watchers";

/// Changes made by another machine are not seen there, so a watch would be a promise we cannot
/// keep.
bool is_network_file_system(std::string const& path) {
  constexpr std::array<long, 9> network{0x6969 /* NFS */,
                                        0xFF534D42 /* CIFS */,
                                        0xFE534D42 /* SMB2 */,
                                        0x517B /* SMB */,
                                        0x65735546 /* FUSE */,
                                        0x01021997 /* 9P */,
                                        0x00C36400 /* CEPH */,
                                        0x5346414F /* AFS */,
                                        0x73757245 /* CODA */};
  struct statfs status{};
  if (::statfs(path.c_str(), &status) != 0) return false;
  auto const type = static_cast<long>(status.f_type) & 0xFFFFFFFFL;
  return std::ranges::find(network, type) != network.end();
}

/// Thousands of directories in which inotify sees nothing.
bool is_kernel_file_system(std::string const& path) {
  struct statfs status{};
  if (::statfs(path.c_str(), &status) != 0) return false;
  auto const type = static_cast<long>(status.f_type);
  return type == PROC_SUPER_MAGIC || type == SYSFS_MAGIC || type == CGROUP_SUPER_MAGIC ||
         type == CGROUP2_SUPER_MAGIC;
}

std::string below(std::string const& directory, std::string_view file) {
  return directory.empty() ? std::string(file) : directory + "/" + std::string(file);
}

std::string_view name_of(WatchEventKind kind) {
  switch (kind) {
    case WatchEventKind::create:
      return "EVENT_TYPE_CREATE";
    case WatchEventKind::write:
      return "EVENT_TYPE_WRITE";
    case WatchEventKind::remove:
      return "EVENT_TYPE_REMOVE";
    case WatchEventKind::rename:
      return "EVENT_TYPE_RENAME";
    case WatchEventKind::chmod:
      return "EVENT_TYPE_CHMOD";
  }
  return "EVENT_TYPE_UNSPECIFIED";
}

}  // namespace

json::object json_of(WatchEvent const& event, OwnerNames const& names) {
  json::object object;
  object["name"] = as_utf8(event.name);
  object["type"] = name_of(event.kind);
  if (event.entry) object["entry"] = json_of(*event.entry, names);
  return object;
}

Watch::Watch(std::string root, WatchOptions options, os::Fd inotify)
    : root_(std::move(root)), options_(options), inotify_(std::move(inotify)) {}

Watch::~Watch() = default;

FileResult<std::unique_ptr<Watch>> Watch::open(std::string path, WatchOptions options) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return file_fail(ENOENT, fmt::format("path {} not found", path));
    return file_fail_errno(errno, "look at", path);
  }
  if (!S_ISDIR(status.st_mode))
    return file_fail(ENOTDIR, fmt::format("path {} not a directory", path));
  if (!options.allow_network_mounts && is_network_file_system(path))
    return file_fail(EINVAL, fmt::format("cannot watch path on network filesystem: {}", path));
  os::Fd inotify(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!inotify) return file_fail(EMFILE, "too many watchers in this sandbox; remove some");
  std::unique_ptr<Watch> watch(new Watch(clean_path(path), options, std::move(inotify)));
  auto started = watch->start();
  if (!started) return std::unexpected(started.error());
  return watch;
}

FileResult<void> Watch::start() {
  auto const error = options_.recursive ? add_tree("", Found::at_start) : add_one("");
  if (error == ENOSPC) return file_fail(ENOMEM, std::string(too_many));
  if (error != 0) return file_fail_errno(error, "watch", root_);
  return {};
}

std::string Watch::path_of(std::string const& name) const {
  if (name.empty() || name == ".") return root_;
  return root_ == "/" ? "/" + name : root_ + "/" + name;
}

/// 0 or an error number. Watching a directory that is watched already (it was renamed) only
/// corrects its name.
int Watch::add_one(std::string const& name) {
  if (names_.size() >= directories_max) return ENOSPC;
  // The root may be given as a link; below it links are not followed.
  std::uint32_t const how =
      IN_ONLYDIR | (name.empty() ? 0U : static_cast<std::uint32_t>(IN_DONT_FOLLOW));
  int const watch = ::inotify_add_watch(inotify_.get(), path_of(name).c_str(), event_mask | how);
  if (watch < 0) return errno;
  if (auto const known = names_.find(watch); known != names_.end()) watches_.erase(known->second);
  names_[watch] = name;
  watches_[name] = watch;
  return 0;
}

/// The directory and all below. An error number of the first; what fails below it is left out, but
/// for the limit.
int Watch::add_tree(std::string const& name, Found found) {
  auto const first = add_one(name);
  if (first != 0) return first;
  std::vector<std::string> open{name};
  while (!open.empty()) {
    auto const directory = std::move(open.back());
    open.pop_back();
    auto const error = scan(directory, watches_[directory], found, open);
    if (error != 0) return error;
  }
  return 0;
}

/// Adds the directories in `name` to `below_it` and watches them. ENOSPC at the limit, else 0.
int Watch::scan(std::string const& name,
                int watch,
                Found found,
                std::vector<std::string>& below_it) {
  struct Close {
    void operator()(DIR* stream) const noexcept { ::closedir(stream); }
  };

  auto const path = path_of(name);
  struct stat here{};
  std::unique_ptr<DIR, Close> const stream(::opendir(path.c_str()));
  if (!stream || ::fstat(::dirfd(stream.get()), &here) != 0) return 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
  while (auto const* one = ::readdir(stream.get())) {
    std::string const file(one->d_name);
    if (file == "." || file == "..") continue;
    if (found == Found::at_start && one->d_type != DT_DIR && one->d_type != DT_UNKNOWN) continue;
    struct stat status{};
    if (::fstatat(::dirfd(stream.get()), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    auto const child = below(name, file);
    if (found == Found::later)
      report_found(child, watch, file, S_ISREG(status.st_mode) && status.st_size > 0);
    if (!S_ISDIR(status.st_mode) || root_.size() + child.size() + 2 > PATH_MAX) continue;
    if (status.st_dev != here.st_dev && !may_enter(path_of(child))) continue;
    auto const error = add_one(child);
    if (error == ENOSPC) return error;
    if (error == 0) below_it.push_back(child);
  }
  return 0;
}

/// Whether to go on into another file system that is mounted below.
bool Watch::may_enter(std::string const& path) const {
  if (is_kernel_file_system(path)) return false;
  return options_.allow_network_mounts || !is_network_file_system(path);
}

void Watch::report_found(std::string const& name,
                         int watch,
                         std::string const& file,
                         bool has_content) {
  reported_[watch].insert(file);
  report(WatchEventKind::create, name);
  if (has_content) report(WatchEventKind::write, name);
}

void Watch::report(WatchEventKind kind, std::string name) {
  // A tree that was copied in at once may hold any number of files.
  if (queue_.size() >= queue_hard_max) {
    loss_ = lost_events;
    return;
  }
  WatchEvent event{kind, std::move(name), std::nullopt};
  bool const there = kind != WatchEventKind::remove && kind != WatchEventKind::rename;
  if (options_.include_entry && there) {
    if (auto entry = entry_of(path_of(event.name))) event.entry = *std::move(entry);
  }
  queue_.push_back(std::move(event));
}

void Watch::forget_tree(std::string const& name) {
  // "a" and "a/…", but not "a.txt", which sorts between them.
  auto const forget = [this](auto at) {
    ::inotify_rm_watch(inotify_.get(), at->second);
    names_.erase(at->second);
    reported_.erase(at->second);
    return watches_.erase(at);
  };
  if (auto const self = watches_.find(name); self != watches_.end()) forget(self);
  auto const prefix = name + "/";
  for (auto at = watches_.lower_bound(prefix);
       at != watches_.end() && at->first.starts_with(prefix);)
    at = forget(at);
}

void Watch::rename_tree(std::string const& from, std::string const& to) {
  std::vector<std::pair<std::string, int>> moved;
  auto const prefix = from + "/";
  if (auto const self = watches_.find(from); self != watches_.end()) moved.emplace_back(*self);
  for (auto at = watches_.lower_bound(prefix);
       at != watches_.end() && at->first.starts_with(prefix);
       ++at)
    moved.emplace_back(*at);
  for (auto const& [name, watch] : moved)
    watches_.erase(name);
  // What bore the new name before was replaced (an empty directory can be).
  forget_tree(to);
  for (auto const& [name, watch] : moved) {
    auto renamed = to + name.substr(from.size());
    names_[watch] = renamed;
    watches_[std::move(renamed)] = watch;
  }
}

Watch::Drained Watch::drain(std::size_t queue_max) {
  alignas(inotify_event) std::array<char, 32 * 1024> buffer;
  while (queue_.size() < queue_max) {
    auto const count = ::read(inotify_.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      // All that was in the queue when a scan reported something has passed.
      reported_.clear();
      return Drained::all;
    }
    for (std::size_t at = 0; at + sizeof(inotify_event) <= static_cast<std::size_t>(count);) {
      inotify_event event{};
      std::memcpy(&event, buffer.data() + at, sizeof event);
      auto const* file = buffer.data() + at + sizeof event;
      on_event(event, std::string_view(file, ::strnlen(file, event.len)));
      at += sizeof event + event.len;
    }
  }
  return Drained::until_full;
}

void Watch::on_event(inotify_event const& event, std::string_view file) {
  settle_move(event, file);
  if (event.mask & IN_Q_OVERFLOW) {
    loss_ = lost_events;
    return;
  }
  auto const known = names_.find(event.wd);
  if (known == names_.end()) return;
  if (event.mask & IN_IGNORED) {
    watches_.erase(known->second);
    names_.erase(known);
    return;
  }
  if (file.empty()) {
    on_own_event(known->second, event.mask);
    return;
  }
  auto const name = below(known->second, file);
  if (auto const scanned = reported_.find(event.wd); scanned != reported_.end()) {
    bool const repeats = event.mask & IN_CREATE;
    bool const leaves = event.mask & (IN_DELETE | IN_MOVED_FROM);
    auto const reported = (repeats || leaves) && scanned->second.erase(std::string(file)) > 0;
    if (reported && repeats) return;
  }
  if (event.mask & (IN_CREATE | IN_MOVED_TO)) report(WatchEventKind::create, name);
  if (event.mask & IN_MODIFY) report(WatchEventKind::write, name);
  if (event.mask & IN_ATTRIB) report(WatchEventKind::chmod, name);
  if (event.mask & IN_DELETE) report(WatchEventKind::remove, name);
  if (event.mask & IN_MOVED_FROM) report(WatchEventKind::rename, name);
  if (options_.recursive && (event.mask & IN_ISDIR)) on_directory(event, name);
}

/// Of the root; what happens to a directory below is told by its parent's watch.
void Watch::on_own_event(std::string const& directory, std::uint32_t mask) {
  if (!directory.empty()) return;
  if (mask & IN_ATTRIB) report(WatchEventKind::chmod, ".");
  if (mask & IN_DELETE_SELF) report(WatchEventKind::remove, ".");
  if (mask & IN_MOVE_SELF) report(WatchEventKind::rename, ".");
}

void Watch::on_directory(inotify_event const& event, std::string const& name) {
  if (event.mask & IN_MOVED_FROM) moving_ = Moving{event.cookie, name};
  if (!(event.mask & (IN_CREATE | IN_MOVED_TO)) || watches_.contains(name)) return;
  // Moved in from outside as a whole: one event, as for a file. Made here: tell what is in it
  // already.
  auto const found = (event.mask & IN_CREATE) ? Found::later : Found::at_start;
  if (!may_enter(path_of(name))) return;
  if (add_tree(name, found) == ENOSPC) loss_ = too_many;
}

/// A directory that left its name either comes back with the very next event or is gone from the
/// tree.
void Watch::settle_move(inotify_event const& next, std::string_view file) {
  if (!moving_) return;
  auto const moving = *std::exchange(moving_, std::nullopt);
  auto const parent = names_.find(next.wd);
  bool const arrives =
      (next.mask & IN_MOVED_TO) && next.cookie == moving.cookie && parent != names_.end();
  if (arrives) {
    rename_tree(moving.name, below(parent->second, file));
  } else {
    forget_tree(moving.name);
  }
}

std::optional<WatchEvent> Watch::take() {
  if (queue_.empty()) return std::nullopt;
  auto event = std::move(queue_.front());
  queue_.pop_front();
  return event;
}

std::optional<std::string> Watch::take_loss() {
  return std::exchange(loss_, std::nullopt);
}

}  // namespace agent
