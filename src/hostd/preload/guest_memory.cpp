// Loaded into QEMU (LD_PRELOAD) by the jail, nothing else: opening `/guest/memory` gives the descriptor that the
// process was started with (first_jail_fd + 4) instead of a file. QEMU can be given its disk and its network as
// descriptors, but the file of its memory only as a path, which it then opens for reading and writing even where a
// private mapping needs no writing. So a base snapshot, which many machines map and none may change, is passed as a
// descriptor that is open for reading alone, and the jail needs no path, no mount and no file mode for it.
//
// This is no protection. What the machine may do with the file is decided by how the descriptor was opened.

#include <sys/syscall.h>

#include <cstdarg>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace {

constexpr char memory_path[] = "/guest/memory";
constexpr int memory_fd = 9;

int open_any(char const* path, int flags, unsigned mode) {
  if (std::strcmp(path, memory_path) == 0) return ::fcntl(memory_fd, F_DUPFD_CLOEXEC, 0);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // namespace

// The names by which programs with large files and fortified programs call open().
extern "C" {
__attribute__((visibility("default"))) int open64(char const* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned const mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  return open_any(path, flags, mode);
}

__attribute__((visibility("default"))) int __open64_2(char const* path, int flags) {  // NOLINT: glibc's name
  return open_any(path, flags, 0);
}
}
