#include "hostd/guard_drops.hpp"

#include <charconv>

namespace hostd {
namespace {

GuardRule rule_of(std::string_view chain, std::string_view line) {
  auto const has = [line](std::string_view words) {
    return line.find(words) != std::string_view::npos;
  };
  if (chain == "from_guest_arp") return GuardRule::arp;
  if (chain == "to_gateway") return GuardRule::connection_rate;
  if (chain == "budget_in") return GuardRule::network_budget;
  if (chain == "from_guest")
    return has("ether saddr != ") ? GuardRule::sender : GuardRule::protocol;
  if (has("ether daddr != ")) return GuardRule::receiver;
  if (has("ip saddr != ")) return GuardRule::source_address;
  if (has("ip hdrlength ") || has("ip frag-off ")) return GuardRule::ip_header;
  if (has("ip daddr { ")) return GuardRule::special_address;
  return GuardRule::nowhere_to_go;
}

/// The word behind `words`; "" when they are not there.
std::string_view word_after(std::string_view line, std::string_view words) {
  auto const at = line.find(words);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + words.size());
  return line.substr(0, line.find_first_of(" \n"));
}

}  // namespace

std::string_view name_of(GuardRule rule) {
  constexpr std::array<std::string_view, guard_rules> names{"sender",
                                                            "receiver",
                                                            "protocol",
                                                            "arp",
                                                            "source_address",
                                                            "ip_header",
                                                            "special_address",
                                                            "connection_rate",
                                                            "network_budget",
                                                            "nowhere_to_go"};
  return names.at(static_cast<std::size_t>(rule));
}

GuardDrops drops_in(std::string_view listing) {
  GuardDrops out{};
  std::string_view chain;
  while (!listing.empty()) {
    auto const line = listing.substr(0, listing.find('\n'));
    listing.remove_prefix(std::min(listing.size(), line.size() + 1));
    auto const name = word_after(line, "\tchain ");
    if (!name.empty()) chain = name;
    if (!line.ends_with(" drop")) continue;
    auto const count = word_after(line, "counter packets ");
    std::uint64_t packets = 0;
    auto const [end, error] = std::from_chars(count.data(), count.data() + count.size(), packets);
    if (error != std::errc() || end != count.data() + count.size()) continue;
    out.at(static_cast<std::size_t>(rule_of(chain, line))) += packets;
  }
  return out;
}

}  // namespace hostd
