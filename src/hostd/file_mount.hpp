#pragma once

#include "os/fd.hpp"

#include <sys/types.h>

#include <string>

/// One file as a mount of its own, for programs that open by path: no path of the host is told,
/// none can be exchanged, and the mount is gone with the last process that sees it.
namespace hostd {

/// A detached mount of the regular file `file`, in which its owner's rights are `user`'s: nothing
/// about the file itself changes. Without set-user-id, devices and execution. Needs a file system
/// that can map users (ext4, XFS, btrfs, tmpfs of kernels since 6.3).
base::Result<os::Fd> mount_for_user(os::FdRef file, uid_t user, bool writable);

/// A detached mount of what lies at `path`, as it is; no link is followed.
base::Result<os::Fd> mount_of_path(std::string const& path);

}  // namespace hostd
