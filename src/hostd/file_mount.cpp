#include "hostd/file_mount.hpp"

#include <linux/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace hostd {
namespace {

base::Result<void> write_map(pid_t child, char const* name, std::string const& map) {
  os::Fd const file(::open(fmt::format("/proc/{}/{}", child, name).c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), map.data(), map.size()) != static_cast<ssize_t>(map.size()))
    return base::fail_errno("map a user");
  return {};
}

/// A user namespace in which the file's owner and group are `user`. It is only a table: nobody
/// lives there.
base::Result<os::Fd> user_table(uid_t owner, gid_t group, uid_t user) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const made(ends[0]);
  os::Fd made_write(ends[1]);
  pid_t const child = ::fork();
  if (child < 0) return base::fail_errno("start a process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(1);
    static_cast<void>(::write(made_write.get(), "x", 1));
    for (;;)
      ::pause();  // until the parent has hold of the namespace
  }
  made_write.reset();
  char byte = 0;
  base::Result<void> step;
  if (::read(made.get(), &byte, 1) != 1)
    step = base::fail(base::Code::internal, "make a user namespace");
  if (step) step = write_map(child, "uid_map", fmt::format("{} {} 1", owner, user));
  if (step) step = write_map(child, "gid_map", fmt::format("{} {} 1", group, user));
  os::Fd table;
  if (step) {
    table = os::Fd(::open(fmt::format("/proc/{}/ns/user", child).c_str(), O_RDONLY | O_CLOEXEC));
    if (!table) step = base::fail_errno("open a user namespace");
  }
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!step) return base::passing(step);
  return table;
}

base::Result<os::Fd> clone_tree(int directory, char const* path, unsigned flags) {
  os::Fd tree(static_cast<int>(
      ::syscall(SYS_open_tree, directory, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags)));
  if (!tree) return base::fail_errno("make a mount of a file");
  return tree;
}

base::Result<void> set_up(os::Fd const& tree, std::uint64_t attributes, int table) {
  mount_attr attr{};
  attr.attr_set = attributes | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  if (table >= 0) {
    attr.attr_set |= MOUNT_ATTR_IDMAP;
    attr.userns_fd = static_cast<std::uint64_t>(table);
  }
  if (::syscall(SYS_mount_setattr, tree.get(), "", AT_EMPTY_PATH, &attr, sizeof attr) != 0)
    return base::fail_errno("protect a mount of a file");
  return {};
}

}  // namespace

base::Result<os::Fd> mount_for_user(os::FdRef file, uid_t user, bool writable) {
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return base::fail_errno("look at a file");
  if (!S_ISREG(info.st_mode)) return base::fail(base::Code::invalid_argument, "not a regular file");
  auto tree = clone_tree(file.get(), "", AT_EMPTY_PATH);
  if (!tree) return base::passing(tree);
  auto table = user_table(info.st_uid, info.st_gid, user);
  if (!table) return base::passing(table);
  auto done = set_up(*tree, writable ? 0 : MOUNT_ATTR_RDONLY, table->get());
  if (!done) return base::passing(done);
  return std::move(*tree);
}

base::Result<os::Fd> mount_of_path(std::string const& path) {
  auto tree = clone_tree(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW);
  if (!tree) return base::passing(tree);
  auto done = set_up(*tree, 0, -1);
  if (!done) return base::passing(done);
  return std::move(*tree);
}

}  // namespace hostd
