#pragma once

#include "os/cgroup.hpp"

namespace os {

/// Version 1: one tree per controller; a group is a directory in each of them. Reached through
/// open_control_groups().
class ControlGroupsV1 final : public ControlGroups {
 public:
  /// `mounts`: controller → mount point.
  ControlGroupsV1(std::map<std::string, std::string> const& mounts,
                  std::string const& instance,
                  std::unique_ptr<GroupFiles> files);

  int version() const override { return 1; }

  std::uint32_t features() const override { return features_; }

  base::Result<void> make(std::string const& name, GroupLimits const& limits) override;
  std::vector<std::string> doors(std::string const& name) const override;

  std::string clone_directory(std::string const& /*name*/) const override { return {}; }

  std::vector<pid_t> members(std::string const& name) override;
  base::Result<void> kill(std::string const& name) override;
  std::uint64_t out_of_memory_kills(std::string const& name) override;
  base::Result<void> remove(std::string const& name) override;
  std::vector<std::string> list() override;
  void remove_parent() override;

 private:
  bool has(std::string const& controller) const { return parents_.contains(controller); }

  std::string path_of(std::string const& controller, std::string const& name) const;
  base::Result<void> limit(std::string const& name, GroupLimits const& limits);
  base::Result<void> limit_memory(std::string const& group, std::uint64_t bytes);
  base::Result<void> limit_io(std::string const& group, GroupLimits const& limits);
  void wait_frozen(std::string const& group);

  std::map<std::string, std::string> parents_;  // controller → directory of the installation
  std::unique_ptr<GroupFiles> files_;
  std::uint32_t features_ = 0;
};

}  // namespace os
