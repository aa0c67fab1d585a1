#pragma once

#include "base/result.hpp"

#include <cstdint>
#include <string>

namespace hostd {

/// Gives `rules` to the kernel in one transaction, in the thread's network namespace: all or
/// nothing. The text is ours (constants and numbers), never anybody's input.
base::Result<void> load_rules(std::string const& rules);

/// What the kernel answers to a `list` command of ours, without counts and handles: the same rules
/// always make the same text. Costs a process of some 10 ms.
base::Result<std::string> list_rules(std::string const& command = "list ruleset\n");

/// The same with counts, which change by themselves.
base::Result<std::string> list_counts(std::string const& command);

/// Grows by one with each transaction that changes rules in the thread's network namespace, whoever
/// makes it. Costs three system calls.
base::Result<std::uint32_t> rules_generation();

}  // namespace hostd
