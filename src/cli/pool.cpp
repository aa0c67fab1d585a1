#include "cli/pool.hpp"

#include "cli/layout.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

namespace cli {
namespace {

constexpr std::uint64_t pool_mib_min = 2048;

base::Result<os::Fd> scratch_file(std::string const& directory) {
  os::Fd file(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno("make a scratch file in " + directory);
  return file;
}

base::Result<std::uint64_t> free_mib(std::string const& directory) {
  struct statvfs status{};
  if (statvfs(directory.c_str(), &status) != 0)
    return base::fail_errno("look at the free space of " + directory);
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize >> 20;
}

base::Result<void> make_image(std::string const& image, std::uint64_t size_mib) {
  std::string const temporary = image + ".new";
  unlink(temporary.c_str());
  {
    os::Fd const file(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return base::fail_errno("make the pool's image");
    if (ftruncate(file.get(), static_cast<off_t>(size_mib << 20)) != 0)
      return base::fail_errno("size the pool's image");
  }
  auto made =
      run_checked({find_program("mkfs.btrfs"), "--quiet", "--metadata", "single", temporary});
  if (!made) return base::passing(made, "make the pool's file system");
  if (rename(temporary.c_str(), image.c_str()) != 0)
    return base::fail_errno("name the pool's image");
  return {};
}

/// mkfs leaves 8 MiB for the file system's own records, and the kernel gives them more only while
/// nothing else has taken the space. A pool that sandboxes have filled would have none left, and
/// even what is removed then frees nothing. Moving them while they are empty makes room of the
/// usual size.
base::Result<void> reserve_metadata(std::string const& pool) {
  auto moved = run_checked({find_program("btrfs"), "balance", "start", "-m", pool});
  if (!moved) return base::passing(moved, "reserve space for the pool's records");
  return {};
}

base::Result<PoolMade> mount_image(wire::Config const& config) {
  std::string const image = config.data_dir + "/pool.btrfs";
  PoolMade result{.loop = true};
  struct stat status{};
  if (stat(image.c_str(), &status) != 0) {
    auto available = free_mib(config.data_dir);
    if (!available) return base::passing(available);
    auto size = plan_pool_mib(config.pool_mib_max, *available);
    if (!size) return base::passing(size);
    auto made = make_image(image, *size);
    if (!made) return base::passing(made);
    result.fresh = true;
    result.size_mib = *size;
  } else {
    result.size_mib = static_cast<std::uint64_t>(status.st_size) >> 20;
  }
  auto mounted = run_checked({find_program("mount"),
                              "-t",
                              "btrfs",
                              "-o",
                              "loop,discard=async,noatime,nodev,nosuid,noexec",
                              image,
                              config.pool()});
  if (!mounted) return base::passing(mounted, "mount the pool");
  if (result.fresh) {
    auto reserved = reserve_metadata(config.pool());
    if (!reserved) return base::passing(reserved);
  }
  return result;
}

}  // namespace

base::Result<bool> can_reflink(std::string const& directory) {
  auto from = scratch_file(directory);
  if (!from && (from.error().message().ends_with("not supported")))
    return false;  // no O_TMPFILE: no clone either
  if (!from) return base::passing(from);
  auto into = scratch_file(directory);
  if (!into) return base::passing(into);
  std::string const block(65536, 'x');
  if (pwrite(from->get(), block.data(), block.size(), 0) != static_cast<ssize_t>(block.size())) {
    return base::fail_errno("write a scratch file in " + directory);
  }
  if (ioctl(into->get(), FICLONE, from->get()) == 0) return true;
  if (errno == EOPNOTSUPP || errno == ENOTTY || errno == EINVAL || errno == EXDEV) return false;
  return base::fail_errno("clone a file in " + directory);
}

bool is_mounted(std::string const& path) {
  std::ifstream mounts("/proc/self/mounts");
  std::string line, device, target;
  while (std::getline(mounts, line)) {
    if (std::istringstream(line) >> device >> target && target == path) return true;
  }
  return false;
}

base::Result<std::uint64_t> plan_pool_mib(std::uint64_t asked_mib, std::uint64_t free_mib) {
  auto const wanted = asked_mib != 0 ? asked_mib : std::max(pool_mib_min, free_mib / 5 * 4);
  if (wanted < pool_mib_min) {
    return base::fail(
        base::Code::invalid_argument,
        fmt::format("a pool of {} MiB is too small: at least {} MiB", wanted, pool_mib_min));
  }
  if (wanted > free_mib) {
    return base::fail(base::Code::exhausted,
                      fmt::format("the pool needs {} MiB and {} MiB are free; free some space or "
                                  "choose another --data-dir",
                                  wanted,
                                  free_mib));
  }
  return wanted;
}

base::Result<PoolMade> ensure_pool(wire::Config const& config) {
  auto made = ensure_directory({config.pool(), "root", "root", 0755});
  if (!made) return base::passing(made);
  PoolMade result;
  auto clones = can_reflink(config.pool());
  if (!clones) return base::passing(clones);
  if (!*clones) {
    auto mounted = mount_image(config);
    if (!mounted) return base::passing(mounted);
    result = *mounted;
    clones = can_reflink(config.pool());
    if (!clones) return base::passing(clones);
    if (!*clones)
      return base::fail(base::Code::internal,
                        "the pool was made and mounted, yet it cannot clone files");
  } else {
    result.loop = is_mounted(config.pool());
  }
  for (Place const& place :
       {Place{config.pool(), "root", "root", 0755},
        Place{config.pool() + "/templates", "root", "root", 0755},
        Place{config.pool() + "/sandboxes", config.worker_user, config.worker_user, 0700},
        Place{config.pool() + "/suspended", config.worker_user, config.worker_user, 0700},
        Place{config.pool() + "/snapshots", config.worker_user, config.worker_user, 0700}}) {
    auto done = ensure_directory(place);
    if (!done) return base::passing(done);
  }
  return result;
}

base::Result<void> unmount_pool(wire::Config const& config) {
  if (!is_mounted(config.pool())) return {};
  auto done = run_checked({find_program("umount"), config.pool()});
  if (!done) return base::passing(done, "unmount the pool");
  return {};
}

}  // namespace cli
