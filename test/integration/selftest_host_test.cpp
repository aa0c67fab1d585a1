// The host suite against an installation of its own: every wall holds, and a wall that is taken
// away is seen.

#include "cli/selftest_host.hpp"

#include "integration/hostd_fixture.hpp"

#include <sys/wait.h>

#include <filesystem>

#include <gmock/gmock.h>

namespace test {
namespace {

std::string lines(std::vector<cli::AttemptResult> const& results, cli::Verdict verdict) {
  std::string out;
  for (auto const& one : results)
    if (one.verdict == verdict)
      out += fmt::format("{}: {}: {} (control: {})\n", one.place, one.what, one.said, one.control);
  return out;
}

TEST(HostSuite, EveryAttemptFailsAndItsControlSucceeds) {
  Installation const installation;
  Hostd const hostd(installation);
  auto const results = cli::run_host_suite(installation.config());
  ASSERT_TRUE(results) << results.error().message() << " " << results.error().detail();
  EXPECT_EQ(lines(*results, cli::Verdict::broken), "");
  // What this host does not let root do either proves nothing; the rest must be most of it.
  auto const unproven = lines(*results, cli::Verdict::unproven);
  EXPECT_LE(std::ranges::count(unproven, '\n'), 8) << unproven;
  EXPECT_EQ(unproven.find("did not run"), std::string::npos) << unproven;
  auto const held = lines(*results, cli::Verdict::held);
  for (char const* one : {"machine: reach hostd",
                          "gateway: reach hostd",
                          "machine: read a planted",
                          "gateway: read a planted",
                          "machine: trace",
                          "gateway: read the memory",
                          "machine: reach a service on the host's loopback"})
    EXPECT_THAT(held, testing::HasSubstr(one));
  EXPECT_GT(results->size(), 60U);
  // It leaves nothing.
  for (auto const& entry : std::filesystem::directory_iterator("/run"))
    EXPECT_EQ(entry.path().string().find("space-selftest-" + installation.config().instance),
              std::string::npos);
}

TEST(HostSuite, AWallThatIsNotThereIsBrokenAndAControlThatFailsProvesNothing) {
  auto const exited = [](int code) { return code << 8; };
  auto const verdict = [](std::string const& printed, int status, int control) {
    return cli::judge("machine", "x", printed, status, control).verdict;
  };
  EXPECT_EQ(verdict("begin\nresult 0\n", exited(0), 0), cli::Verdict::broken);
  EXPECT_EQ(verdict("begin\nresult 0\n", exited(0), EPERM), cli::Verdict::broken);
  EXPECT_EQ(verdict("begin\n", exited(0), 0), cli::Verdict::broken) << "it became another program";
  EXPECT_EQ(verdict("begin\nresult 13\n", exited(0), 0), cli::Verdict::held);
  EXPECT_EQ(verdict("begin\n", SIGSYS, 0), cli::Verdict::held);
  EXPECT_EQ(verdict("begin\nresult 13\n", exited(0), EPERM), cli::Verdict::unproven);
  EXPECT_EQ(verdict("begin\n", SIGKILL, 0), cli::Verdict::unproven);
  EXPECT_EQ(verdict("", SIGSYS, 0), cli::Verdict::unproven) << "it never came to the attempt";
  EXPECT_EQ(verdict("", exited(0), 0), cli::Verdict::unproven);
  EXPECT_EQ(verdict("begin\nresult -1\n", exited(0), 0), cli::Verdict::unproven);
}

}  // namespace
}  // namespace test
