#include "domain/sandbox_state.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <boost/describe/enumerators.hpp>
#include <boost/mp11/algorithm.hpp>
#include <gtest/gtest.h>

namespace domain {
namespace {

using S = SandboxState;
using E = SandboxEvent;

template <class Enum> std::vector<Enum> all_of() {
  std::vector<Enum> values;
  boost::mp11::mp_for_each<boost::describe::describe_enumerators<Enum>>(
      [&](auto one) { values.push_back(one.value); });
  return values;
}

// Written a second time and by state, on purpose: a change of the table must be made twice.
std::map<S, std::map<E, S>> expected_table() {
  std::map<S, std::map<E, S>> t;
  t[S::creating] = {{E::started, S::running}, {E::start_failed, S::failed}};
  t[S::running] = {{E::pause, S::pausing}, {E::suspend, S::suspending}};
  t[S::pausing] = {{E::pause_done, S::paused}, {E::pause_failed, S::running}};
  t[S::paused] = {{E::resume, S::resuming}, {E::suspend, S::suspending}};
  t[S::resuming] = {{E::resume_done, S::running}, {E::resume_failed, S::paused}};
  t[S::suspending] = {{E::suspend_done, S::suspended}, {E::suspend_failed, S::running}};
  t[S::suspended] = {{E::restore, S::restoring}};
  t[S::restoring] = {{E::restore_done, S::running}, {E::restore_failed, S::suspended}};
  t[S::deleting] = {{E::released, S::deleted}};
  for (auto const state : {S::creating,
                           S::running,
                           S::pausing,
                           S::paused,
                           S::resuming,
                           S::suspending,
                           S::suspended,
                           S::restoring}) {
    t[state][E::end] = S::deleting;
    t[state][E::machine_failed] = S::failed;
    if (state != S::suspended) t[state][E::machine_ended] = S::deleted;
  }
  t[S::deleted] = {};
  t[S::failed] = {};
  return t;
}

TEST(SandboxStates, EveryPairOfStateAndEventIsAsWrittenHere) {
  auto const expected = expected_table();
  int allowed = 0;
  for (auto const state : all_of<S>()) {
    for (auto const event : all_of<E>()) {
      SCOPED_TRACE(std::string(name_of(state)) + " + " + std::string(name_of(event)));
      auto const& row = expected.at(state);
      auto const want = row.find(event);
      auto const got = find_transition(state, event);
      ASSERT_EQ(got.has_value(), want != row.end());
      auto const result = get_transition(state, event);
      ASSERT_EQ(result.has_value(), got.has_value());
      if (!got) {
        EXPECT_EQ(result.error().code(), base::Code::conflict);
        EXPECT_NE(result.error().message().find(name_of(state)), std::string::npos);
        continue;
      }
      ++allowed;
      EXPECT_EQ(got->from, state);
      EXPECT_EQ(got->event, event);
      EXPECT_EQ(got->to, want->second);
      EXPECT_NE(got->from, got->to);
    }
  }
  EXPECT_EQ(static_cast<std::size_t>(allowed), all_transitions().size())
      << "a pair is in the table twice";
}

TEST(SandboxStates, CountsMatchTheEnumerations) {
  EXPECT_EQ(all_of<S>().size(), sandbox_state_count);
  EXPECT_EQ(all_of<E>().size(), sandbox_event_count);
}

TEST(SandboxStates, TerminalStatesHaveNoWayOut) {
  for (auto const& t : all_transitions())
    EXPECT_FALSE(is_terminal(t.from)) << name_of(t.from);
}

TEST(SandboxStates, EveryStateIsReachedAndEveryLiveOneCanEnd) {
  std::set<S> reached{S::creating};
  for (std::size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (auto const& t : all_transitions()) {
      if (reached.contains(t.from)) reached.insert(t.to);
    }
  }
  EXPECT_EQ(reached.size(), sandbox_state_count);
  for (auto const state : all_of<S>()) {
    if (is_terminal(state) || state == S::deleting) continue;
    EXPECT_TRUE(find_transition(state, E::end)) << name_of(state) << " cannot be deleted";
  }
}

TEST(SandboxStates, EveryTransitionNamesItsFaultPoints) {
  for (auto const& t : all_transitions()) {
    auto const stem = "sandbox." + std::string(name_of(t.event));
    EXPECT_EQ(t.fault_before, stem + ".before_commit");
    EXPECT_EQ(t.fault_after, stem + ".after_commit");
  }
}

TEST(SandboxStates, StatesThatAllowAnEventAgreeWithTheTable) {
  for (auto const event : all_of<E>()) {
    auto const states = states_that_allow(event);
    EXPECT_FALSE(states.empty()) << name_of(event) << " can never happen";
    for (auto const state : all_of<S>()) {
      EXPECT_EQ(std::ranges::find(states, state) != states.end(),
                find_transition(state, event).has_value());
    }
  }
}

TEST(SandboxStates, TransitionalStatesAreThoseWithAProgramAtWork) {
  std::set<S> const at_work{
      S::creating, S::pausing, S::resuming, S::suspending, S::restoring, S::deleting};
  std::set<S> const without{S::suspended, S::deleted, S::failed};
  for (auto const state : all_of<S>()) {
    EXPECT_EQ(is_transitional(state), at_work.contains(state)) << name_of(state);
    EXPECT_EQ(holds_machine(state), !without.contains(state)) << name_of(state);
  }
}

TEST(EndReasons, EveryReasonHasAnEventASentenceAndAName) {
  for (auto const reason : all_of<EndReason>()) {
    EXPECT_EQ(reason_named(name_of(reason)), reason);
    EXPECT_GT(sentence_of(reason).size(), 10U);
    EXPECT_FALSE(states_that_allow(event_of(reason)).empty());
  }
  EXPECT_FALSE(reason_named("nonsense"));
  EXPECT_FALSE(state_named("nonsense"));
  EXPECT_FALSE(state_named(""));
}

TEST(EndReasons, DecisionsEndAndFaultsFail) {
  for (auto const reason : {EndReason::user,
                            EndReason::deadline,
                            EndReason::idle,
                            EndReason::quota,
                            EndReason::policy}) {
    EXPECT_EQ(event_of(reason), E::end);
  }
  EXPECT_EQ(event_of(EndReason::guest_shutdown), E::machine_ended);
  EXPECT_EQ(event_of(EndReason::host_lost), E::machine_failed);
}

TEST(EndReasons, CausesOfAWorkerAreUnderstoodAndStrangeOnesAreUnknown) {
  EXPECT_EQ(reason_of_cause("deleted"), EndReason::user);
  EXPECT_EQ(reason_of_cause("guest_shutdown"), EndReason::guest_shutdown);
  EXPECT_EQ(reason_of_cause("guest_reboot"), EndReason::guest_reboot);
  EXPECT_EQ(reason_of_cause("guest_panic"), EndReason::guest_panic);
  EXPECT_EQ(reason_of_cause("vmm_killed"), EndReason::vmm_exit);
  EXPECT_EQ(reason_of_cause("host_stopped"), EndReason::host_lost);
  EXPECT_EQ(reason_of_cause("vmm_crashed"), EndReason::vmm_exit);
  EXPECT_EQ(reason_of_cause("vmm_out_of_memory"), EndReason::out_of_memory);
  EXPECT_EQ(reason_of_cause("agent_lost"), EndReason::agent_lost);
  EXPECT_EQ(reason_of_cause("start_failed"), EndReason::start_failed);
  // A worker may not claim what only the control plane decides.
  for (auto const* cause :
       {"user", "deadline", "quota", "policy", "host_lost", "", "unknown", "\xff"}) {
    EXPECT_EQ(reason_of_cause(cause), EndReason::unknown) << cause;
  }
}

}  // namespace
}  // namespace domain
