#include "hostd/gateway_sockets.hpp"

#include "base/assert.hpp"
#include "os/netns.hpp"

#include <linux/nsfs.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace hostd {
namespace {

constexpr std::uint16_t flow_port = 15'001;
constexpr std::uint16_t dns_port = 53;
constexpr int backlog = 512;

base::Result<void> set(os::Fd const& socket, int level, int option, char const* what) {
  int const yes = 1;
  if (::setsockopt(socket.get(), level, option, &yes, sizeof yes) != 0)
    return base::fail_errno(what);
  return {};
}

base::Result<os::Fd> open_transparent(int type, std::uint16_t port) {
  os::Fd socket(::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::fail_errno("make a gateway's socket");
  auto step = set(socket, SOL_IP, IP_TRANSPARENT, "make a socket transparent");
  if (step) step = set(socket, SOL_SOCKET, SO_REUSEADDR, "let a socket's address be used again");
  if (step && type == SOCK_DGRAM) {
    step = set(socket, SOL_IP, IP_RECVORIGDSTADDR, "ask for destinations");
    if (step) step = set(socket, SOL_IP, IP_PKTINFO, "ask for local addresses");
  }
  if (!step) return base::passing(step);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // SAFETY: how bind() wants it.
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return base::fail_errno("bind a gateway's socket");
  if (type == SOCK_STREAM && ::listen(socket.get(), backlog) != 0)
    return base::fail_errno("listen on a gateway's socket");
  return socket;
}

/// We act as another user from construction to destruction; only our effective ids change, so the
/// way back is open, and when it fails going on would be wrong.
class ActingAs {
 public:
  ActingAs(uid_t user, gid_t group) {
    acting_ = ::setresgid(static_cast<gid_t>(-1), group, static_cast<gid_t>(-1)) == 0 &&
              ::setresuid(static_cast<uid_t>(-1), user, static_cast<uid_t>(-1)) == 0;
  }

  ActingAs(ActingAs const&) = delete;
  ActingAs& operator=(ActingAs const&) = delete;

  ~ActingAs() {
    bool const back = ::setresuid(static_cast<uid_t>(-1), 0, static_cast<uid_t>(-1)) == 0 &&
                      ::setresgid(static_cast<gid_t>(-1), 0, static_cast<gid_t>(-1)) == 0;
    SPACE_ASSERT(back, "our real user is root");
  }

  bool acting() const noexcept { return acting_; }

 private:
  bool acting_ = false;
};

}  // namespace

base::Result<GatewaySockets> open_gateway_sockets(os::FdRef netns) {
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  GatewaySockets sockets;
  auto tcp = open_transparent(SOCK_STREAM, flow_port);
  if (!tcp) return base::passing(tcp);
  sockets.tcp = std::move(*tcp);
  auto datagram = open_transparent(SOCK_DGRAM, dns_port);
  if (!datagram) return base::passing(datagram);
  sockets.dns_datagram = std::move(*datagram);
  auto stream = open_transparent(SOCK_STREAM, dns_port);
  if (!stream) return base::passing(stream);
  sockets.dns_stream = std::move(*stream);
  return sockets;
}

base::Result<os::Fd> connect_broker_as(std::uint32_t user, std::string const& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return os::Fd();
    return base::fail_errno("find the broker's socket", path);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return base::fail(
        base::Code::invalid_argument, "the broker's socket has too long a path", path);
  path.copy(address.sun_path, path.size());
  os::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::fail_errno("make a socket for the broker");
  // The socket's group opens the door; the user is who the broker will know.
  ActingAs const gateway(user, info.st_gid);
  if (!gateway.acting()) return base::fail_errno("act as a gateway's user");
  // SAFETY: how connect() wants it. It does not wait: a full queue is EAGAIN.
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
    return socket;
  if (errno == ECONNREFUSED || errno == ENOENT || errno == EAGAIN) return os::Fd();
  return base::fail_errno("connect to the broker", path);
}

base::Result<os::Fd> open_network_namespace(std::string const& path) {
  os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return base::fail_errno("open the uplink's namespace", path);
  if (::ioctl(file.get(), NS_GET_NSTYPE) != CLONE_NEWNET)
    return base::fail(base::Code::invalid_argument, "the uplink is not a network namespace", path);
  return file;
}

}  // namespace hostd
