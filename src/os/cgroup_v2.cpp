#include "os/cgroup_v2.hpp"

namespace os {

ControlGroupsV2::ControlGroupsV2(std::string root,
                                 std::string instance,
                                 std::unique_ptr<GroupFiles> files)
    : parent_(root + "/" + instance), files_(std::move(files)) {
  struct Controller {
    char const* name;
    std::uint32_t feature;
  };

  static constexpr Controller controllers[] = {
      {"memory", group_memory}, {"cpu", group_cpu}, {"pids", group_pids}, {"io", group_io}};
  if (!files_->make_directory(parent_)) return;
  for (auto const& controller : controllers) {
    // One by one: a controller that the host keeps to itself must not cost the others.
    std::string const wanted = std::string("+") + controller.name;
    auto passed_on = files_->write(root + "/cgroup.subtree_control", wanted);
    if (passed_on) passed_on = files_->write(parent_ + "/cgroup.subtree_control", wanted);
    if (passed_on) features_ |= controller.feature;
  }
}

base::Result<void> ControlGroupsV2::make(std::string const& name, GroupLimits const& limits) {
  auto const group = path_of(name);
  if (!files_->make_directory(group)) return base::fail_errno("make a control group", group);
  auto limited = limit(group, limits);
  if (!limited) {
    auto removed = files_->remove_directory(group);
    if (!removed) return base::passing(removed);
  }
  return limited;
}

base::Result<void> ControlGroupsV2::limit(std::string const& group, GroupLimits const& limits) {
  base::Result<void> done;
  if (limits.memory_bytes > 0 && (features_ & group_memory) != 0) {
    done = files_->write(group + "/memory.max", std::to_string(limits.memory_bytes));
    // A kernel without swap accounting has no such file, and then nothing to switch off.
    if (done && files_->exists(group + "/memory.swap.max"))
      done = files_->write(group + "/memory.swap.max", "0");
    if (done) done = files_->write(group + "/memory.oom.group", "1");
  }
  if (done && limits.cpu_percent > 0 && (features_ & group_cpu) != 0) {
    done =
        files_->write(group + "/cpu.max", fmt::format("{} 100000", limits.cpu_percent * 1000ULL));
  }
  if (done && limits.pids > 0 && (features_ & group_pids) != 0) {
    done = files_->write(group + "/pids.max", std::to_string(limits.pids));
  }
  bool const io = limits.device_bytes_per_s > 0 || limits.device_ops_per_s > 0;
  if (done && io && limits.device_major > 0 && (features_ & group_io) != 0) {
    auto line = fmt::format("{}:{}", limits.device_major, limits.device_minor);
    if (limits.device_bytes_per_s > 0)
      line += fmt::format(" rbps={0} wbps={0}", limits.device_bytes_per_s);
    if (limits.device_ops_per_s > 0)
      line += fmt::format(" riops={0} wiops={0}", limits.device_ops_per_s);
    done = files_->write(group + "/io.max", line);
  }
  return done;
}

std::vector<std::string> ControlGroupsV2::doors(std::string const& name) const {
  return {path_of(name) + "/cgroup.procs"};
}

std::vector<pid_t> ControlGroupsV2::members(std::string const& name) {
  return parse_pids(files_->read(path_of(name) + "/cgroup.procs"));
}

base::Result<void> ControlGroupsV2::kill(std::string const& name) {
  auto const group = path_of(name);
  if (!files_->exists(group)) return {};
  if (files_->exists(group + "/cgroup.kill")) return files_->write(group + "/cgroup.kill", "1");
  // Before Linux 5.14. Frozen first, so that none forks away; SIGKILL ends a frozen process of
  // version 2.
  auto frozen = files_->write(group + "/cgroup.freeze", "1");
  if (!frozen) return frozen;
  for (auto const pid : members(name))
    files_->kill(pid);
  return files_->write(group + "/cgroup.freeze", "0");
}

std::uint64_t ControlGroupsV2::out_of_memory_kills(std::string const& name) {
  return counter_in(files_->read(path_of(name) + "/memory.events"), "oom_kill");
}

base::Result<void> ControlGroupsV2::remove(std::string const& name) {
  return files_->remove_directory(path_of(name));
}

std::vector<std::string> ControlGroupsV2::list() {
  return files_->directories_in(parent_);
}

void ControlGroupsV2::remove_parent() {
  auto removed = files_->remove_directory(parent_);
  static_cast<void>(removed);  // in use by machines that outlive us: right so
}

}  // namespace os
