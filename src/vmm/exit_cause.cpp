#include "vmm/exit_cause.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

namespace vmm {
namespace {

constexpr std::string_view panic_line = "Kernel panic - not syncing";

Exit from_signal(int signal) {
  switch (signal) {
    case SIGKILL:
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return {ExitCause::killed, "the virtual machine's process was killed on the host", {}};
    case SIGSYS:
      return {ExitCause::crashed, "the virtual machine's process made a forbidden system call", {}};
    default:
      return {ExitCause::crashed,
              fmt::format("the virtual machine's process crashed with signal {}", signal),
              {}};
  }
}

Exit panic_exit(std::string_view console) {
  auto const at = console.rfind(panic_line);
  std::string detail = "the guest's kernel panicked";
  if (at != std::string_view::npos) {
    auto const line = console.substr(at, std::min<std::size_t>(console.find('\n', at) - at, 200));
    auto const what = printable_tail(line.substr(panic_line.size()), 1, 200);
    if (what.starts_with(": ")) detail += what;
  }
  return {ExitCause::guest_panic, std::move(detail), {}};
}

Exit from_guest(ExitEvidence const& evidence) {
  auto const& reason = *evidence.shutdown_reason;
  // A panic ends in a reset (panic=-1), so the console tells which of the two it was.
  bool const panic_seen = evidence.console_tail.find(panic_line) != std::string_view::npos;
  if (reason == "guest-panic" || (reason == "guest-reset" && panic_seen))
    return panic_exit(evidence.console_tail);
  if (reason == "guest-reset")
    return {ExitCause::guest_reboot, "the guest rebooted, which ends a sandbox", {}};
  if (reason == "guest-shutdown")
    return {ExitCause::guest_shutdown, "the guest was shut down from inside", {}};
  if (reason == "host-signal") return from_signal(SIGTERM);
  if (reason == "host-qmp-quit")
    return {ExitCause::killed, "the virtual machine was told to quit", {}};
  return {ExitCause::unknown, "the virtual machine ended for a reason it did not name", {}};
}

Exit cause_of(ExitEvidence const& evidence) {
  auto const status = evidence.process.wait_status;
  if (evidence.process.out_of_memory) {
    return {ExitCause::out_of_memory,
            "the virtual machine's process reached its memory limit on the host",
            {}};
  }
  if (evidence.asked) return {ExitCause::asked, "", {}};
  if (status != -1 && WIFSIGNALED(status)) return from_signal(WTERMSIG(status));
  if (evidence.panicked) return panic_exit(evidence.console_tail);
  if (evidence.shutdown_reason) return from_guest(evidence);
  if (evidence.console_tail.find(panic_line) != std::string_view::npos)
    return panic_exit(evidence.console_tail);
  if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    return {ExitCause::crashed,
            fmt::format("the virtual machine's process failed with status {}", WEXITSTATUS(status)),
            {}};
  }
  return {ExitCause::unknown, "the virtual machine ended while nobody watched it", {}};
}

/// Length of the valid UTF-8 sequence at `at`, 0 when there is none.
std::size_t sequence_at(std::string_view text, std::size_t at) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto const lead = byte(at);
  std::size_t const length = lead < 0x80         ? 1
                             : (lead >> 5) == 6  ? 2
                             : (lead >> 4) == 14 ? 3
                             : (lead >> 3) == 30 ? 4
                                                 : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80U) return 0;
  }
  if (length == 2 && lead < 0xC2) return 0;
  if (length == 3 &&
      ((lead == 0xE0 && byte(at + 1) < 0xA0) || (lead == 0xED && byte(at + 1) > 0x9F)))
    return 0;
  if (length == 4 && (lead > 0xF4 || (lead == 0xF0 && byte(at + 1) < 0x90) ||
                      (lead == 0xF4 && byte(at + 1) > 0x8F)))
    return 0;
  return length;
}

/// Behind an escape sequence that begins at `at` ("\x1b[0m").
std::size_t after_escape(std::string_view text, std::size_t at) {
  std::size_t i = at + 1;
  if (i >= text.size() || text[i] != '[') return i;
  for (++i; i < text.size(); ++i) {
    if (text[i] >= '@' && text[i] <= '~') return i + 1;
  }
  return i;
}

}  // namespace

Exit explain_exit(ExitEvidence const& evidence) {
  auto exit = cause_of(evidence);
  exit.console_tail = printable_tail(evidence.console_tail, 20, 4096);
  return exit;
}

std::string printable_tail(std::string_view console, std::size_t lines_max, std::size_t bytes_max) {
  std::string text;
  for (std::size_t i = 0; i < console.size();) {
    if (console[i] == '\x1b') {
      i = after_escape(console, i);
      continue;
    }
    auto const length = sequence_at(console, i);
    bool const control = length == 1 && static_cast<unsigned char>(console[i]) < 0x20 &&
                         console[i] != '\n' && console[i] != '\t';
    if (length > 0 && !control && console[i] != '\x7f') text.append(console.substr(i, length));
    i += std::max<std::size_t>(length, 1);
  }
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  std::size_t from = text.size();
  for (std::size_t lines = 0; from > 0; --from) {
    if (text[from - 1] == '\n' && ++lines == lines_max) break;
  }
  if (text.size() - from > bytes_max) from = text.size() - bytes_max;
  // Never begin inside a sequence.
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U)
    ++from;
  return text.substr(from);
}

}  // namespace vmm
