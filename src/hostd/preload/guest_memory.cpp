// Loaded into QEMU by the jail (LD_PRELOAD) and nothing else: opening `/guest/memory` gives the
// descriptor that the process was started with instead of a file. QEMU takes its disk and its
// network as descriptors, but the file of its memory only as a path, and it opens that for reading
// and writing even where its mapping is private. So the memory of a base snapshot, which many
// machines map and none may change, is passed open for reading alone, and the jail needs no path,
// no mount and no file mode for it.
//
// This is no protection: what the machine may do to the file is decided by how its descriptor was
// opened.

#include "vmm/qemu_command.hpp"

#include <sys/syscall.h>

#include <cstdarg>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace {

int open_any(char const* path, int flags, unsigned mode) {
  if (std::strcmp(path, vmm::qemu_memory) == 0)
    return ::fcntl(vmm::qemu_memory_fd, F_DUPFD_CLOEXEC, 0);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // namespace

// The names by which programs built for large files and with fortification call open().
extern "C" {
[[gnu::visibility("default")]] int open64(char const* path, int flags, ...) {
  unsigned mode = 0;
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list rest;
    va_start(rest, flags);
    mode = va_arg(rest, unsigned);
    va_end(rest);
  }
  return open_any(path, flags, mode);
}

[[gnu::visibility("default")]] int __open64_2(char const* path,
                                              int flags) {  // NOLINT: glibc's name
  return open_any(path, flags, 0);
}
}
