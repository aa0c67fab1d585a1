#include "domain/sandbox_state.hpp"

#include <algorithm>
#include <vector>

#include <boost/describe/enum_to_string.hpp>
#include <boost/describe/enumerators.hpp>
#include <boost/mp11/algorithm.hpp>

namespace domain {
namespace {

using enum SandboxState;
using Event = SandboxEvent;

// One line per allowed pair. The names are literals, so that a search for a fault point ends here.
#define SPACE_ROW(from, event, to)               \
  Transition{from,                               \
             Event::event,                       \
             to,                                 \
             "sandbox." #event ".before_commit", \
             "sandbox." #event ".after_commit"}

constexpr std::array transitions{
    SPACE_ROW(creating, started, running),
    SPACE_ROW(creating, start_failed, failed),

    SPACE_ROW(running, pause, pausing),
    SPACE_ROW(pausing, pause_done, paused),
    SPACE_ROW(pausing, pause_failed, running),
    SPACE_ROW(paused, resume, resuming),
    SPACE_ROW(resuming, resume_done, running),
    SPACE_ROW(resuming, resume_failed, paused),

    SPACE_ROW(running, suspend, suspending),
    SPACE_ROW(paused, suspend, suspending),
    SPACE_ROW(suspending, suspend_done, suspended),
    // A capture that failed leaves a machine that goes on, whatever it was before.
    SPACE_ROW(suspending, suspend_failed, running),
    SPACE_ROW(suspended, restore, restoring),
    SPACE_ROW(restoring, restore_done, running),
    // The capture is still good: the next attempt may succeed.
    SPACE_ROW(restoring, restore_failed, suspended),

    // An end can be decided in every state that is none.
    SPACE_ROW(creating, end, deleting),
    SPACE_ROW(running, end, deleting),
    SPACE_ROW(pausing, end, deleting),
    SPACE_ROW(paused, end, deleting),
    SPACE_ROW(resuming, end, deleting),
    SPACE_ROW(suspending, end, deleting),
    SPACE_ROW(suspended, end, deleting),
    SPACE_ROW(restoring, end, deleting),
    SPACE_ROW(deleting, released, deleted),

    // A machine can end under us in every state in which there is one: also right after it was
    // started, before anybody wrote `started`. While `deleting` the worker's word is `released`,
    // and the decided reason stays.
    SPACE_ROW(creating, machine_ended, deleted),
    SPACE_ROW(running, machine_ended, deleted),
    SPACE_ROW(pausing, machine_ended, deleted),
    SPACE_ROW(paused, machine_ended, deleted),
    SPACE_ROW(resuming, machine_ended, deleted),
    SPACE_ROW(suspending, machine_ended, deleted),
    SPACE_ROW(restoring, machine_ended, deleted),
    SPACE_ROW(creating, machine_failed, failed),
    SPACE_ROW(running, machine_failed, failed),
    SPACE_ROW(pausing, machine_failed, failed),
    SPACE_ROW(paused, machine_failed, failed),
    SPACE_ROW(resuming, machine_failed, failed),
    SPACE_ROW(suspending, machine_failed, failed),
    // A capture is local to its host: when that is lost, so is the sandbox.
    SPACE_ROW(suspended, machine_failed, failed),
    SPACE_ROW(restoring, machine_failed, failed),
};

#undef SPACE_ROW

/// What the event is called in "it cannot be …".
std::string_view participle_of(Event event) noexcept {
  switch (event) {
    case Event::started:
      return "started";
    case Event::start_failed:
      return "marked as not started";
    case Event::pause:
    case Event::pause_done:
    case Event::pause_failed:
      return "paused";
    case Event::resume:
    case Event::resume_done:
    case Event::resume_failed:
      return "resumed";
    case Event::suspend:
    case Event::suspend_done:
    case Event::suspend_failed:
      return "suspended";
    case Event::restore:
    case Event::restore_done:
    case Event::restore_failed:
      return "restored";
    case Event::end:
      return "ended";
    case Event::released:
      return "released";
    case Event::machine_ended:
    case Event::machine_failed:
      return "marked as ended";
  }
  return "changed";
}

template <class Enum> std::optional<Enum> named(std::string_view name) noexcept {
  std::optional<Enum> found;
  boost::mp11::mp_for_each<boost::describe::describe_enumerators<Enum>>([&](auto one) {
    if (name == one.name) found = one.value;
  });
  return found;
}

}  // namespace

std::span<Transition const> all_transitions() noexcept {
  return transitions;
}

std::optional<Transition> find_transition(SandboxState from, SandboxEvent event) noexcept {
  auto const row = std::ranges::find_if(
      transitions, [&](auto const& t) { return t.from == from && t.event == event; });
  if (row == transitions.end()) return std::nullopt;
  return *row;
}

base::Result<Transition> get_transition(SandboxState from, SandboxEvent event) {
  if (auto const row = find_transition(from, event)) return *row;
  return base::fail(
      base::Code::conflict,
      fmt::format("the sandbox is {}; it cannot be {} now", name_of(from), participle_of(event)));
}

std::span<SandboxState const> states_that_allow(SandboxEvent event) noexcept {
  static auto const by_event = [] {
    std::array<std::vector<SandboxState>, sandbox_event_count> lists;
    for (auto const& t : transitions)
      lists[static_cast<std::size_t>(t.event)].push_back(t.from);
    return lists;
  }();
  return by_event[static_cast<std::size_t>(event)];
}

bool is_terminal(SandboxState state) noexcept {
  return state == deleted || state == failed;
}

bool is_transitional(SandboxState state) noexcept {
  switch (state) {
    case creating:
    case pausing:
    case resuming:
    case suspending:
    case restoring:
    case deleting:
      return true;
    case running:
    case paused:
    case suspended:
    case deleted:
    case failed:
      return false;
  }
  return false;
}

bool holds_machine(SandboxState state) noexcept {
  return !is_terminal(state) && state != suspended;
}

SandboxEvent event_of(EndReason reason) noexcept {
  switch (reason) {
    case EndReason::user:
    case EndReason::deadline:
    case EndReason::idle:
    case EndReason::quota:
    case EndReason::policy:
      return Event::end;
    case EndReason::start_failed:
      return Event::start_failed;
    case EndReason::guest_shutdown:
    case EndReason::guest_reboot:
      return Event::machine_ended;
    case EndReason::guest_panic:
    case EndReason::out_of_memory:
    case EndReason::vmm_exit:
    case EndReason::agent_lost:
    case EndReason::host_lost:
    case EndReason::unknown:
      return Event::machine_failed;
  }
  return Event::machine_failed;
}

EndReason reason_of_cause(std::string_view cause) noexcept {
  if (cause == "deleted") return EndReason::user;
  if (cause == "vmm_killed" || cause == "vmm_crashed") return EndReason::vmm_exit;
  if (cause == "host_stopped") return EndReason::host_lost;
  if (cause == "vmm_out_of_memory") return EndReason::out_of_memory;
  if (cause == "guest_shutdown" || cause == "guest_reboot" || cause == "guest_panic" ||
      cause == "agent_lost" || cause == "start_failed") {
    return reason_named(cause).value_or(EndReason::unknown);
  }
  return EndReason::unknown;
}

std::string_view sentence_of(EndReason reason) noexcept {
  switch (reason) {
    case EndReason::user:
      return "it was deleted by a request";
    case EndReason::deadline:
      return "its timeout was over";
    case EndReason::idle:
      return "nobody had used it for a long time";
    case EndReason::quota:
      return "its project's quota was used up";
    case EndReason::policy:
      return "an operator's rule ended it";
    case EndReason::start_failed:
      return "it could not be started";
    case EndReason::guest_shutdown:
      return "the guest powered itself off";
    case EndReason::guest_reboot:
      return "the guest asked for a reboot, which ends a sandbox";
    case EndReason::guest_panic:
      return "the guest's kernel panicked";
    case EndReason::out_of_memory:
      return "the host's limit on its memory was reached";
    case EndReason::vmm_exit:
      return "its virtual machine monitor ended unexpectedly";
    case EndReason::agent_lost:
      return "the agent in the guest stopped answering";
    case EndReason::host_lost:
      return "its host was lost";
    case EndReason::unknown:
      return "it was not there any more and nobody saw it end";
  }
  return "unknown";
}

std::string_view name_of(SandboxState state) noexcept {
  return boost::describe::enum_to_string(state, "?");
}

std::string_view name_of(SandboxEvent event) noexcept {
  return boost::describe::enum_to_string(event, "?");
}

std::string_view name_of(EndReason reason) noexcept {
  return boost::describe::enum_to_string(reason, "?");
}

std::optional<SandboxState> state_named(std::string_view name) noexcept {
  return named<SandboxState>(name);
}

std::optional<EndReason> reason_named(std::string_view name) noexcept {
  return named<EndReason>(name);
}

}  // namespace domain
