#pragma once

#include "base/result.hpp"
#include "os/fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace agent {

/// The real-time priority of a protected agent. Its children run one below it until they have
/// exec'ed, or else a machine full of running processes would not let them, and the waiting agent,
/// get anywhere.
inline constexpr int agent_priority = 2;

/// What a new process is made of. The descriptors are borrowed.
struct SpawnPlan {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH of `env` unless it holds a slash
  std::vector<std::string> env;   // "NAME=value"
  std::string cwd;                // absolute
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  int input = -1;
  int output = -1;
  int error = -1;
  bool terminal = false;   // `input` is a terminal and becomes the controlling one
  int control_group = -1;  // an open directory of cgroup v2: the child starts in it
  bool clone3 = true;  // false: the way of older kernels, which is otherwise taken when they refuse
  bool reset_oom_score = false;
  bool reset_real_time = false;
};

enum class SpawnStage : std::uint8_t {
  none,
  fork,
  control_group,
  session,
  terminal,
  descriptors,
  identity,
  directory,
  exec
};

struct SpawnFailure {
  SpawnStage stage = SpawnStage::none;
  int error_number = 0;
};

/// Starts a process in a session of its own, with default signal handling, nothing blocked, and no
/// descriptor but 0, 1 and 2. Returns once it runs the new program, or with what failed (nothing is
/// left then). The caller registers the pid with the reaper before it gives the loop back.
///
/// Like vfork: the child borrows our memory and this thread waits until it has exec'ed, so nothing
/// is copied however large we are, and the child reports its failure by writing into our memory.
std::variant<pid_t, SpawnFailure> spawn(SpawnPlan const& plan);

}  // namespace agent
