// Loaded into QEMU by the jail (LD_PRELOAD) and nothing else: opening `/guest/memory` gives the
// descriptor that the process was started with instead of a file. QEMU takes its disk and its
// network as descriptors, but the file of its memory only as a path, and it opens that for reading
// and writing even where its mapping is private. So the memory of a base snapshot, which many
// machines map and none may change, is passed open for reading alone, and the jail needs no path,
// no mount and no file mode for it.
//
// A machine that was suspended finds its memory as that file and the pages in which it differs:
// they are copied over the private mapping as soon as it is made, so that all the rest stays one
// copy in the page cache with other machines, and a later suspend sees as changed what is.
//
// This is no protection: what the machine may do to the file is decided by how its descriptor was
// opened.

#include "vmm/changed_pages.hpp"
#include "vmm/qemu_command.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace {

int memory_copy = -1;  // what QEMU was given for the memory file
bool mapped = false;

[[noreturn]] void give_up(char const* why) {
  constexpr char begin[] = "space: the machine's changed pages cannot be used: ";
  static_cast<void>(!::write(2, begin, sizeof begin - 1));
  static_cast<void>(!::write(2, why, std::strlen(why)));
  static_cast<void>(!::write(2, "\n", 1));
  ::_exit(1);
}

int open_any(char const* path, int flags, unsigned mode) {
  if (std::strcmp(path, vmm::qemu_memory) == 0) {
    memory_copy = ::fcntl(vmm::qemu_memory_fd, F_DUPFD_CLOEXEC, 0);
    return memory_copy;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

void read_all(char* into, std::uint64_t bytes, std::uint64_t at) {
  while (bytes > 0) {
    auto const got = ::pread(vmm::qemu_changes_fd, into, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) give_up(got < 0 ? std::strerror(errno) : "the file ends early");
    into += got;
    at += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
}

/// Bounds were proven by whoever passed the file; they are kept here all the same.
void copy_changes(char* memory, std::uint64_t bytes) {
  struct stat about{};
  if (::fstat(vmm::qemu_changes_fd, &about) != 0) give_up("no such descriptor");
  auto const size = static_cast<std::uint64_t>(about.st_size);
  vmm::ChangedPagesTrailer trailer;
  if (size < sizeof trailer) give_up("too short");
  read_all(reinterpret_cast<char*>(&trailer), sizeof trailer, size - sizeof trailer);
  auto const memory_pages = bytes / vmm::page_bytes;
  bool const fits = trailer.magic == vmm::changed_pages_magic &&
                    trailer.memory_pages == memory_pages && trailer.pages <= memory_pages &&
                    trailer.runs <= trailer.pages &&
                    size == trailer.pages * vmm::page_bytes + trailer.runs * sizeof(vmm::PageRun) +
                                sizeof trailer;
  if (!fits) give_up("not of this machine");
  std::uint64_t from = 0;
  auto at_run = trailer.pages * vmm::page_bytes;
  for (std::uint64_t run = 0; run < trailer.runs; ++run, at_run += sizeof(vmm::PageRun)) {
    vmm::PageRun where;
    read_all(reinterpret_cast<char*>(&where), sizeof where, at_run);
    auto const length = where.count * vmm::page_bytes;
    if (std::uint64_t{where.first} + where.count > memory_pages ||
        from + length > trailer.pages * vmm::page_bytes)
      give_up("a run lies outside");
    read_all(memory + where.first * vmm::page_bytes, length, from);
    from += length;
  }
  if (from != trailer.pages * vmm::page_bytes) give_up("pages are left over");
}

void* map_any(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  bool const memory = fd >= 0 && fd == memory_copy && !mapped && (flags & MAP_PRIVATE) != 0;
  struct stat about{};
  if (memory && ::fstat(fd, &about) == 0 && about.st_blocks == 0) {
    // A file of holes is the memory of a machine that was booted: nothing to share, and as a file
    // each page that is written would cost a second one in the page cache.
    flags |= MAP_ANONYMOUS;
    fd = -1;
  }
  // SAFETY: the system call's result is an address.
  auto* const at =
      reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
  if (!memory || at == MAP_FAILED) return at;
  mapped = true;
  if (std::getenv(vmm::qemu_changes_name)) {
    copy_changes(static_cast<char*>(at), bytes);
    ::close(vmm::qemu_changes_fd);
  }
  return at;
}

}  // namespace

// The names by which programs built for large files and with fortification call open() and mmap().
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

[[gnu::visibility("default")]] void* mmap64(
    void* address, std::size_t bytes, int protection, int flags, int fd, off64_t offset) {
  return map_any(address, bytes, protection, flags, fd, offset);
}

[[gnu::visibility("default")]] void* mmap(
    void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  return map_any(address, bytes, protection, flags, fd, offset);
}
}
