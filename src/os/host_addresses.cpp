#include "os/host_addresses.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include <ifaddrs.h>

namespace os {

std::vector<std::string> host_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const owner(list, &::freeifaddrs);
  std::vector<std::string> found;
  for (auto const* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    auto const family = one->ifa_addr->sa_family;
    // SAFETY: the family says which address type lies there.
    void const* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<sockaddr_in const*>(one->ifa_addr)->sin_addr;
    if (family == AF_INET6)
      address = &reinterpret_cast<sockaddr_in6 const*>(one->ifa_addr)->sin6_addr;
    if (address != nullptr && ::inet_ntop(family, address, text.data(), text.size()) != nullptr)
      found.emplace_back(text.data());
  }
  return found;
}

}  // namespace os
