#pragma once

#include "os/fd.hpp"

#include <sys/types.h>

#include <optional>

namespace os {

/// A descriptor of a process: readable when it has ended. not_found when there is no such process.
base::Result<Fd> open_process(pid_t pid);
/// True also for a zombie that nobody collected yet.
bool has_ended(FdRef pidfd);
/// Real user id; nullopt when the process is gone.
std::optional<uid_t> user_of_process(pid_t pid);
/// Collects an own child if it has ended: its status as from waitpid; -1 when somebody else
/// collected it.
std::optional<int> try_collect(pid_t child);

}  // namespace os
