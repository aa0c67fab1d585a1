#pragma once

#include "os/fd.hpp"

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

/// Unix sockets that carry fixed-size messages with descriptors (SOCK_SEQPACKET), and connected
/// Unix streams. All blocking calls have limits; none follows what a peer says about sizes.
namespace os {

/// Listens at `path` (replacing a stale file), owner root, `group`, mode 0660. Non-blocking.
base::Result<Fd> listen_packets(std::string const& path, gid_t group);
/// Connects; sends and receives give up after `limit`. unavailable when nobody listens there.
base::Result<Fd> connect_packets(std::string const& path, std::chrono::milliseconds limit);
/// Listens at `path` for streams, mode 0600.
base::Result<Fd> listen_stream(std::string const& path);
/// Connects to a listening stream without ever waiting: unavailable when its queue is full or it is
/// gone.
base::Result<Fd> connect_stream(std::string const& path);

/// User id of the peer of a connected Unix socket, as the kernel recorded it at connect().
base::Result<uid_t> peer_user(FdRef socket);

/// One message with up to 8 descriptors (borrowed).
base::Result<void> send_packet(FdRef socket,
                               std::span<std::byte const> bytes,
                               std::span<int const> fds);

struct Packet {
  std::size_t size = 0;    // 0: the peer closed
  bool truncated = false;  // more bytes or descriptors came than fit
  std::vector<Fd> fds;     // close-on-exec
};

/// Receives one message into `buffer` with at most 8 descriptors. unavailable when there is none
/// (or in time).
base::Result<Packet> receive_packet(FdRef socket, std::span<std::byte> buffer);

}  // namespace os
