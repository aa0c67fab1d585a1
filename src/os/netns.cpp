#include "os/netns.hpp"

#include "base/log.hpp"

#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#ifndef NSFS_MAGIC
#define NSFS_MAGIC 0x6e736673
#endif

namespace os {

base::Result<Fd> InNetns::current() {
  Fd here(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!here) return base::fail_errno("open the own network namespace");
  return here;
}

base::Result<InNetns> InNetns::enter(FdRef netns) {
  auto home = current();
  if (!home) return base::passing(home);
  if (::setns(netns.get(), CLONE_NEWNET) != 0) return base::fail_errno("enter a network namespace");
  return InNetns(std::move(*home));
}

base::Result<InNetns> InNetns::make() {
  auto home = current();
  if (!home) return base::passing(home);
  if (::unshare(CLONE_NEWNET) != 0) return base::fail_errno("make a network namespace");
  return InNetns(std::move(*home));
}

InNetns::~InNetns() {
  if (!home_) return;
  if (::setns(home_.get(), CLONE_NEWNET) != 0) {
    base::log::error("netns_no_way_back", {{"errno", errno}});
    std::abort();
  }
}

namespace {

/// True when `path` is the root of a mount.
bool is_mount_point(std::string const& path) {
  struct statx info{};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, 0, &info) != 0) return false;
  return (info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0 &&
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace

base::Result<void> prepare_netns_directory(std::string const& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return base::fail_errno("make the directory for network namespaces", directory);
  }
  if (is_mount_point(directory)) return {};
  if (::mount(directory.c_str(), directory.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    return base::fail_errno("mount the directory for network namespaces", directory);
  }
  if (::mount(nullptr, directory.c_str(), nullptr, MS_PRIVATE, nullptr) != 0) {
    return base::fail_errno("make the directory for network namespaces private", directory);
  }
  return {};
}

void release_netns_directory(std::string const& directory) {
  if (is_mount_point(directory)) ::umount2(directory.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
}

base::Result<void> pin_netns(FdRef netns, std::string const& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0));
  if (!file) return base::fail_errno("make the file of a network namespace", path);
  auto const source = fmt::format("/proc/thread-self/fd/{}", netns.get());
  if (::mount(source.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    auto failed = base::fail_errno("pin a network namespace", path);
    ::unlink(path.c_str());
    return failed;
  }
  return {};
}

base::Result<Fd> open_pinned_netns(std::string const& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT)
    return base::fail(base::Code::not_found, "no such network namespace", path);
  if (!file) return base::fail_errno("open a network namespace", path);
  struct statfs kind{};
  if (::fstatfs(file.get(), &kind) != 0)
    return base::fail_errno("look at a network namespace", path);
  if (kind.f_type != NSFS_MAGIC)
    return base::fail(base::Code::not_found, "no namespace is mounted there", path);
  return file;
}

base::Result<void> unpin_netns(std::string const& path) {
  // Several mounts can lie on each other when a test or an operator repeated one.
  for (int layers = 0; layers < 16; ++layers) {
    if (::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) break;
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return base::fail_errno("remove the file of a network namespace", path);
  return {};
}

}  // namespace os
