#include "vmm/firecracker_api.hpp"

#include <cstdint>
#include <cstdlib>

/// A taken-over Firecracker on its API socket. The first byte says how large the pieces are:
/// whatever the cuts, the answers are the same, and nothing over the bounds is kept.
namespace {

struct Taken {
  std::string answers;
  bool broken = false;
};

Taken take(std::string_view bytes, std::size_t piece) {
  vmm::firecracker::ResponseReader reader;
  Taken taken;
  while (!bytes.empty() && !taken.broken) {
    auto const part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    taken.broken = !reader.feed(part).has_value();
    while (auto response = reader.next()) {
      if (response->body.size() > vmm::firecracker::body_bytes_max) std::abort();
      taken.answers += std::to_string(response->status) + response->body + "|" +
                       vmm::firecracker::fault_in(response->body) + "\n";
    }
  }
  // What broke while the last answer was taken shows with the next bytes.
  taken.broken = taken.broken || !reader.feed("");
  return taken;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size == 0) return 0;
  // SAFETY: bytes are bytes; char may alias them.
  std::string_view const text(reinterpret_cast<char const*>(data) + 1, size - 1);
  auto const large = take(text, std::size_t{data[0]} + 1);
  auto const single = take(text, 1);
  if (large.broken != single.broken || large.answers != single.answers) std::abort();
  return 0;
}
