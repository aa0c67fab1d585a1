#include "domain/reach.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace domain {
namespace {

base::Result<Network> parse_network(std::string const& text) {
  auto const bad = [&] {
    return base::fail(base::Code::invalid_argument, fmt::format("\"{}\" is no IPv4 network", text));
  };
  auto const slash = text.find('/');
  Network network{.bits = 32};
  if (slash != std::string::npos) {
    auto const* const end = text.data() + text.size();
    auto const [stop, error] = std::from_chars(text.data() + slash + 1, end, network.bits);
    if (error != std::errc() || stop != end || network.bits > 32) return bad();
  }
  in_addr parsed{};
  if (::inet_pton(AF_INET, text.substr(0, slash).c_str(), &parsed) != 1) return bad();
  network.address = ntohl(parsed.s_addr);
  return network;
}

bool holds(Network const& outer, Network const& inner) {
  if (outer.bits > inner.bits) return false;
  auto const mask = outer.bits == 0 ? 0U : ~0U << (32 - outer.bits);
  return (inner.address & mask) == (outer.address & mask);
}

/// Networks are nested or apart, never crossing: what lies in another one goes.
std::vector<Network> disjoint(std::vector<Network> networks) {
  std::ranges::sort(networks);  // an outer one comes before what lies in it
  std::vector<Network> kept;
  for (auto const& one : networks)
    if (kept.empty() || !holds(kept.back(), one)) kept.push_back(one);
  return kept;
}

/// Both lists are in order and disjoint, so one walk is enough.
std::vector<Network> intersection(std::vector<Network> const& one,
                                  std::vector<Network> const& other) {
  std::vector<Network> found;
  auto a = one.begin();
  auto b = other.begin();
  while (a != one.end() && b != other.end()) {
    if (holds(*a, *b)) {
      found.push_back(*b++);
    } else if (holds(*b, *a)) {
      found.push_back(*a++);
    } else if (*a < *b) {
      ++a;
    } else {
      ++b;
    }
  }
  return found;
}

}  // namespace

base::Result<Reach> reach_of(wire::EffectivePolicy const& policy) {
  Reach reach;
  reach.named = !policy.levels.empty();
  if (!policy.levels.empty()) reach.networks.push_back({.address = 0, .bits = 0});
  for (auto const& [name, level] : policy.levels) {
    if (level.posture == wire::Posture::blocked) return Reach{};
    reach.named = reach.named && level.binding == wire::Binding::name;
    std::vector<Network> allowed;
    for (auto const& text : level.cidr.allow) {
      auto network = parse_network(text);
      if (!network) return base::passing(network, name);
      allowed.push_back(*network);
    }
    // What an open level denies is the gateway's to refuse.
    if (level.posture == wire::Posture::open) allowed.assign(1, {.address = 0, .bits = 0});
    reach.networks = intersection(reach.networks, disjoint(std::move(allowed)));
  }
  if (reach.networks.size() > reach_networks_max)
    return base::fail(
        base::Code::invalid_argument,
        fmt::format(
            "cidr.allow: {} networks; at most {}", reach.networks.size(), reach_networks_max));
  return reach;
}

Reach common(Reach const& one, Reach const& other) {
  return {.networks = intersection(one.networks, other.networks),
          .named = one.named && other.named};
}

}  // namespace domain
