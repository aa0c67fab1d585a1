// What a program in a jail sees and may do. Each refusal has a control: the same step outside, or
// with that wall taken away, succeeds; so a test that fails to try anything cannot pass.

#include "hostd/jail_view.hpp"
#include "integration/hostd_fixture.hpp"
#include "vmm/qemu_command.hpp"

#include <sys/wait.h>

#include <csignal>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

namespace test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Jail : public testing::Test {
 protected:
  Installation installation_;
  ProbeJail jail_{installation_};
};

TEST_F(Jail, HoldsTheProgramThreeDevicesAndNothingElse) {
  auto const probed = jail_.run({"view"}, {.filtered = false});
  std::vector<std::string> lines;
  std::istringstream text(probed.said);
  for (std::string line; std::getline(text, line);)
    lines.push_back(line);
  EXPECT_THAT(lines,
              testing::UnorderedElementsAre("d 755 /dev",
                                            "c 666 /dev/null",
                                            "c 666 /dev/zero",
                                            "c 666 /dev/urandom",
                                            HasSubstr(" /probe"),
                                            "f 666 /open_file"))
      << probed.said;
  // With the filter it reads the same: listing is allowed, there is just nothing to list.
  EXPECT_EQ(jail_.run({"view"}).said, probed.said);
}

TEST_F(Jail, NothingInItCanBeWritten) {
  auto const probed = jail_.run({"write",
                                 "/x",
                                 "/dev/x",
                                 "/open_file",
                                 "/dev/../../etc/passwd",
                                 "/proc/self/mem",
                                 "/dev/null"},
                                {.filtered = false});
  EXPECT_EQ(
      probed.said,
      "/x EROFS\n/dev/x EROFS\n/open_file EROFS\n/dev/../../etc/passwd ENOENT\n/proc/self/mem "
      "ENOENT\n/dev/null written\n");
}

TEST_F(Jail, RunsAsTheSlotsUserWithNothingToItsName) {
  auto const user = installation_.config().slot_uid_base + 7;
  auto const probed = jail_.run({"who"}, {.filtered = false, .user = user});
  EXPECT_THAT(probed.said,
              HasSubstr(fmt::format("uid {0} gid {0} groups 0 pid 1 ppid 0 sid 1\n", user)));
  EXPECT_THAT(probed.said, HasSubstr("caps 0 0 0 0\n"));
  EXPECT_THAT(probed.said, HasSubstr("core 0 files 512\n"));
  // Its own empty network: a loopback that is down, not the slot's tap, not the host's links.
  EXPECT_THAT(probed.said, HasSubstr("link lo\n"));
  EXPECT_THAT(probed.said, Not(HasSubstr("link e")));
  // Three standard descriptors; the program's own was closed by exec.
  EXPECT_THAT(probed.said, testing::EndsWith("fd 0\nfd 1\nfd 2\n"));
}

TEST_F(Jail, GetsExactlyTheDescriptorsThatItWasGiven) {
  os::Fd const one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  os::Fd const two(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  os::Fd const leaky(
      ::open("/etc/passwd", O_RDONLY));  // without close-on-exec: the jail closes it all the same
  auto const probed = jail_.run({"who"}, {.filtered = false, .fds = {one.get(), two.get()}});
  EXPECT_THAT(probed.said, testing::EndsWith("fd 0\nfd 1\nfd 2\nfd 5\nfd 6\n"));
}

struct Call {
  char const* name;
  bool ends_the_process;
};

class ForbiddenCall : public Jail, public testing::WithParamInterface<Call> {};

TEST_P(ForbiddenCall, IsRefused) {
  auto const [name, ends] = GetParam();
  auto const probed = jail_.run({"call", name});
  if (ends) {
    EXPECT_TRUE(probed.killed_by(SIGSYS)) << probed.said << " status " << probed.wait_status;
  } else {
    EXPECT_THAT(probed.said, testing::AnyOf("EPERM\n", "ENOSYS\n"))
        << "status " << probed.wait_status;
  }
  // The control: without the filter the kernel itself is reached, and answers otherwise or does it.
  auto const free = jail_.run({"call", name}, {.filtered = false});
  EXPECT_FALSE(free.killed_by(SIGSYS));
}

INSTANTIATE_TEST_SUITE_P(List,
                         ForbiddenCall,
                         testing::Values(Call{"ptrace", true},
                                         Call{"mount", true},
                                         Call{"umount2", true},
                                         Call{"unshare", true},
                                         Call{"setns", true},
                                         Call{"bpf", true},
                                         Call{"keyctl", true},
                                         Call{"perf_event_open", true},
                                         Call{"io_uring_setup", false},
                                         Call{"io_uring_enter", true},
                                         Call{"userfaultfd", true},
                                         Call{"memfd_create", false},
                                         Call{"socket", true},
                                         Call{"socket_unix", false},
                                         Call{"socket_vsock", true},
                                         Call{"connect", true},
                                         Call{"execve", true},
                                         Call{"fork", false},
                                         Call{"vfork_clone", false},
                                         Call{"clone3", false},
                                         Call{"setuid", true},
                                         Call{"open_by_handle_at", true},
                                         Call{"process_vm_readv", true},
                                         Call{"ioctl_tunsetiff", false},
                                         Call{"ioctl_tiocsti", false},
                                         Call{"setrlimit", false},
                                         Call{"chmod", false},
                                         Call{"kill", false}),
                         [](auto const& call) { return std::string(call.param.name); });

TEST_F(Jail, AnAllowedCallIsMade) {
  EXPECT_EQ(jail_.run({"call", "getpid"}).said, "made\n");
  // These do succeed without the filter, so it is the filter that refused them above.
  for (char const* name : {"socket", "fork", "memfd_create", "setrlimit", "unshare"}) {
    EXPECT_THAT(jail_.run({"call", name}, {.filtered = false}).said, HasSubstr("made\n")) << name;
  }
}

TEST_F(Jail, AFileGrowsNoFurtherThanItsLimit) {
  auto const path = installation_.directory() + "/disk";
  os::Fd const disk(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(disk.get(), 1 << 20), 0);
  EXPECT_EQ(
      jail_.run({"grow", "5", "1048575"}, {.fds = {disk.get()}, .file_bytes_max = 1 << 20}).said,
      "grown\n");
  EXPECT_EQ(jail_
                .run({"grow", "5", "1048576"},
                     {.filtered = false, .fds = {disk.get()}, .file_bytes_max = 1 << 20})
                .said,
            "EFBIG\n");
  EXPECT_EQ(jail_.run({"grow", "5", "1048576"}, {.filtered = false, .fds = {disk.get()}}).said,
            "grown\n");
}

TEST_F(Jail, AStepThatFailsLeavesNoProcess) {
  try {
    jail_.run({"view"}, {.group_doors = {"/nowhere/cgroup.procs"}});
    FAIL() << "started outside its control group";
  } catch (std::runtime_error const& error) {
    EXPECT_THAT(error.what(), HasSubstr("join a control group"));
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG),
            0);  // only the fixture's watcher is left, and it lives
}

TEST_F(Jail, OutlivesWhoStartedIt) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  os::Fd const read(ends[0]);
  pid_t const starter = ::fork();
  if (starter == 0) {
    auto running = jail_.start({"wait"});
    auto const pid = running.process.pid;
    static_cast<void>(::write(ends[1], &pid, sizeof pid));
    ::_exit(0);
  }
  ::close(ends[1]);
  pid_t pid = 0;
  ASSERT_EQ(::read(read.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  ASSERT_EQ(::waitpid(starter, nullptr, 0), starter);
  ::usleep(100'000);
  EXPECT_EQ(installation_.processes(), std::vector<pid_t>{pid});
}

TEST(QemuJail, HoldsQemuItsLibrariesAndItsFirmwareOnly) {
  auto const files = hostd::files_of_qemu();
  ASSERT_TRUE(files) << files.error().message();
  std::size_t firmware = 0;
  for (auto const& file : *files) {
    EXPECT_EQ(::access(file.source.c_str(), R_OK), 0) << file.source;
    bool const firmware_file = file.inside.starts_with("/usr/share/qemu/");
    firmware += firmware_file ? 1 : 0;
    bool const expected = file.inside == vmm::qemu_binary ||
                          file.inside.find(".so") != std::string::npos || firmware_file;
    EXPECT_TRUE(expected) << file.inside;
  }
  EXPECT_GE(firmware, 2U);
  EXPECT_GT(files->size(), 10U);
}

}  // namespace
}  // namespace test
