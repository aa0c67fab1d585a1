#pragma once

#include "agent/filesystem_entry.hpp"
#include "os/fd.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

struct inotify_event;

namespace agent {

enum class WatchEventKind : std::uint8_t { create, write, remove, rename, chmod };

struct WatchEvent {
  WatchEventKind kind = WatchEventKind::create;
  std::string name;            // relative to the watched directory; "." is the directory itself
  std::optional<Entry> entry;  // of what is there when the event is read, if asked for
};

json::object json_of(WatchEvent const& event, OwnerNames const& names);

struct WatchOptions {
  bool recursive = false;
  bool include_entry = false;
  bool allow_network_mounts = false;
};

/// The changes below one directory, by inotify. Blocking and without a thread of its own: whoever
/// has the descriptor readable calls drain(). One thread at a time.
///
/// A recursive watch follows directories that come later. What was put into such a directory before
/// we got to it is reported as if we had seen it: CREATE for everything, WRITE for files with
/// content; nothing twice.
class Watch {
 public:
  static constexpr std::size_t directories_max = 65'536;
  static constexpr std::size_t queue_hard_max = 65'536;

  /// ENOENT, ENOTDIR; EINVAL for a network file system that was not allowed; ENOSPC-like when the
  /// kernel's or our limit of watched directories is reached.
  static FileResult<std::unique_ptr<Watch>> open(std::string path, WatchOptions options);
  ~Watch();
  Watch(Watch const&) = delete;
  Watch& operator=(Watch const&) = delete;

  os::Fd const& descriptor() const noexcept { return inotify_; }

  enum class Drained : bool { all, until_full };
  /// Takes what the kernel has ready until nothing is left or `queue_max` events wait here; the
  /// rest stays in the kernel, whose own queue is bounded, too.
  Drained drain(std::size_t queue_max);
  std::optional<WatchEvent> take();

  bool empty() const noexcept { return queue_.empty(); }

  /// What was lost for good, as a sentence for the client; asked once, after take() has nothing
  /// more.
  std::optional<std::string> take_loss();

 private:
  Watch(std::string root, WatchOptions options, os::Fd inotify);

  struct Moving {
    std::uint32_t cookie;
    std::string name;
  };
  enum class Found : bool { at_start, later };

  FileResult<void> start();
  std::string path_of(std::string const& name) const;
  int add_one(std::string const& name);
  int add_tree(std::string const& name, Found found);
  int scan(std::string const& name, int watch, Found found, std::vector<std::string>& below);
  bool may_enter(std::string const& path) const;
  void forget_tree(std::string const& name);
  void rename_tree(std::string const& from, std::string const& to);
  void on_event(inotify_event const& event, std::string_view file);
  void on_own_event(std::string const& directory, std::uint32_t mask);
  void on_directory(inotify_event const& event, std::string const& name);
  void settle_move(inotify_event const& next, std::string_view file);
  void report(WatchEventKind kind, std::string name);
  void report_found(std::string const& name, int watch, std::string const& file, bool has_content);

  std::string root_;
  WatchOptions options_;
  os::Fd inotify_;
  std::map<int, std::string> names_;    // watch descriptor → directory, "" for the root
  std::map<std::string, int> watches_;  // the inverse
  std::deque<WatchEvent> queue_;
  std::optional<std::string> loss_;
  /// A directory that was renamed away; whether it comes back under another name tells the next
  /// event.
  std::optional<Moving> moving_;
  /// Reported from a scan while the kernel may hold the same CREATE; empty once the kernel's queue
  /// was seen empty.
  std::map<int, std::set<std::string>> reported_;
};

}  // namespace agent
