#include "agent/control_group.hpp"

#include "agent/small_files.hpp"
#include "base/log.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <optional>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

std::optional<pid_t> number_of(std::string_view text) {
  pid_t number = 0;
  auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

struct Kin {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  bool zombie = false;
};

/// "pid (name) state ppid pgrp session …"; the name may hold anything, so the last parenthesis
/// counts.
std::optional<Kin> kin_of(pid_t pid) {
  auto const stat = read_small_file("/proc/" + std::to_string(pid) + "/stat");
  if (!stat) return std::nullopt;
  auto const close = stat->rfind(')');
  if (close == std::string::npos) return std::nullopt;
  char state = 0;
  int parent = 0;
  int session = 0;
  if (std::sscanf(stat->c_str() + close, ") %c %d %*d %d", &state, &parent, &session) != 3)
    return std::nullopt;
  return Kin{pid, parent, session, state == 'Z'};
}

std::vector<Kin> all_processes() {
  std::vector<Kin> out;
  auto* proc = ::opendir("/proc");
  if (!proc) return out;
  while (auto const* entry = ::readdir(proc)) {
    auto const pid = number_of(entry->d_name);
    if (!pid) continue;
    if (auto const kin = kin_of(*pid)) out.push_back(*kin);
  }
  ::closedir(proc);
  return out;
}

bool contains(std::vector<pid_t> const& pids, pid_t pid) {
  return std::ranges::find(pids, pid) != pids.end();
}

/// The leader, its session and everybody's descendants, of those that still run.
std::vector<pid_t> living_kin(pid_t leader) {
  auto const everybody = all_processes();
  std::vector<pid_t> family{leader};
  std::vector<pid_t> living;
  for (bool again = true; again;) {
    again = false;
    for (auto const& one : everybody) {
      bool const ours = one.pid == leader || one.session == leader || contains(family, one.parent);
      if (!ours || (one.pid != leader && contains(family, one.pid))) continue;
      if (one.pid != leader) {
        family.push_back(one.pid);
        again = true;
      }
      if (!one.zombie && !contains(living, one.pid)) living.push_back(one.pid);
    }
  }
  return living;
}

}  // namespace

bool ControlGroup::kill() const noexcept {
  os::Fd const file(::openat(directory_.get(), "cgroup.kill", O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), "1", 1) == 1;
}

std::uint64_t ControlGroup::out_of_memory_kills() const noexcept {
  os::Fd const file(::openat(directory_.get(), "memory.events", O_RDONLY | O_CLOEXEC));
  char text[512];
  auto const got = file ? ::read(file.get(), text, sizeof text - 1) : 0;
  if (got <= 0) return 0;
  text[got] = '\0';
  constexpr std::string_view key = "\noom_kill ";
  auto const* line = std::strstr(text, key.data());
  return line ? std::strtoull(line + key.size(), nullptr, 10) : 0;
}

ControlGroups::ControlGroups(std::string const& root) {
  if (root.empty()) return;
  // Only groups below the root may hold processes and have limits counted per child, hence a level
  // of ours. One by one, because a write is refused as a whole: what a kernel lacks is missing
  // alone.
  auto const controllers = {std::string_view("+memory"),  // counts out-of-memory kills
                            std::string_view("+pids"),    // ends a fork bomb
                            std::string_view("+cpu")};  // equal shares for commands, not processes
  std::string missing;
  for (auto const controller : controllers) {
    if (!write_kernel_file(root + "/cgroup.subtree_control", controller)) missing += controller;
  }
  auto const base = root + "/commands";
  if (::mkdir(base.c_str(), 0755) != 0 && errno != EEXIST) {
    base::log::warn("control_groups_missing", {{"what", std::strerror(errno)}});
    return;
  }
  for (auto const controller : controllers) {
    if (missing.find(controller) != std::string::npos) continue;
    if (!write_kernel_file(base + "/cgroup.subtree_control", controller)) missing += controller;
  }
  if (!missing.empty()) base::log::warn("controllers_missing", {{"which", missing}});
  base_ = base;
  limit_processes();
}

void ControlGroups::limit_processes() {
  // What the kernel can hold at all, from the machine's memory (512 MiB: about 3,700).
  auto const kernel = read_small_file("/proc/sys/kernel/threads-max");
  if (!kernel) return;
  auto const most = std::strtoull(kernel->c_str(), nullptr, 10);
  // A reserve for the agent's own threads and the kernel's; half of the rest for any one command,
  // so that the next one can start, look and kill.
  auto const all = most - most / 8;
  processes_each_ = std::to_string(std::max(all / 2, 64ULL));
  auto const limited =
      write_kernel_file(base_ + "/pids.max", std::to_string(std::max(all, 128ULL)));
  if (!limited) processes_each_.clear();  // the controller is missing, which was said
}

ControlGroup ControlGroups::make() {
  if (base_.empty()) return {};
  std::string path;
  int made = -1;
  // Names may be taken: a root of the guest can make groups too.
  for (int turn = 0; turn < 100 && made != 0; ++turn) {
    path = base_ + "/c" + std::to_string(next_++);
    made = ::mkdir(path.c_str(), 0755);
    if (made != 0 && errno != EEXIST) break;
  }
  if (made != 0) {
    // A root of the guest may have unmounted it. Commands still run.
    base::log::warn("control_group_not_made", {{"what", std::strerror(errno)}});
    return {};
  }
  os::Fd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return {};
  if (!processes_each_.empty() && !write_kernel_file(path + "/pids.max", processes_each_))
    base::log::warn("processes_not_limited", {{"what", std::strerror(errno)}});
  return {std::move(path), std::move(directory)};
}

void ControlGroups::retire(ControlGroup group) {
  sweep();
  if (!group) return;
  if (::rmdir(group.path().c_str()) != 0 && errno == EBUSY) retired_.push_back(group.path());
}

void ControlGroups::sweep() {
  std::erase_if(retired_, [](std::string const& path) {
    return ::rmdir(path.c_str()) == 0 || errno != EBUSY;
  });
}

void kill_descendants(pid_t leader) noexcept {
  // Rounds, because members may fork while we look. The leader is not reaped before we return, so
  // its number is still its own; of the others we have just seen the kin.
  constexpr int rounds_max = 10;
  for (int round = 0; round < rounds_max; ++round) {
    auto const doomed = living_kin(leader);
    if (doomed.empty()) return;
    for (auto const pid : doomed)
      ::kill(pid, SIGKILL);
  }
}

}  // namespace agent
