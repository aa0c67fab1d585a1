#pragma once

#include "wire/agent.hpp"
#include "worker/gateway_link.hpp"
#include "worker/host.hpp"

#include <memory>

namespace worker {

/// One sandbox on this host, from its admission until nothing is left of it. Its whole life is one
/// coroutine, live(), so nothing else changes it: others ask (ask_end), wait (wait_changed) and
/// look.
///
/// Each step is announced in the journal before it happens, so a worker that finds the journal
/// after its own death knows what there may be to undo. live() cancelled in the middle leaves
/// everything as it is, on purpose: that is what the death of the worker does, too.
class Sandbox {
 public:
  enum class State : std::uint8_t { starting, running, ending, ended };

  struct New {
    wire::StartSandbox request;
    Reservation reservation;
    base::SteadyTime received{};
    vmm::Accelerator accelerator = vmm::Accelerator::tcg;
    std::optional<BootLimits> limits;
    bool internal = false;
  };

  Sandbox(Host& host, New admitted);

  /// What is known about the slot of a sandbox found again.
  enum class Found : std::uint8_t {
    running,  // its machine runs
    exited,   // its machine is over, and its slot still its own
    nothing,  // neither: somebody else's slot, or none
  };
  Sandbox(Host& host, JournalEntry found_again, Reservation reservation, Found found);

  /// The whole life. To be run once. What it began is left when it is cancelled; then await
  /// close().
  boost::asio::awaitable<void> live();
  boost::asio::awaitable<void> close();

  /// The first one to ask gives the cause. From every state; returns at once.
  void ask_end(std::string cause, std::string detail);

  State state() const noexcept { return state_; }

  std::string const& id() const noexcept { return entry_.sandbox; }

  std::uint64_t epoch() const noexcept { return entry_.epoch; }

  std::uint32_t slot() const noexcept { return entry_.slot; }

  bool internal() const noexcept { return entry_.internal; }

  /// Why the start failed; once it did.
  std::optional<base::Error> const& start_error() const noexcept { return start_error_; }

  JournalEntry const& entry() const noexcept { return entry_; }

  boost::asio::awaitable<void> wait_changed() { return changed_.wait(); }

  wire::WorkerSandbox describe() const;
  std::string console(std::size_t bytes_max) const;
  /// The agent checks this token from now on.
  async::Task<void> set_token(std::string access_token);
  async::Task<std::string> metrics();
  /// See GatewayLink::apply(). conflict where this host gives no network.
  async::Task<wire::GatewayApplied> set_policy(wire::SetPolicy wanted);

 private:
  boost::asio::awaitable<void> start();
  boost::asio::awaitable<void> start_steps_noting();
  async::Task<void> start_steps();
  async::Task<void> prepare();
  async::Task<void> boot();
  async::Task<void> wait_for_agent();
  async::Task<void> reach_agent();
  void begin_network(bool adopt);
  async::Task<void> wait_for_network();
  async::Task<void> tell_agent(boost::json::object changes);
  boost::asio::awaitable<void> take_over();
  boost::asio::awaitable<void> watch();
  boost::asio::awaitable<void> watch_machine();
  boost::asio::awaitable<void> watch_health();
  boost::asio::awaitable<void> mend_stalls();
  boost::asio::awaitable<void> wait_end_asked();
  boost::asio::awaitable<void> end();
  async::Task<void> end_machine();
  async::Task<void> remove_slot();
  async::Task<void> remove_disk();
  boost::asio::awaitable<void> persist(std::string step, async::Task<void> (Sandbox::*attempt)());
  boost::asio::awaitable<void> note(std::string phase);

  void mark(std::string step);
  double started_at(std::string_view step) const;
  void note_proof();
  void become(State state);
  void blame(std::string cause, std::string detail);
  async::Task<void> write_journal(std::string phase);
  void blame_exit(vmm::Exit exit);
  wire::AgentInit agent_init() const;

  Host& host_;
  JournalEntry entry_;
  wire::StartSandbox request_;  // of a new one
  Reservation reservation_;
  base::SteadyTime received_{};
  vmm::Accelerator accelerator_ = vmm::Accelerator::tcg;
  BootLimits limits_;
  State state_ = State::starting;
  Found found_ = Found::nothing;
  bool adopted_ = false;
  bool slot_is_ours_ = false;
  bool end_asked_ = false;
  os::Fd disk_;
  std::unique_ptr<vmm::Vmm> vmm_;
  std::unique_ptr<GatewayLink> gateway_;  // where the host has an uplink
  std::optional<base::Error> start_error_;
  async::Turnstile talking_;  // to the agent's /init: one change at a time
  async::Signal changed_;
};

}  // namespace worker
