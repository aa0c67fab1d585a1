// The limits of a control group on the groups that this machine really has. Each limit is met by a
// program that runs into it in a jail; the control is the same program with room.

#include "integration/hostd_fixture.hpp"
#include "os/block_device.hpp"

#include <sys/wait.h>

#include <csignal>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

namespace test {
namespace {

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(groups_->features(), 0U) << "this machine has no control groups to try";
  }

  void TearDown() override {
    EXPECT_TRUE(groups_->kill("slot-0"));
    EXPECT_TRUE(eventually([&] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      return groups_->members("slot-0").empty() && groups_->remove("slot-0").has_value();
    }));
    EXPECT_TRUE(groups_->list().empty());
  }

  void make(os::GroupLimits const& limits) {
    auto made = groups_->make("slot-0", limits);
    ASSERT_TRUE(made) << made.error().message() << " " << made.error().detail();
  }

  ProbeOptions inside(bool filtered = true) const {
    ProbeOptions options;
    options.filtered = filtered;
    options.group_doors = groups_->doors("slot-0");
    return options;
  }

  /// Milliseconds of CPU that a second of spinning got.
  int cpu_of_a_second(int percent) {
    make({.cpu_percent = static_cast<std::uint32_t>(percent)});
    auto const probed = jail_.run({"spin", "1000"}, inside());
    EXPECT_THAT(probed.said, testing::StartsWith("cpu "));
    return std::atoi(probed.said.c_str() + 4);
  }

  /// Milliseconds that writing 4 MiB past all caches took.
  int disk_time(std::uint64_t bytes_per_s) {
    auto const path = installation_.directory() + "/disk";
    os::Fd const disk(::open(path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
    EXPECT_TRUE(disk);
    EXPECT_EQ(::ftruncate(disk.get(), 8 << 20), 0);
    auto const device = os::device_behind(disk);
    EXPECT_TRUE(device) << "no block device below the temporary directory";
    if (!device) return 0;
    make({.device_major = device->major,
          .device_minor = device->minor,
          .device_bytes_per_s = bytes_per_s});
    auto options = inside();
    options.fds = {disk.get()};
    auto const probed = jail_.run({"disk", "5", std::to_string(4 << 20)}, options);
    EXPECT_THAT(probed.said, testing::StartsWith("took "));
    return std::atoi(probed.said.c_str() + 5);
  }

  Installation installation_;
  ProbeJail jail_{installation_};
  std::unique_ptr<os::ControlGroups> groups_ =
      os::open_control_groups(installation_.config().instance);
};

TEST_F(Limits, AnAllocatorIsKilledAtItsMemoryAndCountedAsSuch) {
  if ((groups_->features() & os::group_memory) == 0) FAIL() << "memory cannot be limited here";
  make({.memory_bytes = 64ULL << 20});
  auto const killed = jail_.run({"alloc", "128"}, inside());
  EXPECT_TRUE(killed.killed_by(SIGKILL)) << killed.said;
  EXPECT_EQ(killed.said, "");
  EXPECT_GE(groups_->out_of_memory_kills("slot-0"), 1U);
  // With room the same allocation is made.
  ASSERT_TRUE(groups_->remove("slot-0"));
  make({.memory_bytes = 256ULL << 20});
  EXPECT_EQ(jail_.run({"alloc", "128"}, inside()).said, "touched\n");
  EXPECT_EQ(groups_->out_of_memory_kills("slot-0"), 0U);
}

TEST_F(Limits, AForkBombStopsAtItsNumberAndDiesWhole) {
  if ((groups_->features() & os::group_pids) == 0) FAIL() << "processes cannot be limited here";
  make({.pids = 20});
  auto const bomb = jail_.start({"fork"}, inside(false));
  std::array<char, 64> said{};
  ASSERT_GT(::read(bomb.output.get(), said.data(), said.size() - 1), 0);
  EXPECT_STREQ(said.data(), "forked 19\n");
  EXPECT_EQ(groups_->members("slot-0").size(), 20U);
  EXPECT_EQ(installation_.processes().size(), 20U);
  ASSERT_TRUE(groups_->kill("slot-0"));
  EXPECT_TRUE(eventually([&] { return groups_->members("slot-0").empty(); }));
  ASSERT_EQ(::waitpid(bomb.process.pid, nullptr, 0), bomb.process.pid);
  EXPECT_TRUE(installation_.processes().empty());
}

TEST_F(Limits, TheUsersOwnLimitStopsAForkBombWhereGroupsCannot) {
  make({});
  auto options = inside(false);
  options.tasks_max = 12;
  auto const bomb = jail_.start({"fork"}, options);
  std::array<char, 64> said{};
  ASSERT_GT(::read(bomb.output.get(), said.data(), said.size() - 1), 0);
  EXPECT_STREQ(said.data(), "forked 11\n");
}

TEST_F(Limits, ASpinnerGetsItsShareOfACore) {
  if ((groups_->features() & os::group_cpu) == 0) FAIL() << "CPU cannot be limited here";
  int const limited = cpu_of_a_second(20);
  EXPECT_GE(limited, 50);
  EXPECT_LE(limited, 350);
  ASSERT_TRUE(groups_->remove("slot-0"));
  // The control depends on what else the host does; a third of a core is to be had anywhere.
  EXPECT_GT(cpu_of_a_second(200), limited);
}

TEST_F(Limits, AWriterIsSlowedToItsBytesPerSecond) {
  if ((groups_->features() & os::group_io) == 0) FAIL() << "I/O cannot be limited here";
  int const limited = disk_time(2 << 20);
  EXPECT_GE(limited, 1500) << "4 MiB at 2 MiB/s";
  ASSERT_TRUE(groups_->remove("slot-0"));
  EXPECT_LT(disk_time(0), limited);
}

TEST_F(Limits, AKillReachesWhatForksMeanwhile) {
  make({.pids = 200});
  auto const bomb = jail_.start({"fork"}, inside(false));
  ASSERT_TRUE(groups_->kill("slot-0"));  // in the middle of it
  EXPECT_TRUE(eventually([&] { return groups_->members("slot-0").empty(); }));
  EXPECT_TRUE(eventually([&] {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return installation_.processes().empty();
  }));
}

}  // namespace
}  // namespace test
