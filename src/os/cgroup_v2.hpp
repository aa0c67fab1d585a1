#pragma once

#include "os/cgroup.hpp"

namespace os {

/// Version 2: one tree. Reached through open_control_groups().
class ControlGroupsV2 final : public ControlGroups {
 public:
  ControlGroupsV2(std::string root, std::string instance, std::unique_ptr<GroupFiles> files);

  int version() const override { return 2; }

  std::uint32_t features() const override { return features_; }

  base::Result<void> make(std::string const& name, GroupLimits const& limits) override;
  std::vector<std::string> doors(std::string const& name) const override;

  std::string clone_directory(std::string const& name) const override { return path_of(name); }

  std::vector<pid_t> members(std::string const& name) override;
  base::Result<void> kill(std::string const& name) override;
  std::uint64_t out_of_memory_kills(std::string const& name) override;
  base::Result<void> remove(std::string const& name) override;
  std::vector<std::string> list() override;
  void remove_parent() override;

 private:
  std::string path_of(std::string const& name) const { return parent_ + "/" + name; }

  base::Result<void> limit(std::string const& group, GroupLimits const& limits);

  std::string parent_;
  std::unique_ptr<GroupFiles> files_;
  std::uint32_t features_ = 0;
};

std::vector<pid_t> parse_pids(std::string const& text);
/// The number after `key` in lines "key number"; 0 when absent.
std::uint64_t counter_in(std::string const& text, std::string const& key);

}  // namespace os
