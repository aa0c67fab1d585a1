#pragma once

#include "base/result.hpp"
#include "os/fd.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace worker {

/// How a sandbox's disk comes from its template's image.
enum class CloneMethod : std::uint8_t {
  reflink,  // shares blocks until they are written: about 1 ms
  copy,     // the pool's file system cannot share: seconds, and the space is used at once
};

std::string_view name_of(CloneMethod method) noexcept;

struct PoolSpace {
  std::uint64_t total_mib =
      0;  // for sandboxes: without templates, snapshots and the file system's own reserve
  std::uint64_t used_mib = 0;  // really written, of all kinds
};

/// The disks below one pool: `templates/<build>/disk.img` (read here, made by others) and
/// `sandboxes/<id>/disk.img`, each in a directory of its own (0700). Blocking; copyable.
///
/// A sandbox's disk is not synced: it dies with its machine, and with the host's power.
class DiskPool {
 public:
  explicit DiskPool(std::string dir) : dir_(std::move(dir)) {}

  /// Makes `sandboxes/` and finds out by doing whether this file system shares blocks.
  base::Result<CloneMethod> open();

  /// The template's image as this sandbox's own disk, grown to `disk_mib`. All or nothing.
  /// Errors: not_found (no such build here), invalid_argument (`disk_mib` is less than the image),
  /// exhausted.
  base::Result<os::Fd> clone(std::string const& build,
                             std::string const& sandbox,
                             std::uint32_t disk_mib) const;
  /// The same from any image.
  base::Result<os::Fd> clone_image(os::FdRef image,
                                   std::string const& sandbox,
                                   std::uint32_t disk_mib) const;
  /// A new file at `path` with what is on the sandbox's disk; its machine must stand still.
  base::Result<void> copy_out(std::string const& sandbox, std::string const& path) const;
  /// `sandboxes/<id>/base`: the memory file that this machine maps, under a name of its own, so
  /// that it is there for a suspend whatever becomes of the snapshot that it belongs to.
  base::Result<void> keep_base(os::FdRef memory, std::string const& sandbox) const;
  /// Does it map one?
  bool has_base(std::string const& sandbox) const;
  /// Second names of the disk, and of the base if there is one, in a directory of this pool.
  base::Result<void> link_disk(std::string const& sandbox, std::string const& into) const;
  base::Result<void> link_base(std::string const& sandbox, std::string const& into) const;
  /// A machine made ahead becomes `to`'s.
  base::Result<void> rename(std::string const& from, std::string const& to) const;
  /// Gone when this succeeds; absent is fine.
  base::Result<void> remove(std::string const& sandbox) const;

  /// Size of a build's image, 0 when it is not here.
  std::uint32_t image_mib(std::string const& build) const;
  std::vector<std::string> sandboxes() const;
  std::vector<std::string> builds() const;
  /// The one whose image was made last; "" without any.
  std::string latest_build() const;
  base::Result<PoolSpace> space() const;
  /// `exhausted` when the file system has no room for a disk of so many MiB and `headroom_mib`
  /// beside it, or the one below it that holds the pool's image none for the headroom. Then
  /// somebody else has filled it, because what was promised here always fits. Two calls of statvfs.
  base::Result<void> has_room(std::uint64_t disk_mib, std::uint64_t headroom_mib) const;
  /// What was removed from btrfs counts as free with its next commit only, half a minute later:
  /// this is that commit. Nothing on other file systems.
  base::Result<void> settle() const;

 private:
  base::Result<void> fill(os::FdRef from, os::Fd const& to) const;

  std::string dir_;
  CloneMethod method_ = CloneMethod::copy;
};

/// A template build's name, safe as one path segment.
bool is_build_name(std::string_view name) noexcept;

}  // namespace worker
