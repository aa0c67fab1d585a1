#include "os/block_device.hpp"

#include "os/text_file.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdio>
#include <sstream>

#include <fcntl.h>
#include <unistd.h>

namespace os {
namespace {

/// Limits of control groups are for whole disks: /sys/dev/block/8:1/partition says that 8:1 is a
/// part of one.
DeviceNumber whole_disk(DeviceNumber device) {
  auto const base = fmt::format("/sys/dev/block/{}:{}", device.major, device.minor);
  if (::access((base + "/partition").c_str(), F_OK) != 0) return device;
  auto const text = read_text(base + "/../dev", 64);
  DeviceNumber disk;
  if (text && std::sscanf(text->c_str(), "%u:%u", &disk.major, &disk.minor) == 2)
    return disk;  // NOLINT(cert-err34-c)
  return device;
}

/// The source of the mount with that id (first word of a line of mountinfo). By id and not by
/// device number, because stat() of a file on btrfs shows the number of its subvolume, which stands
/// nowhere else.
std::optional<DeviceNumber> source_of_mount(std::uint64_t mount) {
  auto const wanted = std::to_string(mount);
  std::istringstream lines(read_text("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, word, type, source;
    words >> id;
    if (id != wanted) continue;
    while (words >> word && word != "-") {
    }
    words >> type >> source;
    struct stat info{};
    if (!source.starts_with('/') || ::stat(source.c_str(), &info) != 0 || !S_ISBLK(info.st_mode))
      return std::nullopt;
    return DeviceNumber{.major = major(info.st_rdev), .minor = minor(info.st_rdev)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<DeviceNumber> device_behind(FdRef file) {
  struct statx info{};
  if (::statx(file.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &info) != 0)
    return std::nullopt;
  if (info.stx_dev_major != 0)
    return whole_disk({.major = info.stx_dev_major, .minor = info.stx_dev_minor});
  if ((info.stx_mask & STATX_MNT_ID) == 0) return std::nullopt;
  auto const source = source_of_mount(info.stx_mnt_id);
  if (!source) return std::nullopt;
  return whole_disk(*source);
}

}  // namespace os
