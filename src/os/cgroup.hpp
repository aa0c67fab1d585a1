#pragma once

#include "os/fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace os {

/// What a group may use; 0 = not limited. Swap is always off for a group with a memory limit.
struct GroupLimits {
  std::uint64_t memory_bytes = 0;
  std::uint32_t cpu_percent = 0;  // of one core: 150 is one and a half
  std::uint32_t pids = 0;
  // Of one block device, each direction. A second belt: on version 1 it sees only direct I/O and
  // reads.
  std::uint32_t device_major = 0;
  std::uint32_t device_minor = 0;
  std::uint64_t device_bytes_per_s = 0;
  std::uint64_t device_ops_per_s = 0;
};

enum GroupFeatures : std::uint32_t {
  group_memory = 1,
  group_cpu = 2,
  group_pids = 4,
  group_io = 8
};

/// Where the files of control groups lie: the kernel, or a fake tree in tests.
class GroupFiles {
 public:
  virtual ~GroupFiles() = default;
  /// True also when it exists already.
  virtual bool make_directory(std::string const& path) = 0;
  /// Succeeds also when it does not exist.
  virtual base::Result<void> remove_directory(std::string const& path) = 0;
  virtual bool exists(std::string const& path) = 0;
  virtual base::Result<void> write(std::string const& path, std::string const& value) = 0;
  /// "" when it cannot be read.
  virtual std::string read(std::string const& path) = 0;
  virtual std::vector<std::string> directories_in(std::string const& path) = 0;
  virtual void kill(pid_t pid) = 0;
};

std::unique_ptr<GroupFiles> kernel_group_files();

/// The control groups of one installation, `<instance>/<name>`, of version 2 or 1. Keeps no state:
/// what exists is asked of the kernel each time. Calls do not wait, except kill() on version 1 (100
/// ms at most).
class ControlGroups {
 public:
  virtual ~ControlGroups() = default;

  virtual int version() const = 0;
  /// What can be limited here (GroupFeatures). The rest is refused by nobody: the caller reports
  /// it.
  virtual std::uint32_t features() const = 0;
  /// Makes the group and sets its limits; fails when a limit that features() promises is not taken.
  virtual base::Result<void> make(std::string const& name, GroupLimits const& limits) = 0;
  /// Paths of the files to which a process writes "0" to join.
  virtual std::vector<std::string> doors(std::string const& name) const = 0;
  /// Directory for CLONE_INTO_CGROUP; "" on version 1.
  virtual std::string clone_directory(std::string const& name) const = 0;
  virtual std::vector<pid_t> members(std::string const& name) = 0;
  /// Sends SIGKILL to all members, those being forked included. They may take a while to be gone.
  virtual base::Result<void> kill(std::string const& name) = 0;
  /// How often the group's memory limit killed a process.
  virtual std::uint64_t out_of_memory_kills(std::string const& name) = 0;
  /// Fails while members are left (zombies count as gone). Succeeds when there is no such group.
  virtual base::Result<void> remove(std::string const& name) = 0;
  /// Names of the groups that exist, also those that a killed make() left half-made.
  virtual std::vector<std::string> list() = 0;
  /// Removes the installation's own group if nothing is in it.
  virtual void remove_parent() = 0;
};

/// `mountinfo`: text of /proc/self/mountinfo. Version 2 when it can limit memory, else what version
/// 1 has; a host with neither gives groups that limit nothing and find nothing, and features() says
/// so.
std::unique_ptr<ControlGroups> open_control_groups(std::string const& instance,
                                                   std::string const& mountinfo,
                                                   std::unique_ptr<GroupFiles> files);
/// For this host.
std::unique_ptr<ControlGroups> open_control_groups(std::string const& instance);

}  // namespace os
