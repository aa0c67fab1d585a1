#include "base/fault.hpp"
#include "base/log.hpp"
#include "worker/agent_client.hpp"
#include "worker/sandbox.hpp"

#include <sys/mman.h>

#include <unistd.h>

/// Machines that go on from files: a suspended sandbox, a sandbox made from a snapshot, and what a
/// worker finds of either after its own death.
namespace worker {

namespace asio = boost::asio;

namespace {

std::unexpected<base::Error> injected() {
  return base::fail(base::Code::internal, "a fault was injected here");
}

/// A file of its own, because a VMM reads from a descriptor.
base::Result<os::Fd> as_file(std::string_view text) {
  os::Fd file(::memfd_create("state", MFD_CLOEXEC));
  if (!file) return base::fail_errno("make a file for the machine's state");
  while (!text.empty()) {
    auto const done = ::write(file.get(), text.data(), text.size());
    if (done <= 0) return base::fail_errno("write the machine's state");
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  if (::lseek(file.get(), 0, SEEK_SET) != 0) return base::fail_errno("rewind the machine's state");
  return file;
}

}  // namespace

/// Of a suspended sandbox. It stays suspended until the machine runs, its agent has answered and
/// that is noted: its state is not touched, the machine works on a copy of its disk.
async::Task<void> Sandbox::restore(wire::StartSandbox request) {
  if (state_ == State::running && request.epoch == epoch()) co_return base::Result<void>();
  if (state_ != State::suspended)
    co_return base::fail(base::Code::conflict,
                         fmt::format("the sandbox is {}, not suspended", describe().state));
  if (request.epoch <= epoch())
    co_return base::fail(base::Code::conflict, "a newer life of this sandbox was here");
  auto const accelerator = host_.accelerator.decided();
  auto reservation = host_.capacity.reserve(
      {.memory_mib =
           entry_.memory_mib + host_.overhead_mib(accelerator.value_or(vmm::Accelerator::tcg)),
       .vcpus = entry_.vcpus,
       .slots = 1});
  if (!reservation) co_return std::unexpected(std::move(reservation.error()));
  auto const before = entry_;
  request_ = std::move(request);
  received_ = base::system_clock().steady_now();
  entry_.timeline.clear();
  mark("admitted");
  become(State::restoring);
  std::optional<base::Result<void>> done;
  auto const first = co_await async::race(restore_noting(&done), wait_end_asked());
  request_ = wire::StartSandbox();
  if (first == async::First::right)
    co_return base::fail(base::Code::conflict, "the sandbox was ended while it was restored");
  if (*done) {
    auto all = reservation->held();
    all.disk_mib = entry_.disk_mib;
    *reservation = Reservation();
    reservation_ = Reservation();
    reservation_ = host_.capacity.adopt(all);
    co_return std::move(*done);
  }
  co_await release();
  auto const lost = entry_.lost_reason;
  go_back_to(before);
  entry_.lost_reason = lost;
  co_await persist("note the suspend", &Sandbox::note_suspended);
  become(State::suspended);
  co_return base::passing(*done, "restore the sandbox");
}

/// But not behind an end that was asked for meanwhile.
void Sandbox::go_back_to(JournalEntry const& before) {
  auto const cause = end_asked_ ? entry_.cause : std::string();
  auto const detail = end_asked_ ? entry_.detail : std::string();
  entry_ = before;
  entry_.cause = cause;
  entry_.detail = detail;
}

asio::awaitable<void> Sandbox::restore_noting(std::optional<base::Result<void>>* out) {
  out->emplace(co_await restore_steps());
}

async::Task<void> Sandbox::restore_steps() {
  if (SPACE_FAULT("worker.restore.begun")) co_return injected();
  auto loaded = co_await load(host_.suspended, id());
  if (!loaded) {
    // What it says about the state holds until a later try shows otherwise.
    entry_.lost_reason = loaded.error().message();
    co_return std::unexpected(std::move(loaded.error()));
  }
  entry_.epoch = request_.epoch;
  entry_.policy = request_.policy.value_or(wire::EffectivePolicy());
  entry_.credentials = request_.credentials;
  entry_.started_by = "suspended state";
  auto begun = co_await begin_on(*loaded);
  if (!begun) co_return begun;
  auto const pass = co_await host_.boots.enter();
  auto booted = co_await boot_on(*loaded);
  if (!booted) co_return booted;
  auto answered = co_await wait_for_agent(initialise_again(true));
  if (!answered) co_return answered;
  if (SPACE_FAULT("worker.restore.initialised")) co_return injected();
  entry_.phase = "running";
  entry_.suspended_bytes = 0;
  entry_.lost_reason.clear();
  auto noted = co_await async::blocking(
      [journal = host_.journal, entry = entry_] { return journal.write_durably(entry); });
  if (!noted) co_return base::passing(noted, "note the restore");
  // The life that was suspended is over.
  static_cast<void>(SPACE_FAULT("worker.restore.noted"));
  become(State::running);
  co_await persist("remove the suspended state", &Sandbox::drop_saved);
  co_return base::Result<void>();
}

async::Task<std::shared_ptr<LoadedMachine>> Sandbox::load(StateStore store, std::string name) {
  auto const identity = co_await machine_identity(host_);
  if (!identity) co_return std::unexpected(identity.error());
  // Shared: it may come back after we were cancelled, and its files must be closed then.
  auto found = std::make_shared<base::Result<LoadedMachine>>();
  co_await async::run_blocking(
      [found, store, name, identity = *identity] { *found = store.load(name, identity); });
  if (!*found) co_return std::unexpected(found->error());
  auto loaded = std::make_shared<LoadedMachine>(std::move(**found));
  auto const decided = host_.accelerator.decided();
  if (!decided || vmm::name_of(*decided) != loaded->saved.accelerator) {
    co_return base::fail(base::Code::internal,
                         "the saved state cannot be used: it was made under " +
                             loaded->saved.accelerator + ", which this host does not use now");
  }
  accelerator_ = *decided;
  mark("verified");
  co_return loaded;
}

/// Slot, network and disk.
async::Task<void> Sandbox::begin_on(std::shared_ptr<LoadedMachine> from) {
  auto const number = co_await host_.slots.take();
  if (!number) co_return std::unexpected(number.error());
  entry_.slot = *number;
  slot_is_ours_ = true;
  entry_.base = from->saved.base;
  entry_.machine.clear();  // this machine has the sandbox's own name
  entry_.machine_epoch = 0;
  if (state_ == State::restoring) {
    entry_.init_key = from->saved.init_key;
  } else {
    saved_key_ = from->saved.init_key;  // its parent's: it gets one of its own
  }
  auto noted = co_await write_journal(state_ == State::restoring ? "restoring" : "starting");
  if (!noted) co_return base::passing(noted, "note the restore");
  if (SPACE_FAULT("worker.restore.journaled")) co_return injected();
  auto disk = std::make_shared<base::Result<os::Fd>>();
  co_await async::run_blocking(
      [disk, from, pool = host_.disks, sandbox = id(), disk_mib = entry_.disk_mib] {
        *disk = pool.clone_image(from->disk, sandbox, disk_mib);
        if (!*disk || from->saved.base.empty()) return;
        auto linked = pool.keep_base(from->memory, sandbox);
        if (!linked) *disk = std::unexpected(linked.error());
      });
  if (!*disk) co_return base::passing(*disk, "make the disk");
  disk_ = std::move(**disk);
  mark("disk_cloned");
  if (SPACE_FAULT("worker.restore.disk_cloned")) co_return injected();
  auto made = co_await host_.slots.make(slot());
  if (!made) co_return base::passing(made, "make the slot");
  mark("slot_taken");
  begin_network(false);
  co_return base::Result<void>();
}

/// The machine runs when this returns, and its network is what the policy says.
async::Task<void> Sandbox::boot_on(std::shared_ptr<LoadedMachine> from) {
  vmm::BootSpec spec;
  spec.slot = slot();
  spec.sandbox = id();
  spec.epoch = epoch();
  spec.accelerator = accelerator_;
  spec.vcpus = from->saved.vcpus;
  spec.memory_mib = from->saved.memory_mib;
  spec.tsc_khz = from->saved.tsc_khz;
  spec.disk = std::move(disk_);
  spec.start = vmm::MachineStart::restore;
  spec.memory = std::move(from->memory);
  spec.changes = std::move(from->pages);
  auto vmm = co_await host_.driver.boot(std::move(spec));
  if (!vmm) co_return std::unexpected(std::move(vmm.error()));
  vmm_ = std::move(*vmm);
  mark("vmm_started");
  if (SPACE_FAULT("worker.restore.vmm_started")) co_return injected();
  auto networked = co_await wait_for_network();
  if (!networked) co_return networked;
  auto const state = as_file(from->state);
  if (!state) co_return std::unexpected(state.error());
  auto restored = co_await vmm_->restore(*state, base::system_clock().in(host_.restore_patience));
  if (!restored) co_return base::passing(restored, "go on from the saved state");
  mark("restored");
  if (SPACE_FAULT("worker.restore.restored")) co_return injected();
  co_return base::Result<void>();
}

/// What a guest that has been away must be told before anything else happens to it. What is not
/// given anew stays as it was.
Sandbox::Talk Sandbox::initialise_again(bool same_machine) {
  return [this, same_machine](net::Stream stream, std::function<void()> on_answer) {
    auto init = agent_init();
    if (same_machine) init.machine_id.clear();
    init.goes_on = true;
    if (init.envVars && init.envVars->empty()) init.envVars.reset();
    if (init.defaultUser == "user") init.defaultUser.reset();
    if (init.defaultWorkdir && init.defaultWorkdir->empty()) init.defaultWorkdir.reset();
    return initialise_agent(std::move(stream),
                            std::move(init),
                            base::system_clock().in(host_.init_patience),
                            std::move(on_answer));
  };
}

async::Task<void> Sandbox::start_from_snapshot() {
  auto loaded = co_await load(host_.snapshots, request_.from_snapshot);
  if (!loaded) co_return base::passing(loaded, "start from the snapshot");
  auto const& saved = (*loaded)->saved;
  bool const same = saved.vcpus == entry_.vcpus && saved.memory_mib == entry_.memory_mib &&
                    saved.disk_mib == entry_.disk_mib;
  if (!same) {
    co_return base::fail(base::Code::invalid_argument,
                         fmt::format("a sandbox from this snapshot has {} vcpus, {} MiB of memory "
                                     "and a disk of {} MiB",
                                     saved.vcpus,
                                     saved.memory_mib,
                                     saved.disk_mib));
  }
  entry_.started_by = "snapshot";
  auto begun = co_await begin_on(*loaded);
  if (!begun) co_return begun;
  auto const pass = co_await host_.boots.enter();
  auto booted = co_await boot_on(*loaded);
  if (!booted) co_return booted;
  auto answered = co_await wait_for_agent(initialise_again(false));
  saved_key_.clear();
  co_return answered;
}

/// After the death of the worker that had it.
asio::awaitable<void> Sandbox::find_again() {
  if (state_ == State::suspending || state_ == State::suspended || state_ == State::restoring)
    co_await find_at_rest();
  if (vmm_) co_return;
  if (state_ == State::running || state_ == State::paused) {
    co_await take_over();
    // Of a life before this one: a restore that was noted, but not cleaned up after.
    co_await persist("remove an older state", &Sandbox::drop_saved);
  }
}

asio::awaitable<void> Sandbox::find_at_rest() {
  auto const saved =
      co_await async::blocking([store = host_.suspended, name = id()] { return store.look(name); });
  bool const undecided = state_ == State::suspending;
  bool const complete = saved && (!undecided || saved->entry.epoch == epoch());
  if (undecided && !complete && found_ == Found::running) {
    bool const was_paused = entry_.was_paused;
    co_await take_over();
    if (vmm_) co_await undo_suspend(was_paused);
    co_return;
  }
  bool const nothing_saved = !saved && saved.error().code() == base::Code::not_found;
  if (undecided && nothing_saved) {
    blame_host();
    co_return become(State::ending);
  }
  // The store has it, or says why what it has is of no use.
  co_await release();
  if (saved) {
    go_back_to(saved->entry);
  } else {
    entry_.lost_reason = saved.error().message();
  }
  hold_at_rest();
  co_await persist("note the suspend", &Sandbox::note_suspended);
  become(State::suspended);
}

}  // namespace worker
