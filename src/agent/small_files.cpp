#include "agent/small_files.hpp"

#include "os/fd.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

constexpr std::size_t small_bytes_max = 1 << 20;

base::Result<std::string> read_all(os::FdRef fd) {
  std::string out;
  for (;;) {
    auto const old = out.size();
    if (old >= small_bytes_max)
      return base::fail(base::Code::too_large, "a file is larger than expected");
    out.resize(old + 4096);
    auto const got = ::read(fd.get(), out.data() + old, 4096);
    if (got < 0 && errno == EINTR) {
      out.resize(old);
      continue;
    }
    if (got < 0) return base::fail_errno("read a file");
    out.resize(old + static_cast<std::size_t>(got));
    if (got == 0) return out;
  }
}

/// A file of one page that is as place_file() would make it, save for what stands in it. A new file
/// in its place costs the file system a transaction and a write to the disk at once: milliseconds
/// in an emulated guest, and this lies on the path of every start.
bool is_placed(os::FdRef file, std::size_t size) {
  constexpr std::size_t page = 4096;
  struct stat info{};
  return size <= page && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) &&
         info.st_nlink == 1 && info.st_uid == 0 && info.st_gid == 0 &&
         (info.st_mode & 07777) == 0644 && info.st_size == static_cast<off_t>(size);
}

/// True when the file that is there has the content now.
bool write_over(os::FdRef file, std::string_view content) {
  return is_placed(file, content.size()) &&
         ::pwrite(file.get(), content.data(), content.size(), 0) ==
             static_cast<ssize_t>(content.size());
}

base::Result<void> write_all(os::FdRef fd, std::string_view text) {
  while (!text.empty()) {
    auto const written = ::write(fd.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return base::fail_errno("write a file");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

base::Result<std::string> read_small_file(std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open a file", path);
  return read_all(file);
}

base::Result<void> write_kernel_file(std::string const& path, std::string_view text) {
  os::Fd const file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open a file", path);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return base::fail_errno("write a file", path);
  }
  return {};
}

base::Result<void> place_file(std::string const& directory,
                              std::string const& name,
                              std::string_view content) {
  auto const open_directory = [&] {
    return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  };
  os::Fd in(open_directory());
  if (!in && errno == ENOENT && ::mkdir(directory.c_str(), 0755) == 0)
    in = os::Fd(open_directory());
  if (!in) return base::fail_errno("open a directory", directory);
  {
    // O_NONBLOCK: the image may have put a FIFO there, and nobody would ever open its other end.
    constexpr int careful = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    os::Fd old(::openat(in.get(), name.c_str(), O_RDWR | careful));
    if (!old && errno != ENOENT) old = os::Fd(::openat(in.get(), name.c_str(), O_RDONLY | careful));
    if (old) {
      auto const same = read_all(old);
      if (same && *same == content) return {};
      if (same && write_over(old, content)) return {};
    }
  }
  auto const temporary = "." + name + ".space";
  ::unlinkat(in.get(), temporary.c_str(), 0);
  os::Fd file(::openat(
      in.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return base::fail_errno("make a file", directory);
  ::fchmod(file.get(), 0644);
  auto written = write_all(file, content);
  if (!written) {
    ::unlinkat(in.get(), temporary.c_str(), 0);
    return base::passing(written);
  }
  if (::renameat(in.get(), temporary.c_str(), in.get(), name.c_str()) != 0) {
    auto failed = base::fail_errno("put a file in its place", directory + "/" + name);
    ::unlinkat(in.get(), temporary.c_str(), 0);
    return failed;
  }
  return {};
}

}  // namespace agent
