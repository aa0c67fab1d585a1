#pragma once

#include <string>

/// What code that took a jailed process over would try against the host: one action each, for
/// `space selftest host`. The same function runs in the jail (space-probe), where it must fail, and
/// outside of it, where it must succeed, or the attempt proves nothing.
namespace hostd {

/// 0 when it worked, else the error number; -1 for an action that is not known. `argument` as the
/// action needs it: a path, "address:port", a process number, "process:address".
int probe(std::string const& action, std::string const& argument);

}  // namespace hostd
