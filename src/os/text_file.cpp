#include "os/text_file.hpp"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

namespace os {

base::Result<std::string> read_text(std::string const& path, std::size_t limit) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return base::fail(base::Code::not_found, "no such file", path);
  if (!file) return base::fail_errno("open a file", path);
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    auto const got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno("read a file", path);
    if (got == 0) return text;
    if (text.size() + static_cast<std::size_t>(got) > limit)
      return base::fail(base::Code::too_large, "a file is too large", path);
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

base::Result<void> write_text_durably(std::string const& path, std::string const& text) {
  auto const fresh = path + ".new";
  // Of an earlier try; nobody must write into what somebody else put there.
  ::unlink(fresh.c_str());
  Fd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno("make a file", fresh);
  auto const written = ::write(file.get(), text.data(), text.size());
  if (written < 0) return base::fail_errno("write a file", fresh);
  if (static_cast<std::size_t>(written) != text.size())
    return base::fail_errno(ENOSPC, "write a file", fresh);
  auto synced = file.sync_and_close();
  if (!synced) return base::passing(synced, "write a file");
  if (::rename(fresh.c_str(), path.c_str()) != 0) return base::fail_errno("replace a file", path);
  Fd directory(::open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return base::fail_errno("open a directory", path);
  return directory.sync_and_close();
}

}  // namespace os
