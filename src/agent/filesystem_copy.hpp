#pragma once

#include "agent/filesystem_failure.hpp"

namespace agent {

/// Copies a file, link, FIFO or whole directory to another file system, with mode, times, owner (as
/// far as the caller may) and metadata. Builds it under a temporary name beside `destination` and
/// renames it there: whole or not at all. EOPNOTSUPP for sockets and devices.
FileResult<void> copy_across(std::string const& source, std::string const& destination);

/// Appends the content of one open file to another; ENOSPC like the kernel.
FileResult<void> copy_content(int from, int to, std::string const& path);

}  // namespace agent
