#include "async/testing.hpp"
#include "vmm/console.hpp"
#include "vmm/exit_cause.hpp"
#include "vmm/tsc.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace vmm {
namespace {

constexpr int exited_with(int status) {
  return status << 8;
}

ExitEvidence told(std::string reason, std::string_view console = {}) {
  ExitEvidence evidence;
  evidence.process.wait_status = 0;
  evidence.shutdown_reason = std::move(reason);
  evidence.console_tail = console;
  return evidence;
}

TEST(ExplainExit, TheGuestsOwnEndsAreToldApart) {
  EXPECT_EQ(explain_exit(told("guest-shutdown")).cause, ExitCause::guest_shutdown);
  EXPECT_EQ(explain_exit(told("guest-reset")).cause, ExitCause::guest_reboot);
  EXPECT_EQ(explain_exit(told("guest-panic")).cause, ExitCause::guest_panic);
  auto const panic = explain_exit(
      told("guest-reset",
           "x\n[ 1.2] Kernel panic - not syncing: sysrq triggered crash\n[ 1.3] CPU: 0\n"));
  EXPECT_EQ(panic.cause, ExitCause::guest_panic);
  EXPECT_EQ(panic.detail, "the guest's kernel panicked: sysrq triggered crash");
}

TEST(ExplainExit, ASignalGoesBeforeWhatTheVmmSaid) {
  auto evidence = told("guest-shutdown");
  evidence.process.wait_status = SIGKILL;
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::killed);
  evidence.process.wait_status = SIGSEGV;
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::crashed);
  evidence.process.wait_status = SIGSYS;
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::crashed);
}

TEST(ExplainExit, TheMemoryLimitGoesBeforeTheSignalItSends) {
  ExitEvidence evidence;
  evidence.process = {SIGKILL, true};
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::out_of_memory);
  evidence.asked = true;
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::out_of_memory);
}

TEST(ExplainExit, AskedForIsAskedForHoweverItDied) {
  ExitEvidence evidence;
  evidence.process.wait_status = SIGKILL;
  evidence.asked = true;
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::asked);
}

TEST(ExplainExit, WithoutAnyWordItIsUnknownUnlessTheConsoleTells) {
  ExitEvidence evidence;
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::unknown);
  evidence.console_tail = "Kernel panic - not syncing: Attempted to kill init!";
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::guest_panic);
  evidence.console_tail = {};
  evidence.process.wait_status = exited_with(1);
  EXPECT_EQ(explain_exit(evidence).cause, ExitCause::crashed);
}

TEST(PrintableTail, TakesTheLastLinesAndNothingThatATerminalObeys) {
  EXPECT_EQ(printable_tail("a\nb\nc\n", 2, 100), "b\nc");
  EXPECT_EQ(printable_tail("\x1b[31mred\x1b[0m\r\n\x07ok\n", 5, 100), "red\nok");
  EXPECT_EQ(printable_tail("bad \xff\xc3( utf", 5, 100), "bad ( utf");
  EXPECT_EQ(printable_tail("caf\xc3\xa9", 5, 1), "");  // never half a character
  EXPECT_EQ(printable_tail("", 5, 100), "");
  EXPECT_EQ(printable_tail("\x1b[", 5, 100), "");
}

TEST(ConsoleRing, KeepsTheNewestAndCountsWhatItDropped) {
  ConsoleRing ring(8);
  ring.append("abc");
  EXPECT_EQ(ring.tail(100), "abc");
  EXPECT_EQ(ring.tail(2), "bc");
  ring.append("defghij");
  EXPECT_EQ(ring.tail(100), "cdefghij");
  EXPECT_EQ(ring.dropped(), 2U);
  ring.append("0123456789");
  EXPECT_EQ(ring.tail(3), "789");
  EXPECT_EQ(ring.tail(100), "23456789");
  EXPECT_EQ(ring.written(), 20U);
  EXPECT_EQ(ring.size(), 8U);
}

TEST(ConsoleRing, AgreesWithAPlainStringWhateverTheChunks) {
  ConsoleRing ring(100);
  std::string all;
  for (std::size_t i = 0; i < 300; ++i) {
    std::string const chunk(i % 37, static_cast<char>('a' + i % 26));
    all += chunk;
    ring.append(chunk);
    auto const wanted = i % 101;
    auto const kept = all.size() > 100 ? all.substr(all.size() - 100) : all;
    ASSERT_EQ(ring.tail(wanted), kept.substr(kept.size() - std::min(kept.size(), wanted))) << i;
  }
}

TEST(Tsc, IsMeasuredTheSameTwice) {
  auto const first = measure_tsc_khz();
  if (!first) GTEST_SKIP() << "no usable counter here: " << first.error().message();
  auto const second = measure_tsc_khz();
  ASSERT_TRUE(second) << second.error().message();
  auto const apart = *first > *second ? *first - *second : *second - *first;
  EXPECT_LT(apart, *first / 100);
}

}  // namespace
}  // namespace vmm
