#pragma once

#include "base/result.hpp"

#include <string>
#include <string_view>

namespace agent {

/// The whole of a small file (of /proc, /sys or ours); at most 1 MiB is read.
base::Result<std::string> read_small_file(std::string const& path);

/// One write(2) of the whole text into an existing file: what files of the kernel want.
base::Result<void> write_kernel_file(std::string const& path, std::string_view text);

/// Puts a whole file into `directory`, replacing whatever bears that name — a symbolic link itself,
/// not what it points to — by way of a temporary file and a rename. Leaves it alone when it is the
/// same already, and writes over one of root's that is as long (one page at most: a reader sees the
/// old or the new). Does not follow a directory that is a symbolic link.
base::Result<void> place_file(std::string const& directory,
                              std::string const& name,
                              std::string_view content);

}  // namespace agent
