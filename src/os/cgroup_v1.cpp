#include "os/cgroup_v1.hpp"

#include "os/cgroup_v2.hpp"

#include <set>

#include <poll.h>

namespace os {
namespace {

struct Controller {
  char const* name;
  std::uint32_t feature;
};

// cpuacct is there for measurements only. "freezer" last: it is what kill() relies on.
constexpr Controller controllers[] = {{"memory", group_memory},
                                      {"cpu", group_cpu},
                                      {"pids", group_pids},
                                      {"blkio", group_io},
                                      {"freezer", 0}};

}  // namespace

ControlGroupsV1::ControlGroupsV1(std::map<std::string, std::string> const& mounts,
                                 std::string const& instance,
                                 std::unique_ptr<GroupFiles> files)
    : files_(std::move(files)) {
  for (auto const& controller : controllers) {
    auto const mount = mounts.find(controller.name);
    if (mount == mounts.end()) continue;
    auto const parent = mount->second + "/" + instance;
    if (!files_->make_directory(parent)) continue;
    parents_.emplace(controller.name, parent);
    features_ |= controller.feature;
  }
}

std::string ControlGroupsV1::path_of(std::string const& controller, std::string const& name) const {
  return parents_.at(controller) + "/" + name;
}

base::Result<void> ControlGroupsV1::make(std::string const& name, GroupLimits const& limits) {
  base::Result<void> done;
  for (auto const& [controller, parent] : parents_) {
    if (files_->make_directory(parent + "/" + name)) continue;
    done = base::fail_errno("make a control group", parent + "/" + name);
    break;
  }
  if (done) done = limit(name, limits);
  if (!done) {
    auto removed = remove(name);
    if (!removed) return base::passing(removed);
  }
  return done;
}

base::Result<void> ControlGroupsV1::limit(std::string const& name, GroupLimits const& limits) {
  base::Result<void> done;
  if (has("memory") && limits.memory_bytes > 0)
    done = limit_memory(path_of("memory", name), limits.memory_bytes);
  if (done && has("cpu") && limits.cpu_percent > 0) {
    done = files_->write(path_of("cpu", name) + "/cpu.cfs_period_us", "100000");
    if (done)
      done = files_->write(path_of("cpu", name) + "/cpu.cfs_quota_us",
                           std::to_string(limits.cpu_percent * 1000ULL));
  }
  if (done && has("pids") && limits.pids > 0) {
    done = files_->write(path_of("pids", name) + "/pids.max", std::to_string(limits.pids));
  }
  if (done && has("blkio") && limits.device_major > 0)
    done = limit_io(path_of("blkio", name), limits);
  return done;
}

base::Result<void> ControlGroupsV1::limit_memory(std::string const& group, std::uint64_t bytes) {
  auto done = files_->write(group + "/memory.limit_in_bytes", std::to_string(bytes));
  // Memory and swap together no more than memory alone: no swap. Absent without swap accounting.
  auto const both = group + "/memory.memsw.limit_in_bytes";
  if (done && files_->exists(both)) done = files_->write(both, std::to_string(bytes));
  auto const swappiness = group + "/memory.swappiness";
  if (done && files_->exists(swappiness)) done = files_->write(swappiness, "0");
  return done;
}

base::Result<void> ControlGroupsV1::limit_io(std::string const& group, GroupLimits const& limits) {
  struct File {
    char const* name;
    std::uint64_t value;
  };

  File const files[] = {{"read_bps_device", limits.device_bytes_per_s},
                        {"write_bps_device", limits.device_bytes_per_s},
                        {"read_iops_device", limits.device_ops_per_s},
                        {"write_iops_device", limits.device_ops_per_s}};
  for (auto const& file : files) {
    if (file.value == 0) continue;
    auto const line = fmt::format("{}:{} {}", limits.device_major, limits.device_minor, file.value);
    auto written = files_->write(fmt::format("{}/blkio.throttle.{}", group, file.name), line);
    if (!written) return written;
  }
  return {};
}

std::vector<std::string> ControlGroupsV1::doors(std::string const& name) const {
  std::vector<std::string> files;
  for (auto const& [controller, parent] : parents_)
    files.push_back(parent + "/" + name + "/cgroup.procs");
  return files;
}

std::vector<pid_t> ControlGroupsV1::members(std::string const& name) {
  std::set<pid_t> all;  // a process that was killed while it joined is in some of the trees only
  for (auto const& [controller, parent] : parents_) {
    for (auto const pid : parse_pids(files_->read(parent + "/" + name + "/cgroup.procs")))
      all.insert(pid);
  }
  return {all.begin(), all.end()};
}

void ControlGroupsV1::wait_frozen(std::string const& group) {
  for (int i = 0; i < 100; ++i) {
    if (files_->read(group + "/freezer.state").starts_with("FROZEN")) return;
    ::poll(nullptr, 0, 1);
  }
}

base::Result<void> ControlGroupsV1::kill(std::string const& name) {
  bool const freezes = has("freezer") && files_->exists(path_of("freezer", name));
  if (freezes) {
    // Frozen first, so that none forks away between the list and the signal.
    auto frozen = files_->write(path_of("freezer", name) + "/freezer.state", "FROZEN");
    if (!frozen) return frozen;
    wait_frozen(path_of("freezer", name));
  }
  for (auto const pid : members(name))
    files_->kill(pid);
  if (freezes) return files_->write(path_of("freezer", name) + "/freezer.state", "THAWED");
  return {};
}

std::uint64_t ControlGroupsV1::out_of_memory_kills(std::string const& name) {
  if (!has("memory")) return 0;
  return counter_in(files_->read(path_of("memory", name) + "/memory.oom_control"), "oom_kill");
}

base::Result<void> ControlGroupsV1::remove(std::string const& name) {
  base::Result<void> done;
  for (auto const& [controller, parent] : parents_) {
    auto removed = files_->remove_directory(parent + "/" + name);
    if (!removed) done = std::move(removed);  // go on: what can go shall go
  }
  return done;
}

std::vector<std::string> ControlGroupsV1::list() {
  std::set<std::string> all;
  for (auto const& [controller, parent] : parents_) {
    for (auto const& name : files_->directories_in(parent))
      all.insert(name);
  }
  return {all.begin(), all.end()};
}

void ControlGroupsV1::remove_parent() {
  for (auto const& [controller, parent] : parents_) {
    auto removed = files_->remove_directory(parent);
    static_cast<void>(removed);  // in use by machines that outlive us: right so
  }
}

}  // namespace os
