#pragma once

#include "base/result.hpp"
#include "os/fd.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>

/// What the kernel tells of a process's memory (/proc/PID/pagemap and mem). All of it blocks.
namespace worker {

/// Exactly so many bytes from there. Errors: unavailable (the process has ended), internal.
base::Result<void> read_at(os::FdRef file, void* into, std::size_t bytes, std::uint64_t at);

/// So many pages, beginning with that one, counted from `address`.
using PagesSeen = std::function<base::Result<void>(std::uint64_t first, std::uint64_t count)>;

/// Of the first `pages` pages from `address`: calls for each run of those that the process has for
/// itself alone, in order, until a call fails. A long run may come in parts.
base::Result<void> each_changed_run(os::FdRef map,
                                    std::uint64_t address,
                                    std::uint64_t pages,
                                    PagesSeen const& seen);

}  // namespace worker
