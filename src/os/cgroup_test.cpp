#include "os/cgroup.hpp"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace os {
namespace {

/// A tree that behaves as the kernel's: a new directory has its files, a directory with members
/// cannot be removed, and a controller appears in a group only when its parent passes it on.
class FakeTree final : public GroupFiles {
 public:
  std::map<std::string, std::string> files;
  std::set<std::string> directories;
  std::set<std::string> refused;  // paths that cannot be written
  std::set<std::string> refused_values;
  std::vector<pid_t> killed;
  std::vector<std::string> new_files;  // what a new directory has

  bool make_directory(std::string const& path) override {
    if (refused.contains(path)) return false;
    if (!directories.insert(path).second) return true;
    for (auto const& name : new_files)
      files.try_emplace(path + "/" + name, "");
    return true;
  }

  base::Result<void> remove_directory(std::string const& path) override {
    auto const members = files.find(path + "/cgroup.procs");
    if (members != files.end() && !members->second.empty())
      return base::fail(base::Code::conflict, "busy");
    if (std::ranges::any_of(directories,
                            [&](auto const& d) { return d.starts_with(path + "/"); })) {
      return base::fail(base::Code::conflict, "busy");
    }
    directories.erase(path);
    std::erase_if(files, [&](auto const& file) { return file.first.starts_with(path + "/"); });
    return {};
  }

  bool exists(std::string const& path) override {
    return files.contains(path) || directories.contains(path);
  }

  base::Result<void> write(std::string const& path, std::string const& value) override {
    if (refused.contains(path) || refused_values.contains(value) || !files.contains(path))
      return base::fail(base::Code::internal, "refused");
    files[path] = value;
    written.push_back(path + " = " + value);
    return {};
  }

  std::string read(std::string const& path) override {
    return files.contains(path) ? files[path] : "";
  }

  std::vector<std::string> directories_in(std::string const& path) override {
    std::vector<std::string> names;
    for (auto const& directory : directories) {
      if (directory.starts_with(path + "/")) names.push_back(directory.substr(path.size() + 1));
    }
    return names;
  }

  void kill(pid_t pid) override { killed.push_back(pid); }

  std::vector<std::string> written;
};

constexpr char unified_mount[] =
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

constexpr GroupLimits all_limits{.memory_bytes = 1 << 20,
                                 .cpu_percent = 125,
                                 .pids = 90,
                                 .device_major = 254,
                                 .device_minor = 16,
                                 .device_bytes_per_s = 1000,
                                 .device_ops_per_s = 50};

class VersionTwo : public testing::Test {
 protected:
  VersionTwo() {
    auto tree = std::make_unique<FakeTree>();
    tree_ = tree.get();
    held_ = std::move(tree);
    tree_->new_files = {"cgroup.procs",
                        "cgroup.subtree_control",
                        "cgroup.kill",
                        "cgroup.freeze",
                        "memory.max",
                        "memory.swap.max",
                        "memory.oom.group",
                        "memory.events",
                        "cpu.max",
                        "pids.max",
                        "io.max"};
    tree_->files["/sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu io memory hugetlb pids\n";
    tree_->files["/sys/fs/cgroup/cgroup.subtree_control"] = "";
  }

  void open() { groups_ = open_control_groups("inst", unified_mount, std::move(held_)); }

  std::unique_ptr<GroupFiles> held_;
  FakeTree* tree_ = nullptr;
  std::unique_ptr<ControlGroups> groups_;
};

TEST_F(VersionTwo, SetsEveryLimit) {
  open();
  EXPECT_EQ(groups_->version(), 2);
  EXPECT_EQ(groups_->features(), group_memory | group_cpu | group_pids | group_io);
  ASSERT_TRUE(groups_->make("slot-3", all_limits));
  std::string const group = "/sys/fs/cgroup/inst/slot-3";
  EXPECT_EQ(tree_->files[group + "/memory.max"], "1048576");
  EXPECT_EQ(tree_->files[group + "/memory.swap.max"], "0");
  EXPECT_EQ(tree_->files[group + "/memory.oom.group"], "1");
  EXPECT_EQ(tree_->files[group + "/cpu.max"], "125000 100000");
  EXPECT_EQ(tree_->files[group + "/pids.max"], "90");
  EXPECT_EQ(tree_->files[group + "/io.max"], "254:16 rbps=1000 wbps=1000 riops=50 wiops=50");
  EXPECT_EQ(groups_->clone_directory("slot-3"), group);
  EXPECT_THAT(groups_->list(), testing::ElementsAre("slot-3"));
}

TEST_F(VersionTwo, UnlimitedMeansUntouched) {
  open();
  ASSERT_TRUE(groups_->make("slot-3", {}));
  for (char const* name : {"memory.max", "memory.swap.max", "cpu.max", "pids.max", "io.max"}) {
    EXPECT_EQ(tree_->files[std::string("/sys/fs/cgroup/inst/slot-3/") + name], "") << name;
  }
}

TEST_F(VersionTwo, SaysWhatAHostThatKeepsAControllerCannotLimit) {
  tree_->refused_values = {"+io"};
  std::erase(tree_->new_files, "io.max");
  open();
  EXPECT_EQ(groups_->features(), group_memory | group_cpu | group_pids);
  EXPECT_TRUE(groups_->make("slot-3", all_limits));  // the others are set; features() told the rest
}

TEST_F(VersionTwo, APromisedLimitThatIsNotTakenMakesNoGroup) {
  open();
  tree_->refused = {"/sys/fs/cgroup/inst/slot-3/memory.max"};
  EXPECT_FALSE(groups_->make("slot-3", all_limits));
  EXPECT_TRUE(groups_->list().empty());
}

TEST_F(VersionTwo, KillsTheWholeGroupAtOnce) {
  open();
  ASSERT_TRUE(groups_->make("slot-3", {}));
  ASSERT_TRUE(groups_->kill("slot-3"));
  EXPECT_EQ(tree_->files["/sys/fs/cgroup/inst/slot-3/cgroup.kill"], "1");
  EXPECT_TRUE(groups_->kill("slot-4"));  // never made: nothing to kill
}

TEST_F(VersionTwo, AnOldKernelIsFrozenKilledAndThawed) {
  std::erase(tree_->new_files, "cgroup.kill");
  open();
  ASSERT_TRUE(groups_->make("slot-3", {}));
  tree_->files["/sys/fs/cgroup/inst/slot-3/cgroup.procs"] = "12\n34\n";
  tree_->written.clear();
  ASSERT_TRUE(groups_->kill("slot-3"));
  EXPECT_THAT(tree_->killed, testing::ElementsAre(12, 34));
  EXPECT_THAT(tree_->written,
              testing::ElementsAre("/sys/fs/cgroup/inst/slot-3/cgroup.freeze = 1",
                                   "/sys/fs/cgroup/inst/slot-3/cgroup.freeze = 0"));
}

TEST_F(VersionTwo, CountsWhatTheLimitKilledAndRemovesOnlyEmptyGroups) {
  open();
  ASSERT_TRUE(groups_->make("slot-3", {}));
  tree_->files["/sys/fs/cgroup/inst/slot-3/memory.events"] =
      "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 1\n";
  EXPECT_EQ(groups_->out_of_memory_kills("slot-3"), 2U);
  EXPECT_EQ(groups_->out_of_memory_kills("slot-4"), 0U);
  tree_->files["/sys/fs/cgroup/inst/slot-3/cgroup.procs"] = "12\n";
  EXPECT_THAT(groups_->members("slot-3"), testing::ElementsAre(12));
  EXPECT_FALSE(groups_->remove("slot-3"));
  tree_->files["/sys/fs/cgroup/inst/slot-3/cgroup.procs"] = "";
  EXPECT_TRUE(groups_->remove("slot-3"));
  EXPECT_TRUE(groups_->remove("slot-3"));
  groups_->remove_parent();
  EXPECT_FALSE(tree_->directories.contains("/sys/fs/cgroup/inst"));
}

constexpr char version_one_mounts[] =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
    "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

TEST(VersionOne, IsTakenWhenVersionTwoHasNoMemoryController) {
  auto held = std::make_unique<FakeTree>();
  auto* const tree = held.get();
  tree->new_files = {"cgroup.procs",
                     "memory.limit_in_bytes",
                     "memory.oom_control",
                     "cpu.cfs_period_us",
                     "cpu.cfs_quota_us",
                     "pids.max",
                     "freezer.state"};
  tree->files["/sys/fs/cgroup/unified/cgroup.controllers"] = "hugetlb\n";
  auto const groups = open_control_groups("inst", version_one_mounts, std::move(held));
  EXPECT_EQ(groups->version(), 1);
  EXPECT_EQ(groups->features(), group_memory | group_cpu | group_pids);  // no blkio: said
  ASSERT_TRUE(groups->make("slot-3", all_limits));
  EXPECT_EQ(tree->files["/sys/fs/cgroup/memory/inst/slot-3/memory.limit_in_bytes"], "1048576");
  EXPECT_EQ(tree->files["/sys/fs/cgroup/cpu/inst/slot-3/cpu.cfs_quota_us"], "125000");
  EXPECT_EQ(tree->files["/sys/fs/cgroup/pids/inst/slot-3/pids.max"], "90");
  EXPECT_EQ(groups->doors("slot-3").size(), 4U);

  tree->files["/sys/fs/cgroup/memory/inst/slot-3/cgroup.procs"] = "12\n";
  tree->files["/sys/fs/cgroup/pids/inst/slot-3/cgroup.procs"] = "12\n13\n";
  EXPECT_THAT(groups->members("slot-3"), testing::ElementsAre(12, 13));
  tree->written.clear();
  ASSERT_TRUE(groups->kill("slot-3"));
  EXPECT_THAT(tree->killed, testing::ElementsAre(12, 13));
  EXPECT_EQ(tree->written.front(), "/sys/fs/cgroup/freezer/inst/slot-3/freezer.state = FROZEN");
  EXPECT_EQ(tree->written.back(), "/sys/fs/cgroup/freezer/inst/slot-3/freezer.state = THAWED");
}

TEST(NoControlGroups, LimitNothingAndSaySo) {
  auto const groups = open_control_groups(
      "inst", "27 1 254:0 / / rw - ext4 /dev/vda rw\n", std::make_unique<FakeTree>());
  EXPECT_EQ(groups->features(), 0U);
  EXPECT_TRUE(groups->doors("slot-3").empty());
}

}  // namespace
}  // namespace os
