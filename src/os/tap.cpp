#include "os/tap.hpp"

#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <string_view>

#include <fcntl.h>

namespace os {

base::Result<Fd> open_persistent_tap(char const* name) {
  Fd tap(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!tap) return base::fail_errno("open the tap device");
  ifreq request{};
  std::string_view(name).copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(tap.get(), TUNSETIFF, &request) != 0) return base::fail_errno("make a tap");
  if (::ioctl(tap.get(), TUNSETPERSIST, 1) != 0) return base::fail_errno("keep a tap");
  return tap;
}

}  // namespace os
