#include "base/assert.hpp"
#include "gateway/dns.hpp"

#include <cstdint>

// What must hold for any query of a guest: an answer is small, goes to who asked, names nobody that
// policy does not allow, and an address is given to one name only.

namespace {

bool allows(domain::HostName const& name) {
  return name.is_below("example");
}

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

void check(std::string_view query, gateway::DnsAnswer const& out, gateway::SyntheticNames& names) {
  using gateway::DnsVerdict;
  SPACE_ASSERT(out.message.size() <= 1024, "an answer is small");
  SPACE_ASSERT(out.name.size() <= 80, "the audit's name is short");
  for (char const c : out.name)
    SPACE_ASSERT(c > 0x20 && c < 0x7f, "and prints");
  if (out.message.empty()) {
    SPACE_ASSERT(out.verdict == DnsVerdict::ignored, "only what is ignored has no answer");
    return;
  }
  SPACE_ASSERT(query.size() >= 12 && out.message.size() >= 12, "both have a head");
  SPACE_ASSERT(out.message.substr(0, 2) == query.substr(0, 2), "the answer is to this query");
  SPACE_ASSERT((byte_at(out.message, 2) & 0x80U) != 0, "and is an answer");
  SPACE_ASSERT(byte_at(out.message, 4) == 0 && byte_at(out.message, 5) <= 1,
               "one question at most");
  if (out.verdict != DnsVerdict::answered) {
    SPACE_ASSERT(byte_at(out.message, 7) == 0, "a refusal holds no record");
    return;
  }
  for (auto const& [name, address] : names.all()) {
    SPACE_ASSERT(allows(name), "no name without permission has an address");
    SPACE_ASSERT(names.name_of(address) == name, "an address is one name's");
    SPACE_ASSERT(names.covers(address), "out of the synthetic range");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data,
                                      std::size_t size) {  // NOLINT: libFuzzer's name
  // SAFETY: bytes are bytes.
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  gateway::SyntheticNames names(4);
  // The same twice: a name keeps its address, and whatever came before does not change the verdict.
  auto const first = gateway::answer_query(text, names, allows);
  check(text, first, names);
  auto const second = gateway::answer_query(text, names, allows);
  SPACE_ASSERT(first.verdict == second.verdict && first.message == second.message,
               "the same answer");
  return 0;
}
