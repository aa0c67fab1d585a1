#pragma once

#include "base/result.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <boost/describe/enum.hpp>

/// The life of a sandbox as a table: which event may happen in which state, where it leads, and the
/// fault points around its commit. There is no other place that knows this. The store applies a
/// transition by compare-and-set on (state, version); whoever loses the race gets the current state
/// back.
namespace domain {

BOOST_DEFINE_FIXED_ENUM_CLASS(
    SandboxState,
    std::uint8_t,
    creating,    // a worker was chosen and may be starting it
    running,     // the agent answered; commands and data flow
    pausing,     // its vCPUs are being stopped
    paused,      // vCPUs stopped, memory stays on the worker
    resuming,    // vCPUs are being started again
    suspending,  // memory, devices and disk are being captured
    suspended,   // captured; no other resource is held
    restoring,   // coming back from the capture
    deleting,    // somebody decided its end; the worker may still hold resources
    deleted,     // terminal: ended as decided, or by its own will
    failed)      // terminal: ended by a fault; see its end reason

BOOST_DEFINE_FIXED_ENUM_CLASS(
    SandboxEvent,
    std::uint8_t,
    started,         // the worker says the agent answered
    start_failed,    // it never ran, and the worker confirmed that nothing is left
    pause,           // asked for
    pause_done,      //
    pause_failed,    //
    resume,          //
    resume_done,     //
    resume_failed,   //
    suspend,         //
    suspend_done,    //
    suspend_failed,  //
    restore,         //
    restore_done,    //
    restore_failed,  //
    end,             // user, deadline, idle, quota or policy decided its end
    released,        // the worker confirmed that nothing is left of it
    machine_ended,   // the machine ended by the guest's own will (shutdown, reboot)
    machine_failed)  // the machine ended by a fault (panic, VMM, memory, host)

/// Why a sandbox ended. Kept with the row for 30 days.
BOOST_DEFINE_FIXED_ENUM_CLASS(
    EndReason,
    std::uint8_t,
    user,            // deleted by a request
    deadline,        // its timeout was over
    idle,            // nobody used it for long
    quota,           // its project's quota was lowered or used up
    policy,          // an operator's rule
    start_failed,    // it could not be started
    guest_shutdown,  // the guest powered itself off
    guest_reboot,    // the guest asked for a reboot; machines are not started twice
    guest_panic,     // the guest's kernel panicked
    out_of_memory,   // the host's limit on its memory killed it
    vmm_exit,        // the virtual machine monitor crashed or was killed
    agent_lost,      // the agent in the guest stopped answering
    host_lost,       // its host is gone
    unknown)         // it was not there any more and nobody saw it end

inline constexpr std::size_t sandbox_state_count = 11;
inline constexpr std::size_t sandbox_event_count = 18;

struct Transition {
  SandboxState from;
  SandboxEvent event;
  SandboxState to;
  /// Names for SPACE_FAULT right before and right after the commit:
  /// "sandbox.<event>.before_commit", "sandbox.<event>.after_commit". The fault walk arms every one
  /// of them.
  char const* fault_before;
  char const* fault_after;
};

/// The whole table.
std::span<Transition const> all_transitions() noexcept;

/// The row of the table, or nothing when the event may not happen in that state.
std::optional<Transition> find_transition(SandboxState from, SandboxEvent event) noexcept;

/// The same as a result: `conflict` with a sentence such as "the sandbox is suspended; it cannot be
/// paused".
base::Result<Transition> get_transition(SandboxState from, SandboxEvent event);

/// States in which the event may happen, for `… WHERE state = ANY($n)`.
std::span<SandboxState const> states_that_allow(SandboxEvent event) noexcept;

/// deleted, failed.
bool is_terminal(SandboxState state) noexcept;
/// pausing, resuming, … : some program is at work and will move it on, or a controller will.
bool is_transitional(SandboxState state) noexcept;
/// True while a worker may hold a machine (memory, slot, VMM) for it. A suspended one holds disk
/// only.
bool holds_machine(SandboxState state) noexcept;

/// The event by which a machine's end of that cause is recorded: machine_ended or machine_failed,
/// or start_failed. For reasons that are decisions (user, deadline, …) it is `end`.
SandboxEvent event_of(EndReason reason) noexcept;
/// `wire::EndedSandbox::cause` → reason. Causes of a newer worker are `unknown`.
EndReason reason_of_cause(std::string_view cause) noexcept;
/// A sentence for the owner: "its timeout was over".
std::string_view sentence_of(EndReason reason) noexcept;

std::string_view name_of(SandboxState state) noexcept;
std::string_view name_of(SandboxEvent event) noexcept;
std::string_view name_of(EndReason reason) noexcept;
/// Nothing for a name that is none.
std::optional<SandboxState> state_named(std::string_view name) noexcept;
std::optional<EndReason> reason_named(std::string_view name) noexcept;

}  // namespace domain
