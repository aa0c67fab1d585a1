#include "os/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace os {

void Fd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

base::Result<void> Fd::sync_and_close() {
  if (::fsync(fd_) != 0) return base::fail_errno("write to disk");
  if (::close(release()) != 0) return base::fail_errno("close");
  return {};
}

base::Result<Fd> Fd::duplicate() const {
  int const copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return base::fail_errno("duplicate a descriptor");
  return Fd(copy);
}

}  // namespace os
