#include "cli/process.hpp"

#include <sys/wait.h>

#include <array>
#include <csignal>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

namespace cli {
namespace {

Program shell(std::string script) {
  return Program{.arguments = {"/bin/sh", "-c", std::move(script)},
                 .environment = plain_environment(),
                 .as = {}};
}

TEST(RunProgram, GivesOutputAndExitCodeApart) {
  auto outcome = run_program(shell("echo out; echo err >&2; exit 3"));
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(outcome->exit_code, 3);
  EXPECT_EQ(outcome->out, "out\n");
  EXPECT_EQ(outcome->err, "err\n");
}

TEST(RunProgram, ASignalIs128Plus) {
  auto outcome = run_program(shell("kill -KILL $$"));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->exit_code, 128 + SIGKILL);
}

TEST(RunProgram, LinesArriveWhole) {
  std::vector<std::string> lines;
  auto outcome = run_program(shell("printf 'a\\nb' >&2; printf 'c\\nlast' >&2"),
                             [&](std::string_view line) { lines.emplace_back(line); });
  ASSERT_TRUE(outcome);
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "bc"}));
}

TEST(RunProgram, AMissingProgramIsAnErrorThatNamesIt) {
  auto outcome =
      run_program(Program{.arguments = {"/no/such/program"}, .environment = {}, .as = {}});
  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().message().find("/no/such/program"), std::string::npos);
  EXPECT_NE(outcome.error().message().find("No such file"), std::string::npos);
}

TEST(RunProgram, InheritsNoDescriptor) {
  os::Fd const secret(dup(0));  // deliberately without close-on-exec
  auto outcome = run_program(shell("ls /proc/self/fd | sort -n | tr '\\n' ' '"));
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->out, "0 1 2 3 ");  // 3 is ls reading the directory
}

TEST(RunProgram, GetsExactlyTheGivenEnvironment) {
  auto outcome =
      run_program(Program{.arguments = {"/usr/bin/env"}, .environment = {"A=1"}, .as = {}});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->out, "A=1\n");
}

TEST(RunProgram, BecomesTheGivenUserWithoutRootsGroups) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to change the user";
  auto outcome = run_program(Program{.arguments = {"/usr/bin/id", "-G"},
                                     .environment = plain_environment(),
                                     .as = Identity{1234, 2345, {77, 78}}});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->out, "2345 77 78\n");
  auto user = run_program(Program{.arguments = {"/usr/bin/id", "-u"},
                                  .environment = plain_environment(),
                                  .as = Identity{1234, 2345, {}}});
  ASSERT_TRUE(user);
  EXPECT_EQ(user->out, "1234\n");
}

TEST(RunChecked, SaysWhatTheProgramSaid) {
  auto done = run_checked({"/bin/sh", "-c", "echo first >&2; echo 'the disk is full' >&2; exit 9"});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message(), "/bin/sh ended with 9: the disk is full");
}

bool runs(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string number, name, state;
  return file >> number >> name >> state && state != "Z";
}

TEST(StartProgram, DiesWithItsParentAndItsOwnChildrenDoNot) {
  std::array<int, 2> told{};
  std::array<int, 2> hold{};
  ASSERT_EQ(pipe(told.data()), 0);
  ASSERT_EQ(pipe(hold.data()), 0);
  pid_t const parent = fork();
  if (parent == 0) {
    close(hold[1]);
    auto program = shell("sleep 60 >/dev/null 2>&1 & echo $$ $!; wait");
    program.signal_on_parent_death = SIGKILL;
    auto started = start_program(program, os::FdRef(told[1]), os::FdRef(2));
    char end = 0;
    _exit(started && read(hold[0], &end, 1) == 0 ? 0 : 1);
  }
  close(told[1]);
  close(hold[0]);
  std::string text;
  char one = 0;
  while (read(told[0], &one, 1) == 1 && one != '\n')
    text.push_back(one);
  pid_t program = 0, child = 0;
  std::istringstream(text) >> program >> child;
  ASSERT_GT(program, 0) << text;
  ASSERT_GT(child, 0) << text;
  EXPECT_TRUE(runs(program));
  close(hold[1]);  // the parent ends
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  while (read(told[0], &one, 1) > 0) {  // ends when the program's death closed its output
  }
  close(told[0]);
  // Its descriptors close a moment before it counts as ended.
  for (int i = 0; i < 1000 && runs(program); ++i)
    (void)poll(nullptr, 0, 5);
  EXPECT_FALSE(runs(program));
  EXPECT_TRUE(runs(child));
  kill(child, SIGKILL);
}

}  // namespace
}  // namespace cli
