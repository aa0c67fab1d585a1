#pragma once

#include "base/result.hpp"
#include "wire/config.hpp"

/// The reflink file system on which disks of sandboxes are clones of their template's image.
namespace cli {

/// Tries a real FICLONE between two files of `directory`; what a file system claims to be proves
/// nothing.
base::Result<bool> can_reflink(std::string const& directory);

/// True when something is mounted exactly at `path`.
bool is_mounted(std::string const& path);

/// How large a loop-mounted pool may get. Pure: `asked` MiB (0 = four fifths of the free space: the
/// image is sparse), at least 2 GiB, at most what is free.
base::Result<std::uint64_t> plan_pool_mib(std::uint64_t asked_mib, std::uint64_t free_mib);

struct PoolMade {
  bool loop = false;   // a btrfs image of ours is mounted there
  bool fresh = false;  // made by this call
  std::uint64_t size_mib = 0;
};

/// Makes <data_dir>/pool usable: as it is when the data directory's file system can clone, else a
/// sparse btrfs image <data_dir>/pool.btrfs that is mounted there. The directories below belong to
/// their users afterwards. Safe to repeat, also after a reboot.
base::Result<PoolMade> ensure_pool(wire::Config const& config);

/// Unmounts the pool when it is a mount of ours. Fails (busy) while machines use it.
base::Result<void> unmount_pool(wire::Config const& config);

}  // namespace cli
