#include "base/assert.hpp"
#include "gateway/client_hello.hpp"

#include <cstdint>

/// The first bytes of a connection: the verdict does not depend on how they arrive, and a server
/// name is one that every part of the platform reads alike.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  // SAFETY: bytes are bytes.
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  auto const whole = gateway::parse_client_hello(text);
  for (std::size_t have = 0; have < text.size(); have += 1 + have / 4) {
    auto const part = gateway::parse_client_hello(text.substr(0, have));
    if (!part) {
      SPACE_ASSERT(!whole, "what is refused early is refused");
      break;
    }
    if (*part) {
      SPACE_ASSERT(whole && *whole && (*part)->server_name == (*whole)->server_name,
                   "a complete hello stays as it is");
      break;
    }
  }
  if (!whole || !*whole) return 0;
  if (auto const& name = (*whole)->server_name) {
    auto const again = domain::HostName::parse(name->str());
    SPACE_ASSERT(again && *again == *name, "the name is canonical");
  }
  return 0;
}
