#include "base/fault.hpp"
#include "base/log.hpp"
#include "base/metric_names.hpp"
#include "worker/sandbox.hpp"

/// A running sandbox, and its end. An end goes on until nothing is left, whatever it meets on the
/// way.
namespace worker {

namespace asio = boost::asio;

namespace {

std::unexpected<base::Error> injected() {
  return base::fail(base::Code::internal, "a fault was injected here");
}

std::string cause_name(vmm::ExitCause cause) {
  switch (cause) {
    case vmm::ExitCause::asked:
      return "deleted";
    case vmm::ExitCause::guest_shutdown:
      return "guest_shutdown";
    case vmm::ExitCause::guest_reboot:
      return "guest_reboot";
    case vmm::ExitCause::guest_panic:
      return "guest_panic";
    case vmm::ExitCause::killed:
      return "vmm_killed";
    case vmm::ExitCause::out_of_memory:
      return "vmm_out_of_memory";
    case vmm::ExitCause::crashed:
      return "vmm_crashed";
    case vmm::ExitCause::unknown:
      break;
  }
  return "unknown";
}

constexpr std::chrono::milliseconds first_pause(100);
constexpr std::chrono::milliseconds longest_pause(5'000);
constexpr int refusals_of_a_lost_agent = 3;

}  // namespace

asio::awaitable<void> Sandbox::take_over() {
  for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
    auto vmm = co_await host_.driver.adopt(slot());
    if (vmm) {
      vmm_ = std::move(*vmm);
      base::log::info(
          "sandbox_adopted",
          {{"sandbox", id()}, {"epoch", epoch()}, {"slot", slot()}, {"pid", vmm_->pid()}});
      begin_network(true);
      co_return changed_.notify_all();
    }
    if (vmm.error().code() == base::Code::not_found) co_return become(State::ending);
    base::log::warn(
        "adoption_waits",
        {{"sandbox", id()}, {"what", vmm.error().message()}, {"detail", vmm.error().detail()}});
    co_await async::sleep_for(pause);
  }
}

asio::awaitable<void> Sandbox::watch() {
  if (state_ == State::suspended) co_return co_await wait_asked();
  if (state_ == State::paused) co_return co_await watch_machine();
  co_await async::race(watch_health(), watch_machine());
}

asio::awaitable<void> Sandbox::watch_machine() {
  auto waiting = wait_asked();
  auto living = mend_stalls();
  co_await async::race(std::move(waiting), std::move(living));
}

/// The worker before us may have died while it had stopped the machine for a snapshot.
asio::awaitable<void> Sandbox::undo_stop() {
  auto const stopped = co_await vmm_->stopped(base::system_clock().in(std::chrono::seconds(5)));
  if (!stopped || !*stopped) co_return;
  auto const gone_on = co_await go_on();
  base::log::info("stopped_machine_goes_on", {{"sandbox", id()}, {"done", gone_on.has_value()}});
}

/// Until the machine is gone. A machine whose disk could not be written is stopped by its VMM (the
/// pool is full): it goes on by itself once there is room, and costs nothing until then.
asio::awaitable<void> Sandbox::mend_stalls() {
  if (adopted_ && state_ == State::running) co_await undo_stop();
  for (;;) {
    auto const ended = co_await async::run_until(base::system_clock().in(std::chrono::seconds(2)),
                                                 vmm_->wait_gone());
    if (ended == async::Ended::finished) co_return;
    if (!vmm_->stalled() || state_ != State::running) continue;
    auto const resumed = co_await vmm_->resume(base::system_clock().in(std::chrono::seconds(5)));
    if (!resumed)
      base::log::warn("stalled_machine", {{"sandbox", id()}, {"what", resumed.error().message()}});
  }
}

/// Until the agent is lost. Only a reset counts, three in a row: a guest that is busy, stopped or
/// deaf on purpose is slow, and killing a slow machine would take its work along. A halted kernel
/// is the one that never answers again; it says so with its last line (`halt` leaves the machine
/// on).
asio::awaitable<void> Sandbox::watch_health() {
  int silences = 0;
  for (int refusals = 0; refusals < refusals_of_a_lost_agent;) {
    co_await async::sleep_for(refusals == 0 ? host_.health_interval : host_.health_repeat);
    auto const reached =
        co_await host_.dialer.dial(slot(), wire::agent_port, host_.health_patience);
    refusals = reached.reached == Reached::refused ? refusals + 1 : 0;
    silences = reached.reached == Reached::slow ? silences + 1 : 0;
    if (silences >= 2 && console(200).find("reboot: System halted") != std::string::npos) {
      co_return blame("guest_shutdown", "the guest was halted from inside");
    }
  }
  blame("agent_lost", "the agent in the guest no longer accepts connections");
}

asio::awaitable<void> Sandbox::end() {
  become(State::ending);
  co_await note("ending");
  static_cast<void>(SPACE_FAULT("worker.end.begun"));
  if (gateway_) co_await gateway_->end();
  co_await persist("end the virtual machine", &Sandbox::end_machine);
  co_await persist("remove the slot", &Sandbox::remove_slot);
  co_await persist("remove the disk", &Sandbox::remove_disk);
  co_await persist("remove the suspended state", &Sandbox::drop_saved);
  if (lived_before_) blame_host();
  blame("unknown", "nobody saw it end");
  auto const now = base::system_clock().wall_now();
  entry_.ended_at = base::to_rfc3339(now);
  entry_.ended_unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  entry_.init_key.clear();
  if (entry_.internal) {
    co_await forget();
  } else {
    co_await note("ended");
  }
  static_cast<void>(SPACE_FAULT("worker.end.recorded"));
  reservation_ = Reservation();
  base::log::info(
      "sandbox_ended",
      {{"sandbox", id()}, {"epoch", epoch()}, {"cause", entry_.cause}, {"detail", entry_.detail}});
  if (!entry_.internal) base::metrics().count(base::metric::ends, {entry_.cause});
  if (!entry_.internal) host_.ended.add(entry_);
  become(State::ended);
}

/// An end that cannot be noted goes on all the same: what is left in the journal then is an older
/// phase, which the next worker finds without a machine.
asio::awaitable<void> Sandbox::note(std::string phase) {
  auto const noted = co_await write_journal(std::move(phase));
  if (!noted)
    base::log::error(
        "journal_not_written",
        {{"sandbox", id()}, {"what", noted.error().message()}, {"detail", noted.error().detail()}});
}

/// Nobody asks how a machine of nobody has ended.
asio::awaitable<void> Sandbox::forget() {
  auto const removed = co_await async::blocking(
      [journal = host_.journal, sandbox = id()] { return journal.remove(sandbox); });
  if (!removed)
    base::log::warn("journal_entry_stays",
                    {{"sandbox", id()}, {"what", removed.error().message()}});
}

asio::awaitable<void> Sandbox::persist(std::string step, async::Task<void> (Sandbox::*attempt)()) {
  for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
    auto const done = co_await (this->*attempt)();
    if (done) co_return;
    base::log::warn("end_waits",
                    {{"sandbox", id()},
                     {"step", step},
                     {"what", done.error().message()},
                     {"detail", done.error().detail()}});
    co_await async::sleep_for(pause);
  }
}

async::Task<void> Sandbox::end_machine() {
  if (SPACE_FAULT("worker.end.machine")) co_return injected();
  if (vmm_) {
    auto exit = co_await vmm_->kill();
    if (!exit) co_return std::unexpected(exit.error());
    blame_exit(std::move(*exit));
    co_await vmm_->close();
    co_return base::Result<void>();
  }
  if (!slot_is_ours_) co_return base::Result<void>();
  auto const end = co_await host_.launcher.end(slot());
  if (!end) co_return std::unexpected(end.error());
  if (adopted_) blame_exit(vmm::explain_exit({*end, end_asked_, std::nullopt, false, {}}));
  co_return base::Result<void>();
}

void Sandbox::blame_exit(vmm::Exit exit) {
  if (entry_.console_tail.empty()) entry_.console_tail = std::move(exit.console_tail);
  // The machine's own end explains a failed start better than the step that noticed it.
  bool const by_itself =
      exit.cause != vmm::ExitCause::asked && exit.cause != vmm::ExitCause::unknown;
  if (entry_.cause == "start_failed" && by_itself && !exit.detail.empty()) {
    entry_.detail += ": " + exit.detail;
    if (start_error_)
      start_error_ = base::Error(start_error_->code(), entry_.detail, start_error_->detail());
  }
  if (exit.cause == vmm::ExitCause::unknown && lived_before_) return blame_host();
  blame(cause_name(exit.cause), std::move(exit.detail));
}

/// It ran when its worker was seen last, and neither machine nor anybody who saw its end is left.
void Sandbox::blame_host() {
  blame("host_stopped",
        "its host stopped without a warning (a power cut, or everything was killed at once)");
}

async::Task<void> Sandbox::remove_slot() {
  if (SPACE_FAULT("worker.end.slot")) co_return injected();
  if (!slot_is_ours_) co_return base::Result<void>();
  auto removed = co_await host_.slots.dispose(slot());
  if (removed) slot_is_ours_ = false;
  co_return removed;
}

async::Task<void> Sandbox::remove_disk() {
  if (SPACE_FAULT("worker.end.disk")) co_return injected();
  disk_.reset();
  auto removed = co_await async::blocking(
      [pool = host_.disks, journal = host_.journal, sandbox = id(), before = name_before_] {
        auto gone = pool.remove(sandbox);
        if (gone && !before.empty()) gone = pool.remove(before);
        if (gone && !before.empty()) gone = journal.remove(before);
        return gone;
      });
  if (removed) name_before_.clear();
  co_return removed;
}

}  // namespace worker
