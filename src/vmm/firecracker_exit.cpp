#include "vmm/firecracker.hpp"

#include <sys/wait.h>

namespace vmm::firecracker {
namespace {

/// Statuses by which it tells what ended it (its own list; 128 and more are signals that it
/// caught).
std::string_view words_of(int status) {
  switch (status) {
    case 148:
      return "the virtual machine's process made a forbidden system call";
    case 149:
      return "the virtual machine's process lost a page of its memory file";
    case 151:
      return "the virtual machine's process reached the size limit of a file";
    case 152:
    case 153:
      return "the virtual machine's process was started with wrong arguments";
    case 154:
      return "the virtual machine's process reached its limit of processor time";
    case 150:
    case 155:
    case 156:
    case 157:
      return "the virtual machine's process crashed";
    default:
      return {};
  }
}

}  // namespace

Exit exit_of(ExitEvidence evidence) {
  auto const status = evidence.process.wait_status;
  bool const exited =
      status != -1 && WIFEXITED(status) && !evidence.asked && !evidence.process.out_of_memory;
  if (exited && WEXITSTATUS(status) == 0) {
    bool const down = evidence.console_tail.contains("reboot: Power down") ||
                      evidence.console_tail.contains("reboot: System halted");
    evidence.shutdown_reason = down ? "guest-shutdown" : "guest-reset";
  }
  auto exit = vmm::explain_exit(evidence);
  auto const words = exited ? words_of(WEXITSTATUS(status)) : std::string_view();
  if (!words.empty()) {
    exit.cause = ExitCause::crashed;
    exit.detail = words;
  }
  return exit;
}

}  // namespace vmm::firecracker
