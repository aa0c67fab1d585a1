#include "controlplane/peers.hpp"

#include <pwd.h>
#include <unistd.h>

namespace controlplane {

Peers::Peers(std::vector<std::string> const& users) : uids_{0, ::geteuid()} {
  for (auto const& user : users) {
    passwd entry{};
    passwd* found = nullptr;
    std::array<char, 16384> buffer{};
    if (::getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) == 0 && found)
      uids_.insert(found->pw_uid);
  }
}

bool Peers::admits(net::ByteStream const& connection) const {
  auto const user = net::peer_user(connection);
  return user && uids_.contains(user->uid);
}

}  // namespace controlplane
