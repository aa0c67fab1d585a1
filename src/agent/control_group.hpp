#pragma once

#include "os/fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agent {

/// A command's own control group (version 2): whatever it starts stays in it, also what left its
/// session or lost its parent. Without one (see ControlGroups) it is empty and kill() looks for
/// descendants.
class ControlGroup {
 public:
  ControlGroup() = default;

  ControlGroup(std::string path, os::Fd directory)
      : path_(std::move(path)), directory_(std::move(directory)) {}

  explicit operator bool() const noexcept { return static_cast<bool>(directory_); }

  int directory() const noexcept { return directory_.get(); }

  std::string const& path() const noexcept { return path_; }

  /// SIGKILL to all members at once; forks cannot outrun it. False when the kernel refuses.
  bool kill() const noexcept;
  /// How many members the kernel has killed because memory ran out.
  std::uint64_t out_of_memory_kills() const noexcept;

 private:
  std::string path_;
  os::Fd directory_;
};

/// Makes and removes the groups of commands below one directory.
class ControlGroups {
 public:
  /// `root` is where cgroup2 is mounted; "" or a failure makes none: all groups are empty then.
  /// That is so on test hosts, whose control groups are version 1 or not ours.
  explicit ControlGroups(std::string const& root);

  ControlGroup make();
  /// Takes a group whose command has ended: removed now, or once its last background process is
  /// gone.
  void retire(ControlGroup group);
  /// Tries again to remove retired groups.
  void sweep();

  bool available() const noexcept { return !base_.empty(); }

 private:
  /// A fork bomb ends at its own command: neither the agent nor the next command is refused a
  /// process.
  void limit_processes();

  std::string base_;
  std::string processes_each_;  // "" = no limit
  std::uint64_t next_ = 1;
  std::vector<std::string> retired_;
};

/// SIGKILL to `leader` and all its descendants and everybody in its session, found in /proc. For
/// hosts without control groups: a process that left the session *and* lost its parent escapes,
/// which is why the guest has them.
void kill_descendants(pid_t leader) noexcept;

}  // namespace agent
