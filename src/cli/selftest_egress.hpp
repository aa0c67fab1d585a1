#pragma once

#include "cli/output.hpp"

/// `space selftest egress`: the attack suite of test/security against the programs and the kernel
/// of this host. Starts an installation of its own beside the one that runs, with an uplink that
/// leads nowhere but to small servers of ours, boots a sandbox in it and tries the catalogue as
/// root in the guest; looks at the rules of the real uplink without touching them; removes
/// everything.
namespace cli {

/// Exit code 1 when an attack succeeded, a control failed, or the real uplink's rules are not ours.
int selftest_egress(Output const& output);

}  // namespace cli
