#include "hostd/rule_watch.hpp"

#include "base/log.hpp"
#include "hostd/nft.hpp"
#include "hostd/slot_network.hpp"
#include "hostd/uplink.hpp"
#include "hostd/uplink_rules.hpp"
#include "os/host_resolvers.hpp"
#include "os/netns.hpp"

namespace hostd {
namespace {

constexpr char list_guard[] = "list table inet space_guard\n";

base::Result<std::uint32_t> generation_of(os::FdRef netns) {
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return rules_generation();
}

base::Result<std::string> rules_of(os::FdRef netns) {
  auto inside = os::InNetns::enter(netns);
  if (!inside) return base::passing(inside);
  return list_rules();
}

/// How this kernel lists these rules: both sides of a comparison shall have one way of writing.
base::Result<std::string> as_listed(std::string const& rules, std::string const& command) {
  auto inside = os::InNetns::make();
  if (!inside) return base::passing(inside);
  auto loaded = load_rules(rules);
  if (!loaded) return base::passing(loaded);
  return list_rules(command);
}

std::vector<std::string> resolvers_of(wire::Config const& config) {
  return config.resolvers.empty() ? os::host_resolvers() : config.resolvers;
}

/// Takes the rules out of a chain; nothing when it is not there.
std::optional<std::string> take_rules_of(std::string const& chain, std::string& listing) {
  auto const head = "\tchain " + chain + " {\n";
  auto const at = listing.find(head);
  if (at == std::string::npos) return std::nullopt;
  auto const begin = at + head.size();
  auto const end = listing.find("\t}\n", begin);
  if (end == std::string::npos) return std::nullopt;
  auto rules = listing.substr(begin, end - begin);
  listing.erase(begin, end - begin);
  return rules;
}

}  // namespace

std::optional<SlotListing> without_budget(std::string listing) {
  auto const in = take_rules_of("budget_in", listing);
  auto const out = take_rules_of("budget_out", listing);
  if (!in || in != out) return std::nullopt;
  bool const one_line = std::ranges::count(*in, '\n') == 1 &&
                        in->starts_with("\t\tlimit rate over ") && in->ends_with(" counter drop\n");
  if (!in->empty() && !one_line) return std::nullopt;
  return SlotListing{.rules = std::move(listing), .budget = *in};
}

base::Result<void> RuleState::change(os::FdRef netns,
                                     std::function<base::Result<void>()> const& work,
                                     Passage const* passage) {
  auto const before = generation_of(netns);
  auto done = work();
  auto const after = generation_of(netns);
  bool const alone = generation_ && before && after && *before == *generation_ &&
                     *after == *before + (done ? 1U : 0U);
  generation_.reset();
  if (alone) generation_ = *after;
  if (passage == nullptr) budget_.reset();  // the other thing that is changed
  if (passage != nullptr && done) passage_ = *passage;
  return done;
}

base::Result<bool> RuleWatch::slot_is_ours(os::FdRef netns,
                                           RuleState& state,
                                           Passage const& passage,
                                           std::optional<std::uint64_t> bytes_per_s) {
  auto generation = generation_of(netns);
  if (!generation) return base::passing(generation);
  if (state.generation_ == *generation && state.passage_ == passage) return true;
  state.generation_.reset();
  auto wanted = wanted_of_slot(passage);
  if (!wanted) return base::passing(wanted);
  auto actual = rules_of(netns);
  if (!actual) return base::passing(actual);
  auto const listing = without_budget(std::move(*actual));
  if (!listing || listing->rules != *wanted) return false;
  // One that somebody flushed or made wider lets a guest fill the host's line.
  auto budget = state.budget_;
  if (bytes_per_s) {
    auto listed = listed_budget(*bytes_per_s);
    if (!listed) return base::passing(listed);
    budget = std::move(*listed);
  }
  if (budget && listing->budget != *budget) return false;
  state.budget_ = listing->budget;
  // Of the moment before we read: what changed meanwhile shows at the next question.
  state.generation_ = *generation;
  state.passage_ = passage;
  return true;
}

base::Result<std::string> RuleWatch::wanted_of_slot(Passage const& passage) {
  if (wanted_passage_ == passage) return wanted_rules_;
  auto made = make_slot_network();
  if (!made) return base::passing(made);
  auto told = let_through(made->netns, passage);
  if (!told) return base::passing(told);
  auto listed = rules_of(made->netns);
  if (!listed) return base::passing(listed);
  auto plain = without_budget(std::move(*listed));
  if (!plain) return base::fail(base::Code::internal, "a new slot has other rules than expected");
  wanted_passage_ = passage;
  wanted_rules_ = std::move(plain->rules);
  return wanted_rules_;
}

base::Result<std::string> RuleWatch::listed_budget(std::uint64_t bytes_per_s) {
  if (budget_bytes_ == bytes_per_s) return budget_rule_;
  auto made = make_slot_network();
  if (!made) return base::passing(made);
  auto limited = limit_network(made->netns, bytes_per_s);
  if (!limited) return base::passing(limited);
  auto listed = rules_of(made->netns);
  if (!listed) return base::passing(listed);
  auto listing = without_budget(std::move(*listed));
  if (!listing) return base::fail(base::Code::internal, "a new budget is listed as something else");
  budget_bytes_ = bytes_per_s;
  budget_rule_ = std::move(listing->budget);
  return budget_rule_;
}

void RuleWatch::uplink_made(wire::Config const& config) {
  uplink_generations_.reset();
  resolvers_ = resolvers_of(config);
  guarded_ = guarded_ || list_rules(list_guard).has_value();
}

base::Result<bool> RuleWatch::uplink_is_ours(wire::Config const& config) {
  auto netns = os::open_pinned_netns(uplink_path(config));
  if (!netns) return false;
  auto host = rules_generation();
  if (!host) return base::passing(host);
  auto inner = generation_of(*netns);
  if (!inner) return base::passing(inner);
  Generations const now{.host = *host, .inner = *inner};
  if (uplink_generations_ == now) return true;
  uplink_generations_.reset();
  auto match = uplink_rules_match(config);
  if (match && *match) uplink_generations_ = now;
  return match;
}

base::Result<bool> RuleWatch::uplink_rules_match(wire::Config const& config) const {
  auto const number = standing_uplink(config);
  if (!number) return false;
  auto plan = plan_uplink(config, resolvers_, *number);
  if (!plan) return base::passing(plan);
  auto const command = fmt::format("list table inet {}\n", plan->table);
  auto wanted_on_host = as_listed(uplink_host_rules(*plan), command);
  if (!wanted_on_host) return base::passing(wanted_on_host);
  auto wanted_inside = as_listed(uplink_inner_rules(*plan), "list ruleset\n");
  if (!wanted_inside) return base::passing(wanted_inside);
  auto netns = os::open_pinned_netns(uplink_path(config));
  if (!netns) return false;
  // A table that is gone cannot be listed: that is another text, too.
  if (list_rules(command).value_or("") != *wanted_on_host) return false;
  if (rules_of(*netns).value_or("") != *wanted_inside) return false;
  if (!guarded_) return true;
  auto wanted_guard = as_listed(forwarding_guard_rules(), list_guard);
  if (!wanted_guard) return base::passing(wanted_guard);
  return list_rules(list_guard).value_or("") == *wanted_guard;
}

base::Result<void> RuleWatch::mend_uplink(wire::Config const& config) {
  auto made = ensure_uplink(config);
  if (!made) return base::passing(made);
  if (guarded_) {
    auto loaded = load_rules(forwarding_guard_rules());
    if (!loaded) return loaded;
  }
  uplink_made(config);
  return {};
}

}  // namespace hostd
