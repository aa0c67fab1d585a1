#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Why a machine ended, from what the kernel, the VMM and the guest's console say. A pure rule.
namespace vmm {

enum class ExitCause : std::uint8_t {
  asked,           // we ended it
  guest_shutdown,  // the guest halted or powered off
  guest_reboot,    // the guest asked for a reset
  guest_panic,     // the guest's kernel gave up
  killed,          // somebody on the host killed the VMM
  out_of_memory,   // the control group's limit killed it
  crashed,         // the VMM broke: a signal of its own making, or a failure status
  unknown,
};

/// What the launcher knows about an ended process.
struct ProcessEnd {
  std::int32_t wait_status = -1;  // as from waitpid; -1: unknown
  bool out_of_memory = false;
};

struct ExitEvidence {
  ProcessEnd process;
  bool asked = false;
  std::optional<std::string> shutdown_reason;  // the VMM's word: "guest-shutdown", "guest-reset", …
  bool panicked = false;                       // the VMM told of a panic device
  std::string_view console_tail;
};

struct Exit {
  ExitCause cause = ExitCause::unknown;
  std::string detail;        // a sentence for the owner of the sandbox
  std::string console_tail;  // last lines, printable
};

/// The kernel's word (out of memory, signals) goes before the VMM's, the VMM's before the
/// console's: a guest can lie on its console, and then only about itself.
Exit explain_exit(ExitEvidence const& evidence);

/// The last `lines_max` lines of a console, at most `bytes_max` bytes, as valid text: control
/// sequences and bytes that are not UTF-8 taken out.
std::string printable_tail(std::string_view console, std::size_t lines_max, std::size_t bytes_max);

}  // namespace vmm
