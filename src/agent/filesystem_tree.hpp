#pragma once

#include "agent/filesystem_failure.hpp"
#include "agent/users.hpp"

#include <sys/types.h>

#include <optional>

/// Changes to the tree. All of it blocks.
namespace agent {

/// Makes `path` and the parents it lacks, 0755 and owned by the user. Fine when they exist already,
/// also when somebody else makes them at the same time. ENOTDIR when something in the way is no
/// directory.
FileResult<void> ensure_directories(std::string const& path, User const& user);

/// MakeDir: as above, but EEXIST for an existing directory and EINVAL for anything else that bears
/// the name. `mode`: the permission bits of the last one.
FileResult<void> make_directory(std::string const& path,
                                User const& user,
                                std::optional<mode_t> mode);

/// Renames, making the parents of the destination; copies and removes when it lies on another file
/// system (the copy gets its name only when it is whole). ENOENT when there is no source.
FileResult<void> move_path(std::string const& source,
                           std::string const& destination,
                           User const& user);

/// Removes whatever bears the name, with all below it; links are not followed. A missing path is
/// success.
FileResult<void> remove_tree(std::string const& path);

}  // namespace agent
