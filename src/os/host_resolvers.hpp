#pragma once

#include <string>
#include <vector>

namespace os {

/// The DNS servers that this host asks, without those that only the host itself can reach
/// (127.0.0.53 and the like): behind such a stub the servers are taken that it asks in turn.
std::vector<std::string> host_resolvers(
    std::string const& file = "/etc/resolv.conf",
    std::string const& behind_stub = "/run/systemd/resolve/resolv.conf");

}  // namespace os
