#pragma once

#include <string>
#include <vector>

namespace os {

/// The addresses of this host's links, IPv4 and IPv6, in the network namespace that the thread is
/// in. Empty when the kernel does not tell them.
std::vector<std::string> host_addresses();

}  // namespace os
