#include "net/byte_stream.hpp"

#include <arpa/inet.h>

#include <netdb.h>

namespace net {
namespace {

struct Resolved {
  int error = 0;
  std::vector<std::string> addresses;
};

Resolved resolve(std::string const& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  Resolved out;
  out.error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (out.error != 0) return out;
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> const owner(found, &::freeaddrinfo);
  for (auto const* one = found; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(
            one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
        0) {
      out.addresses.emplace_back(text.data());
    }
  }
  return out;
}

}  // namespace

async::Task<Stream> connect_host(std::string host, std::uint16_t port) {
  // AI_ADDRCONFIG does not count loopback addresses: localhost and literals must work without any
  // network.
  std::array<unsigned char, 16> literal{};
  if (host == "localhost") {
    auto v4 = co_await connect_tcp("127.0.0.1", port);
    if (v4) co_return std::move(*v4);
    co_return co_await connect_tcp("::1", port);
  }
  if (::inet_pton(AF_INET, host.c_str(), literal.data()) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), literal.data()) == 1) {
    co_return co_await connect_tcp(std::move(host), port);
  }
  auto look_up = [host] { return resolve(host); };
  auto const resolved = co_await async::blocking(std::move(look_up));
  if (resolved.error != 0) {
    co_return base::fail(base::Code::unavailable,
                         fmt::format("look up {}: {}", host, ::gai_strerror(resolved.error)));
  }
  base::Result<Stream> last =
      base::fail(base::Code::unavailable, "look up " + host + ": no address");
  for (auto const& address : resolved.addresses) {
    last = co_await connect_tcp(address, port);
    if (last) break;
  }
  co_return std::move(last);
}

}  // namespace net
