#include "base/fault.hpp"
#include "base/log.hpp"
#include "worker/sandbox.hpp"
#include "worker/suspend_gather.hpp"

#include <utility>

/// What stops a sandbox's machine and lets it go on: pause, suspend, snapshot. What goes on from
/// files is in sandbox_restore.cpp.
///
/// A suspend has one moment in which it is decided: when the saved machine gets its name in the
/// store, with everything in it synced. Before that it is undone, whatever happens; after it, gone
/// through with, also by the next worker. The machine itself never runs again once that name is
/// there.
namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds command_patience(10'000);
constexpr std::chrono::milliseconds save_patience(60'000);

std::unexpected<base::Error> injected() {
  return base::fail(base::Code::internal, "a fault was injected here");
}

std::unexpected<base::Error> wrong_state(std::string_view what) {
  return base::fail(base::Code::conflict, fmt::format("the sandbox is {}", what));
}

base::Deadline soon() {
  return base::system_clock().in(command_patience);
}

/// How long the parts of something took, in ms: for the log.
class Laps {
 public:
  double lap() {
    auto const now = base::system_clock().steady_now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(last_, now)).count();
  }

 private:
  base::SteadyTime last_ = base::system_clock().steady_now();
};

}  // namespace

async::Task<void> Sandbox::change(std::shared_ptr<Change> wanted) {
  auto const turn = co_await changing_.enter();
  pending_ = wanted;
  changed_.notify_all();
  while (!wanted->outcome && state_ != State::ending && state_ != State::ended)
    co_await changed_.wait();
  if (!wanted->outcome) co_return wrong_state("ending");
  co_return *wanted->outcome;
}

asio::awaitable<void> Sandbox::carry_out(std::shared_ptr<Change> wanted) {
  base::Result<void> done;
  switch (wanted->what) {
    case Change::What::pause:
      done = co_await pause();
      break;
    case Change::What::resume:
      done = co_await resume();
      break;
    case Change::What::suspend:
      done = co_await suspend();
      break;
    case Change::What::restore:
      done = co_await restore(std::move(wanted->request));
      break;
    case Change::What::snapshot:
      done = co_await take_snapshot(wanted);
      break;
  }
  if (!done)
    base::log::warn("change_failed",
                    {{"sandbox", id()},
                     {"state", describe().state},
                     {"what", done.error().message()},
                     {"detail", done.error().detail()}});
  wanted->outcome = std::move(done);
  changed_.notify_all();
}

async::Task<void> Sandbox::pause() {
  if (state_ == State::paused) co_return base::Result<void>();
  if (state_ != State::running) co_return wrong_state(describe().state);
  auto stopped = co_await vmm_->pause(soon());
  if (!stopped) co_return base::passing(stopped, "pause the sandbox");
  if (SPACE_FAULT("worker.pause.stopped")) {
    auto const undone = co_await go_on();
    static_cast<void>(undone);
    co_return injected();
  }
  co_await note("paused");
  become(State::paused);
  co_return base::Result<void>();
}

async::Task<void> Sandbox::resume() {
  if (state_ == State::running) co_return base::Result<void>();
  if (state_ != State::paused) co_return wrong_state(describe().state);
  // Noted first: a machine that is noted as running and stands still is let go on by whoever finds
  // it.
  co_await note("running");
  base::Result<void> resumed;
  if (SPACE_FAULT("worker.resume.noted")) {
    resumed = injected();
  } else {
    resumed = co_await go_on();
  }
  if (!resumed) {
    co_await note("paused");
    co_return resumed;
  }
  become(State::running);
  co_return base::Result<void>();
}

/// The stopped machine runs again, and is told that time has passed.
async::Task<void> Sandbox::go_on() {
  auto resumed = co_await vmm_->resume(soon());
  if (!resumed) co_return base::passing(resumed, "let the machine go on");
  auto const told = co_await tell_time();
  if (!told)
    base::log::warn("clock_not_told", {{"sandbox", id()}, {"what", told.error().message()}});
  co_return base::Result<void>();
}

async::Task<void> Sandbox::tell_time() {
  boost::json::object news{{"timestamp", base::to_rfc3339(base::system_clock().wall_now())},
                           {"entropy", base::random_hex(64)}};
  co_return co_await tell_agent(std::move(news));
}

async::Task<void> Sandbox::suspend() {
  if (state_ == State::suspended) co_return base::Result<void>();
  if (state_ != State::running && state_ != State::paused) co_return wrong_state(describe().state);
  bool const was_paused = state_ == State::paused;
  Laps laps;
  become(State::suspending);
  auto kept = co_await suspend_steps(was_paused);
  if (!kept) {
    co_await undo_suspend(was_paused);
    co_return base::passing(kept, "suspend the sandbox");
  }
  auto const kept_ms = laps.lap();
  co_await persist("note the suspend", &Sandbox::note_suspended);
  co_await release();
  become(State::suspended);
  base::log::info("sandbox_suspended",
                  {{"sandbox", id()},
                   {"epoch", epoch()},
                   {"bytes", entry_.suspended_bytes},
                   {"kept_ms", kept_ms},
                   {"released_ms", laps.lap()}});
  co_return base::Result<void>();
}

/// The journal knows of it before it is decided, and not before the machine stands still: whoever
/// finds a machine that is noted as running and stands still lets it go on.
async::Task<void> Sandbox::suspend_steps(bool was_paused) {
  if (SPACE_FAULT("worker.suspend.begun")) co_return injected();
  Laps laps;
  auto const gather = co_await prepare_to_save(host_.suspended, id(), true);
  if (!gather) co_return std::unexpected(gather.error());
  entry_.was_paused = was_paused;
  entry_.phase = "suspending";
  (*gather)->note = [journal = host_.journal, entry = entry_] {
    return journal.write_durably(entry);
  };
  auto const prepared_ms = laps.lap();
  auto stopped = co_await vmm_->pause(soon());
  if (!stopped) co_return base::passing(stopped, "stop the machine");
  if (SPACE_FAULT("worker.suspend.stopped")) co_return injected();
  auto done = co_await save(*gather);
  if (!done) co_return base::passing(done);
  if (SPACE_FAULT("worker.suspend.noted")) co_return injected();
  if (SPACE_FAULT("worker.suspend.saved")) co_return injected();
  auto const gathered_ms = laps.lap();
  auto& saved = (*gather)->saved;
  entry_.suspended_bytes = saved.pages_bytes + saved.state_bytes;
  entry_.lost_reason.clear();
  saved.entry = entry_;
  saved.entry.phase = "suspended";
  auto kept =
      co_await async::blocking([store = host_.suspended, saved] { return store.keep(saved); });
  base::log::debug("suspend_steps",
                   {{"sandbox", id()},
                    {"prepared_ms", prepared_ms},
                    {"devices_ms", (*gather)->devices_ms},
                    {"gathered_ms", gathered_ms},
                    {"synced_ms", laps.lap()}});
  if (kept && SPACE_FAULT("worker.suspend.kept")) co_return injected();
  co_return kept;
}

/// Before anything stands still. Shared, because files are open in it that must be closed if it
/// comes back after we were cancelled.
async::Task<std::shared_ptr<Gather>> Sandbox::prepare_to_save(StateStore store,
                                                              std::string name,
                                                              bool ends) {
  auto const identity = co_await machine_identity(host_);
  if (!identity) co_return std::unexpected(identity.error());
  if (!entry_.base.empty() && !host_.disks.has_base(id()))
    co_return base::fail(base::Code::internal, "the memory file that its machine maps is gone");
  auto const gather = std::make_shared<Gather>(host_.hostd, host_.disks, std::move(store));
  gather->sandbox = id();
  gather->slot = slot();
  gather->ends = ends;
  // As on a host without memory for the copy: the files are written while the machine stands still.
  if (!ends) gather->held_max = SPACE_FAULT("worker.snapshot.room") ? 0 : held_bytes_max();
  auto const address = co_await vmm_->memory_address(soon());
  if (!address) co_return std::unexpected(address.error());
  gather->address = *address;
  auto& saved = gather->saved;
  saved.name = std::move(name);
  saved.identity = host_.identity;
  saved.accelerator = vmm::name_of(accelerator_);
  saved.build = entry_.build;
  saved.vcpus = entry_.vcpus;
  saved.memory_mib = entry_.memory_mib;
  saved.disk_mib = entry_.disk_mib;
  saved.tsc_khz = host_.tsc_khz;
  saved.init_key = entry_.init_key;
  saved.base = entry_.base;
  auto const prepared = co_await async::blocking([gather] { return gather->prepare(); });
  if (!prepared) co_return std::unexpected(prepared.error());
  co_return gather;
}

/// Of the machine that stands still.
async::Task<void> Sandbox::save(std::shared_ptr<Gather> gather) {
  Laps laps;
  auto state = co_await vmm_->save_devices(base::system_clock().in(save_patience));
  if (!state) co_return base::passing(state, "save the devices");
  gather->state = std::move(*state);
  gather->devices_ms = laps.lap();
  co_return co_await async::blocking([gather] { return gather->take(); });
}

/// The saved machine must be gone before the real one goes on: never both.
asio::awaitable<void> Sandbox::undo_suspend(bool was_paused) {
  co_await async::run_blocking([store = host_.suspended, name = id()] { store.discard(name); });
  co_await persist("undo the suspend", &Sandbox::drop_saved);
  entry_.suspended_bytes = 0;
  if (!was_paused) co_await async::race(persist("go on", &Sandbox::go_on), vmm_->wait_gone());
  co_await note(was_paused ? "paused" : "running");
  become(was_paused ? State::paused : State::running);
}

async::Task<void> Sandbox::drop_saved() {
  if (SPACE_FAULT("worker.end.saved")) co_return injected();
  co_return co_await async::blocking(
      [store = host_.suspended, name = id()] { return store.remove(name); });
}

/// Without waiting for the disk: what is kept of it says the same, to whoever finds an older entry
/// or none.
async::Task<void> Sandbox::note_suspended() {
  if (SPACE_FAULT("worker.suspend.journal")) co_return injected();
  co_return co_await write_journal("suspended");
}

/// Everything of a machine but what the store holds of it.
asio::awaitable<void> Sandbox::release() {
  static_cast<void>(SPACE_FAULT("worker.suspend.release"));
  if (gateway_) co_await gateway_->end();
  co_await persist("end the virtual machine", &Sandbox::end_machine);
  if (slot_is_ours_) host_.slots.dispose_soon(slot());
  slot_is_ours_ = false;
  co_await persist("remove the disk", &Sandbox::remove_disk);
  vmm_.reset();
  gateway_.reset();
  entry_.machine.clear();
  entry_.machine_epoch = 0;
  if (!end_asked_) {
    // What the end of the machine said is no cause of the sandbox's.
    entry_.cause.clear();
    entry_.detail.clear();
    entry_.console_tail.clear();
  }
  hold_at_rest();
}

void Sandbox::hold_at_rest() {
  auto const saved_mib = (entry_.suspended_bytes + (1U << 20U) - 1) >> 20U;
  reservation_ = Reservation();
  reservation_ = host_.capacity.adopt({.disk_mib = entry_.disk_mib + saved_mib});
}

async::Task<void> Sandbox::take_snapshot(std::shared_ptr<Change> wanted) {
  if (state_ != State::running && state_ != State::paused) co_return wrong_state(describe().state);
  if (SPACE_FAULT("worker.snapshot.begun")) co_return injected();
  SavedMachine saved;
  auto taken = co_await pause_to_save(wanted, &saved);
  if (taken && SPACE_FAULT("worker.snapshot.saved")) taken = injected();
  if (taken) {
    saved.entry = entry_;
    saved.entry.policy = {};
    saved.entry.credentials.clear();
    taken =
        co_await async::blocking([store = host_.snapshots, saved] { return store.keep(saved); });
  }
  if (!taken) {
    co_await async::run_blocking(
        [store = host_.snapshots, name = wanted->snapshot] { store.discard(name); });
    co_return base::passing(taken, "take a snapshot");
  }
  static_cast<void>(SPACE_FAULT("worker.snapshot.kept"));
  wanted->report = report_of(saved);
  co_return base::Result<void>();
}

/// It goes on whether that worked or not.
async::Task<void> Sandbox::pause_to_save(std::shared_ptr<Change> wanted, SavedMachine* saved) {
  auto const gather = co_await prepare_to_save(host_.snapshots, wanted->snapshot, false);
  if (!gather) co_return std::unexpected(gather.error());
  bool const was_paused = state_ == State::paused;
  Laps laps;
  auto stopped = co_await vmm_->pause(soon());
  if (!stopped) co_return base::passing(stopped, "stop the machine");
  auto const stopped_ms = laps.lap();
  auto done = co_await save(*gather);
  if (done && SPACE_FAULT("worker.snapshot.stopped")) done = injected();
  auto const taken_ms = laps.lap();
  if (!was_paused) {
    auto const resumed = co_await vmm_->resume(soon());
    if (!resumed) co_await async::race(persist("go on", &Sandbox::go_on), vmm_->wait_gone());
  }
  auto const resumed_ms = laps.lap();
  if (done) done = co_await async::blocking([gather = *gather] { return gather->finish(); });
  if (!done) co_return std::unexpected(done.error());
  *saved = (*gather)->saved;
  saved->paused_ms = stopped_ms + taken_ms + resumed_ms;
  base::log::info("sandbox_stood_still",
                  {{"sandbox", id()},
                   {"ms", saved->paused_ms},
                   {"bytes", saved->pages_bytes},
                   {"stop_ms", stopped_ms},
                   {"devices_ms", (*gather)->devices_ms},
                   {"copy_ms", taken_ms - (*gather)->devices_ms},
                   {"resume_ms", resumed_ms},
                   {"finish_ms", laps.lap()}});
  co_return base::Result<void>();
}

}  // namespace worker
