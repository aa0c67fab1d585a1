#pragma once

#include "wire/agent.hpp"
#include "worker/gateway_link.hpp"
#include "worker/host.hpp"
#include "worker/state_store.hpp"

#include <memory>

namespace http {
class Connection;
}

namespace worker {

class Gather;

/// One sandbox on this host, from its admission until nothing is left of it. Its whole life is one
/// coroutine, live(), so nothing else changes it: others ask (ask_end), wait (wait_changed) and
/// look.
///
/// Each step is announced in the journal before it happens, so a worker that finds the journal
/// after its own death knows what there may be to undo. live() cancelled in the middle leaves
/// everything as it is, on purpose: that is what the death of the worker does, too.
class Sandbox {
 public:
  enum class State : std::uint8_t {
    starting,
    warm,  // stopped, nobody's; waits for claim()
    running,
    paused,
    suspending,
    suspended,
    restoring,
    ending,
    ended
  };

  struct New {
    wire::StartSandbox request;
    Reservation reservation;
    base::SteadyTime received{};
    vmm::Accelerator accelerator = vmm::Accelerator::tcg;
    std::optional<BootLimits> limits;
    bool internal = false;
    std::shared_ptr<BaseSnapshot const> base;  // go on from it; null: boot cold
    std::shared_ptr<BaseRecording> recording;  // boot to become a snapshot: captured once it runs
    bool warm = false;                         // internal, with a base: wait for claim()
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

  /// Of a warm machine, at once: from now on it is the request's sandbox, and starting.
  void claim(wire::StartSandbox request, base::SteadyTime received);

  /// The first one to ask gives the cause. From every state; returns at once.
  void ask_end(std::string cause, std::string detail);

  /// What a life can be asked for once it has begun (sandbox_suspend.cpp).
  struct Change {
    enum class What : std::uint8_t { pause, resume, suspend, restore, snapshot };
    What what = What::pause;
    wire::StartSandbox request;   // restore
    std::string snapshot;         // its name
    wire::SnapshotReport report;  // of a snapshot that was taken
    std::optional<base::Result<void>> outcome;
  };

  /// One after the other. Goes on when the caller leaves. Errors: conflict (the state does not
  /// allow it, or the sandbox ended meanwhile), and why it failed; then the sandbox is as it was
  /// before.
  async::Task<void> change(std::shared_ptr<Change> wanted);

  State state() const noexcept { return state_; }

  std::string const& id() const noexcept { return entry_.sandbox; }

  std::uint64_t epoch() const noexcept { return entry_.epoch; }

  std::uint32_t slot() const noexcept { return entry_.slot; }

  bool internal() const noexcept { return entry_.internal; }

  /// Waits for claim().
  bool claimable() const noexcept { return state_ == State::warm && !end_asked_; }

  MachineShape shape() const;

  /// What it went on from, or will.
  std::shared_ptr<BaseSnapshot const> const& base() const noexcept { return base_; }

  Amounts const& held() const noexcept { return reservation_.held(); }

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
  /// Are the packet rules of its slot still ours? Its network is switched off when they are not.
  boost::asio::awaitable<void> check_rules();
  boost::asio::awaitable<void> close_network(std::string reason);

 private:
  boost::asio::awaitable<void> start();
  boost::asio::awaitable<void> start_steps_noting();
  async::Task<void> start_steps();
  async::Task<void> start_quickest();
  async::Task<void> start_cold();
  async::Task<void> prepare();
  async::Task<os::Fd> make_disk();
  async::Task<void> boot(vmm::MachineStart how);
  /// Speaks to the agent over a connection; calls back at its first answer.
  using Talk = std::function<async::Task<void>(net::Stream, std::function<void()>)>;
  Talk initialise();
  async::Task<void> wait_for_agent(Talk talk);
  async::Task<void> reach_agent(Talk talk);
  // sandbox_ahead.cpp: starts that are not from nothing, and what they start from.
  async::Task<void> start_from_base();
  async::Task<void> restore_base();
  async::Task<void> start_claimed();
  async::Task<void> tell_claimed();
  async::Task<void> take_name();
  async::Task<void> become_warm();
  async::Task<void> record();
  Talk exercise();
  async::Task<void> rehearse(net::Stream stream);
  Talk claiming();
  wire::AgentInit nobodys_init() const;
  boost::asio::awaitable<void> wait_as_warm();
  boost::asio::awaitable<void> wait_claimed();
  boost::asio::awaitable<void> begin_anew(base::Error why);
  boost::asio::awaitable<void> note_base_failed(bool surely, std::string why);
  // sandbox_suspend.cpp
  boost::asio::awaitable<void> carry_out(std::shared_ptr<Change> wanted);
  async::Task<void> pause();
  async::Task<void> resume();
  async::Task<void> go_on();
  async::Task<void> tell_time();
  async::Task<void> suspend();
  async::Task<void> suspend_steps(bool was_paused);
  boost::asio::awaitable<void> undo_suspend(bool was_paused);
  async::Task<std::shared_ptr<Gather>> prepare_to_save(StateStore store,
                                                       std::string name,
                                                       bool ends);
  async::Task<void> save(std::shared_ptr<Gather> gather);
  async::Task<void> drop_saved();
  async::Task<void> note_suspended();
  boost::asio::awaitable<void> release();
  void hold_at_rest();
  async::Task<void> take_snapshot(std::shared_ptr<Change> wanted);
  async::Task<void> pause_to_save(std::shared_ptr<Change> wanted, SavedMachine* saved);
  // sandbox_restore.cpp
  async::Task<void> restore(wire::StartSandbox request);
  boost::asio::awaitable<void> restore_noting(std::optional<base::Result<void>>* out);
  async::Task<void> restore_steps();
  void go_back_to(JournalEntry const& before);
  async::Task<std::shared_ptr<LoadedMachine>> load(StateStore store, std::string name);
  async::Task<void> begin_on(std::shared_ptr<LoadedMachine> from);
  async::Task<void> boot_on(std::shared_ptr<LoadedMachine> from);
  async::Task<void> start_from_snapshot();
  Talk initialise_again(bool same_machine);
  boost::asio::awaitable<void> find_again();
  boost::asio::awaitable<void> find_at_rest();
  void begin_network(bool adopt);
  async::Task<void> wait_for_network();
  boost::asio::awaitable<void> check_rules_without_gateway();
  async::Task<net::Stream> reach_guest();
  async::Task<void> tell_agent(boost::json::object changes);
  boost::asio::awaitable<void> take_over();
  boost::asio::awaitable<void> watch();
  boost::asio::awaitable<void> watch_machine();
  boost::asio::awaitable<void> watch_health();
  boost::asio::awaitable<void> mend_stalls();
  boost::asio::awaitable<void> undo_stop();
  boost::asio::awaitable<void> wait_end_asked();
  boost::asio::awaitable<void> wait_asked();
  boost::asio::awaitable<void> end();
  async::Task<void> end_machine();
  async::Task<void> remove_slot();
  async::Task<void> remove_disk();
  boost::asio::awaitable<void> persist(std::string step, async::Task<void> (Sandbox::*attempt)());
  boost::asio::awaitable<void> note(std::string phase);
  boost::asio::awaitable<void> forget();

  void mark(std::string step);
  double started_at(std::string_view step) const;
  void note_proof();
  void become(State state);
  void blame(std::string cause, std::string detail);
  async::Task<void> write_journal(std::string phase);
  void blame_exit(vmm::Exit exit);
  void blame_host();
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
  bool lived_before_ = false;  // under the worker before us
  bool slot_is_ours_ = false;
  bool end_asked_ = false;
  std::shared_ptr<BaseSnapshot const> base_;
  std::string saved_key_;  // the init key of a guest that was saved; "" = it has the sandbox's
  std::shared_ptr<BaseRecording> recording_;
  bool wait_warm_ = false;
  bool claimed_ = false;
  std::shared_ptr<http::Connection> line_;  // of a warm one to its agent, open since the rehearsal
  std::string name_before_;  // of a claimed one, until disk and journal have its new name
  os::Fd disk_;
  std::unique_ptr<vmm::Vmm> vmm_;
  // Where the host has an uplink. Shared with calls that are under way when it is replaced.
  std::shared_ptr<GatewayLink> gateway_;
  std::optional<base::Error> start_error_;
  std::shared_ptr<Change> pending_;  // not yet begun
  async::Turnstile changing_;
  async::Turnstile talking_;  // to the agent's /init: one change at a time
  async::Signal changed_;
};

}  // namespace worker
