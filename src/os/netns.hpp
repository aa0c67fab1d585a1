#pragma once

#include "os/fd.hpp"

#include <string>

namespace os {

/// The thread works in another network namespace from construction to destruction: sockets made
/// meanwhile belong there for ever. Only for programs with one thread, or threads that do nothing
/// else. When the way back fails the process aborts: going on in a tenant's namespace would be
/// worse than a restart.
class InNetns {
 public:
  /// In the namespace that `netns` refers to.
  static base::Result<InNetns> enter(FdRef netns);
  /// In a new, empty one.
  static base::Result<InNetns> make();

  InNetns(InNetns&& from) noexcept = default;
  InNetns& operator=(InNetns&&) = delete;
  ~InNetns();

  /// A descriptor of the namespace the thread is in now.
  static base::Result<Fd> current();

 private:
  explicit InNetns(Fd home) : home_(std::move(home)) {}

  Fd home_;
};

/// Makes `directory` a mount of its own with private propagation, so that namespaces can be pinned
/// in it and nothing of that spreads. Does nothing when it is one already.
base::Result<void> prepare_netns_directory(std::string const& directory);
/// The inverse, for a directory in which nothing is pinned any more.
void release_netns_directory(std::string const& directory);
/// Pins a namespace to a file. The mount is the commit point: a file without one is debris.
base::Result<void> pin_netns(FdRef netns, std::string const& path);
/// Opens a pinned namespace. not_found when the file is missing or nothing is mounted on it.
base::Result<Fd> open_pinned_netns(std::string const& path);
/// Removes mount and file; also what a killed pin_netns left. Other mount namespaces lose their
/// copies too, because removing the file detaches them.
base::Result<void> unpin_netns(std::string const& path);

}  // namespace os
