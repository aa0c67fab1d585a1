#pragma once

#include "net/byte_stream.hpp"

#include <set>
#include <string>
#include <vector>

namespace controlplane {

/// Who may talk to a Unix socket of ours, by the kernel's word (SO_PEERCRED).
class Peers {
 public:
  /// Users by name; those that do not exist on this host are left out. Root and ourselves always
  /// may.
  explicit Peers(std::vector<std::string> const& users);
  bool admits(net::ByteStream const& connection) const;

 private:
  std::set<unsigned> uids_;
};

}  // namespace controlplane
