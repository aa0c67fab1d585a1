// The actions of Host that look whether packet rules are still ours.

#include "base/log.hpp"
#include "hostd/answers.hpp"
#include "hostd/guard_drops.hpp"
#include "hostd/host.hpp"
#include "hostd/nft.hpp"
#include "hostd/slot_network.hpp"
#include "os/netns.hpp"

#include <unistd.h>

namespace hostd {
namespace {

Answer failed(base::Error const& error) {
  base::log::error("rules_not_checked", {{"why", error.message()}, {"detail", error.detail()}});
  return answer_of(Status::failed, error.message());
}

}  // namespace

/// Whoever has root may say that he is about to change rules himself, as the attack suites do: only
/// root can make this file, and root could change the rules anyway.
bool Host::watches_rules() const {
  return ::access((directory_ + "/rules-unwatched").c_str(), F_OK) != 0;
}

Answer Host::check_rules(std::uint32_t slot, Passage const& passage) {
  if (state_of(slot) == SlotState::absent) return answer_of(Status::absent, "no such slot");
  if (!watches_rules()) return answer_of(Status::ok);
  auto netns = netns_of(slot);
  if (!netns) return failed(netns.error());
  auto& kept = kept_[slot];
  auto ours =
      rule_watch_.slot_is_ours(os::FdRef(*netns), kept.rules, passage, kept.net_bytes_per_s);
  if (!ours) return failed(ours.error());
  if (*ours) return answer_of(Status::ok);
  // Ours again and closed: the guest's frames are guarded, and its programs refused at once. What
  // it may reach is its worker's to say, which ends that network.
  auto const budget =
      kept.net_bytes_per_s.value_or(std::uint64_t{config_.net_mib_per_s_max} << 20U);
  kept.rules = RuleState();
  kept.net_bytes_per_s.reset();
  auto closed = close_slot(os::FdRef(*netns));
  if (closed) {
    kept.net_bytes_per_s = 0;
    closed = limit_network_of(kept, budget);
  }
  base::log::error("slot_rules_altered", {{"slot", slot}, {"closed", closed.has_value()}});
  return answer_of(Status::altered, "the slot's rules are not ours");
}

Answer Host::count_drops(std::uint32_t slot) {
  if (state_of(slot) == SlotState::absent) return answer_of(Status::absent, "no such slot");
  auto netns = netns_of(slot);
  if (!netns) return failed(netns.error());
  auto inside = os::InNetns::enter(os::FdRef(*netns));
  if (!inside) return failed(inside.error());
  auto listing = list_counts("list table netdev guard\n");
  if (!listing) return failed(listing.error());
  auto answer = answer_of(Status::ok);
  answer.reply.drops = drops_in(*listing);
  return answer;
}

Answer Host::check_uplink() {
  if (config_.uplink != "host" || !watches_rules()) return answer_of(Status::ok);
  auto ours = rule_watch_.uplink_is_ours(config_);
  if (!ours) return failed(ours.error());
  if (*ours) return answer_of(Status::ok);
  // Not left as it is until somebody looks: a firewall that is reloaded on the host takes all
  // tables along, and the namespace's own rules refuse the same until ours are back.
  auto mended = rule_watch_.mend_uplink(config_);
  if (!mended) return failed(mended.error());
  base::log::error("uplink_rules_altered", {{"mended", true}});
  return answer_of(Status::altered, "the uplink's rules were not ours; they are again");
}

}  // namespace hostd
