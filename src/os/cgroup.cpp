#include "os/cgroup.hpp"

#include "os/cgroup_v1.hpp"
#include "os/cgroup_v2.hpp"
#include "os/text_file.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <sstream>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace os {
namespace {

class KernelGroupFiles final : public GroupFiles {
 public:
  bool make_directory(std::string const& path) override {
    return ::mkdir(path.c_str(), 0755) == 0 || errno == EEXIST;
  }

  base::Result<void> remove_directory(std::string const& path) override {
    if (::rmdir(path.c_str()) != 0 && errno != ENOENT)
      return base::fail_errno("remove a control group", path);
    return {};
  }

  bool exists(std::string const& path) override { return ::access(path.c_str(), F_OK) == 0; }

  base::Result<void> write(std::string const& path, std::string const& value) override {
    Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file) return base::fail_errno("open a file of a control group", path);
    if (::write(file.get(), value.data(), value.size()) < 0)
      return base::fail_errno("write to a control group", path);
    return {};
  }

  std::string read(std::string const& path) override { return read_text(path).value_or(""); }

  std::vector<std::string> directories_in(std::string const& path) override {
    std::vector<std::string> names;
    std::unique_ptr<DIR, int (*)(DIR*)> const directory(::opendir(path.c_str()), ::closedir);
    if (!directory) return names;
    while (auto const* entry = ::readdir(directory.get())) {  // NOLINT(concurrency-mt-unsafe)
      std::string name = entry->d_name;
      if (entry->d_type == DT_DIR && name != "." && name != "..") names.push_back(std::move(name));
    }
    return names;
  }

  void kill(pid_t pid) override { ::kill(pid, SIGKILL); }
};

struct Mounts {
  std::string unified;
  std::map<std::string, std::string> controllers;  // version 1: controller → mount point
};

/// "36 25 0:32 / /mount/point options - type source super,options"
Mounts find_mounts(std::string const& mountinfo) {
  Mounts mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string skip, point, word, type, source, options;
    words >> skip >> skip >> skip >> skip >> point;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    if (type == "cgroup2" && mounts.unified.empty()) mounts.unified = point;
    if (type != "cgroup") continue;
    std::istringstream parts(options);
    for (std::string part; std::getline(parts, part, ',');)
      mounts.controllers.try_emplace(part, point);
  }
  return mounts;
}

}  // namespace

std::unique_ptr<GroupFiles> kernel_group_files() {
  return std::make_unique<KernelGroupFiles>();
}

std::unique_ptr<ControlGroups> open_control_groups(std::string const& instance,
                                                   std::string const& mountinfo,
                                                   std::unique_ptr<GroupFiles> files) {
  auto const mounts = find_mounts(mountinfo);
  if (!mounts.unified.empty()) {
    auto const offered = " " + files->read(mounts.unified + "/cgroup.controllers");
    if (offered.find(" memory") != std::string::npos) {
      return std::make_unique<ControlGroupsV2>(mounts.unified, instance, std::move(files));
    }
  }
  return std::make_unique<ControlGroupsV1>(mounts.controllers, instance, std::move(files));
}

std::unique_ptr<ControlGroups> open_control_groups(std::string const& instance) {
  return open_control_groups(
      instance, read_text("/proc/self/mountinfo").value_or(""), kernel_group_files());
}

std::vector<pid_t> parse_pids(std::string const& text) {
  std::vector<pid_t> pids;
  std::istringstream lines(text);
  for (pid_t pid = 0; lines >> pid;) {
    if (pid > 0) pids.push_back(pid);
  }
  return pids;
}

std::uint64_t counter_in(std::string const& text, std::string const& key) {
  std::istringstream lines(text);
  std::string name;
  for (std::uint64_t value = 0; lines >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

}  // namespace os
