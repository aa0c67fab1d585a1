#include "agent/terminal.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>

#include <fcntl.h>
#include <unistd.h>

namespace agent {

base::Result<Terminal> open_terminal(TerminalSize size, uid_t owner) {
  Terminal out;
  out.master = os::Fd(::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!out.master) out.master = os::Fd(::open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!out.master) return base::fail_errno("open a terminal");
  int locked = 0;
  if (::ioctl(out.master.get(), TIOCSPTLCK, &locked) != 0)
    return base::fail_errno("unlock a terminal");
  // By the master and not by a name below /dev/pts, which the guest may have replaced.
  out.slave = os::Fd(::ioctl(out.master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!out.slave) return base::fail_errno("open the other end of a terminal");
  struct winsize window{};
  window.ws_col = static_cast<unsigned short>(std::min(size.columns, 65535U));
  window.ws_row = static_cast<unsigned short>(std::min(size.rows, 65535U));
  if (::ioctl(out.slave.get(), TIOCSWINSZ, &window) != 0)
    return base::fail_errno("size a terminal");
  // Not fatal: without it only opening it by name fails.
  if (::fchown(out.slave.get(), owner, static_cast<gid_t>(-1)) == 0)
    ::fchmod(out.slave.get(), 0620);
  return out;
}

}  // namespace agent
