#pragma once

#include "cli/progress.hpp"
#include "wire/config.hpp"

/// What guests start from: kernel, initramfs and the template `base`, made by the scripts of
/// images/.
namespace cli {

/// The folder with build_guest.sh: SPACE_IMAGES_DIR, or images/ in or above `program_dir` (a
/// clone), or /usr/share/space/images.
base::Result<std::string> find_images(std::string const& program_dir);

/// <data_dir>/guest: vmlinux, initrd.gz, guest.json. The unpacked kernel is shared between
/// installations in the cache directory.
base::Result<void> ensure_guest(wire::Config const& config,
                                std::string const& images,
                                Progress& progress);

/// Builds the template `base` in the cache directory when it is missing or old, and copies it into
/// the pool as templates/<build>/disk.img. Returns <build>.
base::Result<std::string> ensure_template(wire::Config const& config,
                                          std::string const& images,
                                          Progress& progress);

/// /var/cache/space: can be thrown away at any time.
std::string cache_dir();

}  // namespace cli
