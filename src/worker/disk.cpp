#include "worker/disk.hpp"

#include "base/id.hpp"

#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <optional>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace worker {
namespace {

constexpr std::uint64_t mib = 1 << 20;

std::vector<std::string> names_in(std::string const& path) {
  std::vector<std::string> names;
  DIR* const dir = ::opendir(path.c_str());
  if (!dir) return names;
  while (auto const* item =
             ::readdir(dir)) {  // NOLINT(concurrency-mt-unsafe): each DIR has one reader
    if (item->d_name[0] != '.') names.emplace_back(item->d_name);
  }
  ::closedir(dir);
  return names;
}

base::Result<void> copy_range(os::FdRef from, os::Fd const& to, off_t at, off_t end) {
  while (at < end) {
    loff_t in = at;
    loff_t out = at;
    auto const done =
        ::copy_file_range(from.get(), &in, to.get(), &out, static_cast<std::size_t>(end - at), 0);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return base::fail_errno("copy the template's image");
    if (done == 0) return base::fail(base::Code::internal, "the template's image ended early");
    at += done;
  }
  return {};
}

/// Only what is written in the image; holes stay holes.
base::Result<void> copy_sparse(os::FdRef from, os::Fd const& to, off_t size) {
  if (::ftruncate(to.get(), size) != 0) return base::fail_errno("size the disk");
  for (off_t at = 0; at < size;) {
    auto const data = ::lseek(from.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return {};
    if (data < 0) return base::fail_errno("read the template's image");
    auto const hole = ::lseek(from.get(), data, SEEK_HOLE);
    if (hole < 0) return base::fail_errno("read the template's image");
    if (auto copied = copy_range(from, to, data, hole); !copied) return copied;
    at = hole;
  }
  return {};
}

base::Result<os::Fd> create(std::string const& path) {
  os::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno("make the disk's file", path);
  return file;
}

/// Really clones one block: what a file system's name promises is not what it does.
base::Result<CloneMethod> probe(std::string const& dir) {
  auto const from_path = dir + "/.probe-from";
  auto const to_path = dir + "/.probe-to";
  ::unlink(from_path.c_str());
  ::unlink(to_path.c_str());
  auto const from = create(from_path);
  if (!from) return std::unexpected(from.error());
  auto const to = create(to_path);
  ::unlink(from_path.c_str());
  if (!to) return std::unexpected(to.error());
  ::unlink(to_path.c_str());
  std::string const block(std::size_t{64} * 1024, 'x');
  if (::write(from->get(), block.data(), block.size()) != static_cast<ssize_t>(block.size())) {
    return base::fail_errno("write into the pool", dir);
  }
  return ::ioctl(to->get(), FICLONE, from->get()) == 0 ? CloneMethod::reflink : CloneMethod::copy;
}

}  // namespace

std::string_view name_of(CloneMethod method) noexcept {
  return method == CloneMethod::reflink ? "reflink" : "copy";
}

bool is_build_name(std::string_view name) noexcept {
  auto const plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 128 && name[0] != '.' && std::ranges::all_of(name, plain);
}

base::Result<CloneMethod> DiskPool::open() {
  auto const dir = dir_ + "/sandboxes";
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail_errno("make the pool's directory", dir);
  auto method = probe(dir);
  if (method) method_ = *method;
  return method;
}

base::Result<os::Fd> DiskPool::clone(std::string const& build,
                                     std::string const& sandbox,
                                     std::uint32_t disk_mib) const {
  if (!is_build_name(build))
    return base::fail(base::Code::invalid_argument, "build: not the name of a template build");
  auto const image_path = fmt::format("{}/templates/{}/disk.img", dir_, build);
  os::Fd const image(::open(image_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!image && errno == ENOENT) {
    return base::fail(base::Code::not_found,
                      fmt::format("the template build {} is not on this host", build));
  }
  if (!image) return base::fail_errno("open the template's image", image_path);
  return clone_image(image, sandbox, disk_mib);
}

base::Result<void> DiskPool::fill(os::FdRef from, os::Fd const& to) const {
  if (method_ == CloneMethod::reflink) {
    if (::ioctl(to.get(), FICLONE, from.get()) != 0) return base::fail_errno("clone an image");
    return {};
  }
  struct stat about{};
  if (::fstat(from.get(), &about) != 0) return base::fail_errno("look at an image");
  return copy_sparse(from, to, about.st_size);
}

base::Result<os::Fd> DiskPool::clone_image(os::FdRef image,
                                           std::string const& sandbox,
                                           std::uint32_t disk_mib) const {
  struct stat about{};
  if (::fstat(image.get(), &about) != 0) return base::fail_errno("look at an image");
  auto const wanted = static_cast<off_t>(disk_mib * mib);
  if (wanted < about.st_size) {
    auto const least = (static_cast<std::uint64_t>(about.st_size) + mib - 1) / mib;
    return base::fail(base::Code::invalid_argument,
                      fmt::format("disk_mib: this template needs at least {} MiB", least));
  }
  auto const dir = fmt::format("{}/sandboxes/{}", dir_, sandbox);
  if (::mkdir(dir.c_str(), 0700) != 0)
    return base::fail_errno("make the sandbox's disk directory", dir);
  auto disk = create(dir + "/disk.img");
  base::Result<void> filled;
  if (disk) filled = fill(image, *disk);
  if (disk && filled && ::ftruncate(disk->get(), wanted) != 0)
    filled = base::fail_errno("size the disk");
  if (disk && filled) return disk;
  auto failed = disk ? std::move(filled.error()) : std::move(disk.error());
  auto const undone = remove(sandbox);
  if (!undone)
    return base::fail(failed.code(),
                      failed.message(),
                      failed.detail() + "; and to undo it: " + undone.error().message());
  return std::unexpected(std::move(failed));
}

base::Result<void> DiskPool::copy_out(std::string const& sandbox, std::string const& path) const {
  auto const from_path = fmt::format("{}/sandboxes/{}/disk.img", dir_, sandbox);
  os::Fd const from(::open(from_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!from) return base::fail_errno("open the sandbox's disk", from_path);
  auto const to = create(path);
  if (!to) return std::unexpected(to.error());
  return fill(from, *to);
}

base::Result<void> DiskPool::rename(std::string const& from, std::string const& to) const {
  auto const old_dir = fmt::format("{}/sandboxes/{}", dir_, from);
  auto const new_dir = fmt::format("{}/sandboxes/{}", dir_, to);
  if (std::rename(old_dir.c_str(), new_dir.c_str()) != 0)
    return base::fail_errno("rename a disk's directory", old_dir);
  return {};
}

base::Result<void> DiskPool::keep_base(os::FdRef memory, std::string const& sandbox) const {
  auto const from = fmt::format("/proc/self/fd/{}", memory.get());
  auto const to = fmt::format("{}/sandboxes/{}/base", dir_, sandbox);
  if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return base::fail_errno("keep the memory file that a machine maps", to);
  return {};
}

bool DiskPool::has_base(std::string const& sandbox) const {
  return ::access(fmt::format("{}/sandboxes/{}/base", dir_, sandbox).c_str(), F_OK) == 0;
}

base::Result<void> DiskPool::link_disk(std::string const& sandbox, std::string const& into) const {
  auto const from = fmt::format("{}/sandboxes/{}/disk.img", dir_, sandbox);
  if (::link(from.c_str(), (into + "/disk.img").c_str()) != 0)
    return base::fail_errno("keep a sandbox's disk", from);
  return {};
}

base::Result<void> DiskPool::link_base(std::string const& sandbox, std::string const& into) const {
  auto const from = fmt::format("{}/sandboxes/{}/base", dir_, sandbox);
  if (::link(from.c_str(), (into + "/base").c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("keep a sandbox's memory file", from);
  return {};
}

base::Result<void> DiskPool::remove(std::string const& sandbox) const {
  if (!base::SandboxId::parse(sandbox))
    return base::fail(base::Code::invalid_argument, "not a sandbox's id");
  auto const dir = fmt::format("{}/sandboxes/{}", dir_, sandbox);
  for (char const* file : {"/disk.img", "/base"}) {
    if (::unlink((dir + file).c_str()) != 0 && errno != ENOENT)
      return base::fail_errno("remove the disk", dir + file);
  }
  if (::rmdir(dir.c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("remove the disk's directory", dir);
  return {};
}

std::uint32_t DiskPool::image_mib(std::string const& build) const {
  struct stat about{};
  if (!is_build_name(build) ||
      ::stat(fmt::format("{}/templates/{}/disk.img", dir_, build).c_str(), &about) != 0)
    return 0;
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(about.st_size) + mib - 1) / mib);
}

std::vector<std::string> DiskPool::sandboxes() const {
  return names_in(dir_ + "/sandboxes");
}

std::vector<std::string> DiskPool::builds() const {
  auto names = names_in(dir_ + "/templates");
  std::erase_if(names, [&](std::string const& name) {
    struct stat about{};
    return !is_build_name(name) ||
           ::stat(fmt::format("{}/templates/{}/disk.img", dir_, name).c_str(), &about) != 0;
  });
  std::ranges::sort(names);
  return names;
}

std::string DiskPool::latest_build() const {
  std::string latest;
  std::int64_t made = 0;
  for (auto const& build : builds()) {
    struct stat about{};
    if (::stat(fmt::format("{}/templates/{}/disk.img", dir_, build).c_str(), &about) != 0) continue;
    auto const at = about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec;
    if (latest.empty() || at > made) {
      latest = build;
      made = at;
    }
  }
  return latest;
}

base::Result<PoolSpace> DiskPool::space() const {
  struct statvfs about{};
  if (::statvfs(dir_.c_str(), &about) != 0) return base::fail_errno("measure the pool", dir_);
  std::uint64_t templates = 0;  // and snapshots
  for (auto const& build : builds()) {
    struct stat image{};
    if (::stat(fmt::format("{}/templates/{}/disk.img", dir_, build).c_str(), &image) == 0) {
      templates += static_cast<std::uint64_t>(image.st_blocks) * 512;
    }
  }
  for (auto const& name : names_in(dir_ + "/snapshots")) {
    for (char const* file : {"memory", "pages"}) {
      struct stat memory{};
      if (::stat(fmt::format("{}/snapshots/{}/{}", dir_, name, file).c_str(), &memory) == 0)
        templates += static_cast<std::uint64_t>(memory.st_blocks) * 512;
    }
  }
  auto const total = about.f_blocks * about.f_frsize;
  // A twentieth for the file system's own metadata: it grows with every clone.
  auto const kept = templates + total / 20;
  return PoolSpace{total > kept ? (total - kept) / mib : 0,
                   (total - about.f_bfree * about.f_frsize) / mib};
}

base::Result<void> DiskPool::has_room(std::uint64_t disk_mib, std::uint64_t headroom_mib) const {
  struct statvfs pool{}, below{};
  if (::statvfs(dir_.c_str(), &pool) != 0 || ::statvfs((dir_ + "/..").c_str(), &below) != 0)
    return base::fail_errno("measure the pool", dir_);
  auto const free_mib = [](struct statvfs const& about) {
    return about.f_bavail * about.f_frsize / mib;
  };
  // A fiftieth of a small pool: space() keeps a twentieth back, so that promises never get here.
  auto const headroom = std::min(headroom_mib, pool.f_blocks * pool.f_frsize / mib / 50);
  if (free_mib(pool) < disk_mib + headroom) {
    return base::fail(
        base::Code::exhausted,
        fmt::format("this host's disk pool has {} MiB free, and this sandbox may write "
                    "{}: something other than sandboxes fills the pool",
                    free_mib(pool),
                    disk_mib));
  }
  if (free_mib(below) >= headroom) return {};
  return base::fail(base::Code::exhausted,
                    fmt::format("the file system under this host's disk pool has {} MiB free: "
                                "something other than sandboxes fills it",
                                free_mib(below)));
}

base::Result<void> DiskPool::settle() const {
  os::Fd const pool(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!pool) return base::fail_errno("open the pool", dir_);
  struct statfs about{};
  if (::fstatfs(pool.get(), &about) != 0) return base::fail_errno("measure the pool", dir_);
  if (about.f_type != BTRFS_SUPER_MAGIC) return {};
  if (::syncfs(pool.get()) != 0) return base::fail_errno("write the pool's changes to disk", dir_);
  return {};
}

}  // namespace worker
