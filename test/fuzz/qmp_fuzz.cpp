#include "vmm/qmp.hpp"

#include <cstdint>
#include <cstdlib>

/// A taken-over QEMU on its control socket. The first byte says how large the pieces are: whatever
/// the cuts, the messages are the same, and the queue never grows over its bound.
namespace {

struct Taken {
  std::size_t messages = 0;
  bool broken = false;
};

Taken take(std::string_view bytes, std::size_t piece) {
  vmm::qmp::Reader reader;
  Taken taken;
  while (!bytes.empty() && !taken.broken) {
    auto const part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    taken.broken = !reader.feed(part).has_value();
    std::size_t ready = 0;
    while (reader.next())
      ++ready;
    if (ready > vmm::qmp::queued_max) std::abort();
    taken.messages += ready;
  }
  return taken;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size == 0) return 0;
  // SAFETY: bytes are bytes; char may alias them.
  std::string_view const text(reinterpret_cast<char const*>(data) + 1, size - 1);
  auto const small = take(text, std::size_t{data[0]} + 1);
  // Byte by byte is the reference: no piece is long enough to hold more messages than the queue.
  auto const single = take(text, 1);
  if (small.broken != single.broken || small.messages != single.messages) std::abort();
  return 0;
}
