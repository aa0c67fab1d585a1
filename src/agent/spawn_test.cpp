#include "agent/spawn.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace agent {
namespace {

/// Both ways of making a process.
class Spawn : public ::testing::TestWithParam<bool> {
 protected:
  Spawn() {
    std::string pattern = std::filesystem::temp_directory_path() / "spawn_test.XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_ = os::Fd(ends[0]);
    write_ = os::Fd(ends[1]);
    null_ = os::Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  }

  ~Spawn() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  SpawnPlan plan(std::vector<std::string> argv) const {
    SpawnPlan out;
    out.argv = std::move(argv);
    out.env = {"PATH=" + directory_ + ":/usr/bin:/bin"};
    out.cwd = "/";
    out.uid = ::getuid();
    out.gid = ::getgid();
    out.groups = {::getgid()};
    out.input = out.error = null_.get();
    out.output = write_.get();
    out.clone3 = GetParam();
    return out;
  }

  /// What the process writes until it ends, and its wait status.
  std::pair<std::string, int> run(SpawnPlan const& plan) {
    auto const made = spawn(plan);
    auto const* pid = std::get_if<pid_t>(&made);
    if (!pid) {
      ADD_FAILURE() << "stage " << int(std::get<SpawnFailure>(made).stage);
      return {};
    }
    write_.reset();
    std::string out;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(read_.get(), buffer, sizeof buffer)) > 0;)
      out.append(buffer, static_cast<std::size_t>(got));
    int status = 0;
    EXPECT_EQ(::waitpid(*pid, &status, 0), *pid);
    return {out, status};
  }

  std::string directory_;
  os::Fd read_;
  os::Fd write_;
  os::Fd null_;
};

INSTANTIATE_TEST_SUITE_P(BothWays, Spawn, ::testing::Bool(), [](auto const& info) {
  return std::string(info.param ? "clone3" : "clone");
});

TEST_P(Spawn, RunsAProgramFoundInThePathOfItsOwnEnvironment) {
  std::ofstream(directory_ + "/tool") << "#!/bin/sh\necho found $1; pwd\n";
  ::chmod((directory_ + "/tool").c_str(), 0755);
  auto const [out, status] = run(plan({"tool", "it"}));
  EXPECT_EQ(out, "found it\n/\n");
  EXPECT_EQ(status, 0);
}

TEST_P(Spawn, SaysWhichStepFailedAndLeavesNothing) {
  auto const failure_of = [](SpawnPlan const& failing) {
    return std::get<SpawnFailure>(spawn(failing));
  };
  auto const missing = failure_of(plan({"no-such-tool"}));
  EXPECT_EQ(missing.stage, SpawnStage::exec);
  EXPECT_EQ(missing.error_number, ENOENT);
  std::ofstream(directory_ + "/locked") << "x";
  ::chmod((directory_ + "/locked").c_str(), 0600);
  EXPECT_EQ(failure_of(plan({"locked"})).error_number, EACCES) << "it is there, but may not be run";
  auto elsewhere = plan({"true"});
  elsewhere.cwd = directory_ + "/nowhere";
  EXPECT_EQ(failure_of(elsewhere).stage, SpawnStage::directory);
  auto endless = plan({"true", std::string(4 << 20, 'x')});
  EXPECT_EQ(failure_of(endless).error_number, E2BIG);
  auto closed = plan({"true"});
  closed.output = 9999;
  EXPECT_EQ(failure_of(closed).stage, SpawnStage::descriptors);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  EXPECT_EQ(errno, ECHILD);
}

TEST_P(Spawn, GivesTheChildCleanSignals) {
  // Ignored, handled and blocked by us: none of it is the child's business.
  auto* const old_pipe = std::signal(SIGPIPE, SIG_IGN);
  auto* const old_user = std::signal(SIGUSR1, [](int) {});
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  auto const [out, status] = run(plan({"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}));
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, &before, &after);
  std::signal(SIGPIPE, old_pipe);
  std::signal(SIGUSR1, old_user);
  EXPECT_EQ(out, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(sigismember(&after, SIGUSR2)) << "our own mask is as it was";
}

TEST_P(Spawn, StartsASessionOfItsOwn) {
  auto const [out, status] = run(plan({"sh", "-c", "cut -d' ' -f1,5,6 /proc/$$/stat; echo $$"}));
  auto const pid = out.substr(out.find('\n') + 1, out.size() - out.find('\n') - 2);
  EXPECT_EQ(out, pid + " " + pid + " " + pid + "\n" + pid + "\n") << "pid, group and session";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace agent
