#include "base/assert.hpp"
#include "base/fault.hpp"
#include "base/log.hpp"
#include "http/client.hpp"
#include "worker/agent_client.hpp"
#include "worker/sandbox.hpp"

#include <sys/mman.h>

#include <unistd.h>

/// Starts that go on from what was made ahead: from a base snapshot, as a warm machine; and the
/// making of both. A machine that fails here is no sandbox's misfortune: its sandbox boots cold.
///
/// What a resumed guest must not share with its siblings it gets before anything of its sandbox
/// runs: POST /init steps the clock, credits fresh entropy, and sets name, machine id, environment,
/// token and the key for later calls. The key that it was saved with opens nothing but this call.
namespace worker {

namespace asio = boost::asio;

namespace {

std::unexpected<base::Error> injected() {
  return base::fail(base::Code::internal, "a fault was injected here");
}

/// The verified state as a file of its own, because a VMM reads from a descriptor.
base::Result<os::Fd> state_file(std::string const& state) {
  os::Fd file(::memfd_create("state", MFD_CLOEXEC));
  if (!file) return base::fail_errno("make a file for the machine's state");
  std::string_view left = state;
  while (!left.empty()) {
    auto const done = ::write(file.get(), left.data(), left.size());
    if (done <= 0) return base::fail_errno("write the machine's state");
    left.remove_prefix(static_cast<std::size_t>(done));
  }
  if (::lseek(file.get(), 0, SEEK_SET) != 0) return base::fail_errno("rewind the machine's state");
  return file;
}

constexpr std::chrono::milliseconds command_patience(10'000);

}  // namespace

MachineShape Sandbox::shape() const {
  return {entry_.build, accelerator_, entry_.vcpus, entry_.memory_mib, entry_.disk_mib};
}

async::Task<void> Sandbox::restore_base() {
  entry_.base = base_->key;
  saved_key_ = base_->init_key;
  auto prepared = co_await prepare();
  if (!prepared) co_return prepared;
  auto booted = co_await boot(vmm::MachineStart::restore);
  if (!booted) co_return booted;
  auto const state = state_file(base_->state);
  if (!state) co_return std::unexpected(state.error());
  auto restored = co_await vmm_->restore(*state, base::system_clock().in(host_.restore_patience));
  if (!restored) {
    co_await note_base_failed(true, restored.error().message());
    co_return base::passing(restored, "go on from the base snapshot");
  }
  mark("restored");
  if (SPACE_FAULT("worker.base.restored")) co_return injected();
  co_return base::Result<void>();
}

async::Task<void> Sandbox::start_from_base() {
  auto const pass = co_await host_.boots.enter();
  auto restored = co_await restore_base();
  if (!restored) co_return restored;
  auto networked = co_await wait_for_network();
  if (!networked) co_return networked;
  // Without a question before it: each thing that a guest does for the first time is translated
  // first.
  auto answered = co_await wait_for_agent(claiming());
  if (!answered) {
    co_await note_base_failed(false, answered.error().message());
    co_return answered;
  }
  saved_key_.clear();
  host_.bases.worked(*base_);
  entry_.started_by = "base snapshot";
  co_return base::Result<void>();
}

/// One that cannot be used is named and taken out of the way, so that it is made anew.
asio::awaitable<void> Sandbox::note_base_failed(bool surely, std::string why) {
  base::log::warn("base_snapshot_failed", {{"key", base_->key}, {"what", why}});
  if (!host_.bases.failed(*base_, surely, why)) co_return;
  co_await async::run_blocking(
      [files = host_.base_files, shape = base_->shape, why] { files.set_aside(shape, why); });
}

/// Everything that the failed try made is gone when this returns.
asio::awaitable<void> Sandbox::begin_anew(base::Error why) {
  base::log::warn("start_begins_anew",
                  {{"sandbox", id()}, {"what", why.message()}, {"detail", why.detail()}});
  if (gateway_) co_await gateway_->end();
  co_await persist("end the virtual machine", &Sandbox::end_machine);
  co_await persist("remove the slot", &Sandbox::remove_slot);
  co_await persist("remove the disk", &Sandbox::remove_disk);
  vmm_.reset();
  gateway_.reset();
  // What the end of the machine said is no cause of the sandbox's.
  entry_.cause.clear();
  entry_.detail.clear();
  entry_.console_tail.clear();
  entry_.started_by.clear();
  entry_.base.clear();
  saved_key_.clear();
  entry_.machine.clear();
  entry_.machine_epoch = 0;
  claimed_ = false;
  wait_warm_ = false;
  line_.reset();
  mark("began_anew");
}

wire::AgentInit Sandbox::nobodys_init() const {
  auto init = agent_init();
  init.next_init_key.clear();  // it is nobody's yet
  init.accessToken = "";
  init.envVars = std::map<std::string, std::string>{{"EXERCISE", "1"}};
  return init;
}

Sandbox::Talk Sandbox::exercise() {
  return [this](net::Stream stream, std::function<void()> on_answer) {
    return exercise_agent(std::move(stream),
                          nobodys_init(),
                          base::system_clock().in(host_.exercise_patience),
                          std::move(on_answer));
  };
}

/// As its claim will be, and what is asked of it then: the key stays, the token is thrown away.
async::Task<void> Sandbox::rehearse(net::Stream stream) {
  auto init = nobodys_init();
  init.next_init_key = init.init_key;
  init.accessToken = base::random_hex(32);
  auto line = co_await rehearse_agent(
      std::move(stream), std::move(init), base::system_clock().in(host_.exercise_patience));
  if (!line) co_return std::unexpected(line.error());
  line_ = std::move(*line);
  co_return base::Result<void>();
}

Sandbox::Talk Sandbox::claiming() {
  return [this](net::Stream stream, std::function<void()>) {
    return claim_agent(
        std::move(stream), agent_init(), base::system_clock().in(host_.init_patience));
  };
}

async::Task<void> Sandbox::become_warm() {
  auto const pass = co_await host_.boots.enter();
  auto restored = co_await restore_base();
  if (!restored) co_return restored;
  auto answered = co_await wait_for_agent(
      [this](net::Stream stream, std::function<void()>) { return rehearse(std::move(stream)); });
  if (!answered) {
    co_await note_base_failed(false, answered.error().message());
    co_return answered;
  }
  if (SPACE_FAULT("worker.warm.exercised")) co_return injected();
  host_.bases.worked(*base_);
  auto stopped = co_await vmm_->pause(base::system_clock().in(command_patience));
  if (!stopped) co_return base::passing(stopped, "stop the warm machine");
  // Its gateway waits with it, closed until a sandbox brings a policy.
  if (host_.has_uplink()) co_await start_spare_gateway(host_.hostd, entry_.slot);
  entry_.started_by = "warm machine";
  auto noted = co_await write_journal("warm");
  if (!noted) co_return base::passing(noted, "note the warm machine");
  if (SPACE_FAULT("worker.warm.ready")) co_return injected();
  co_return base::Result<void>();
}

asio::awaitable<void> Sandbox::wait_claimed() {
  while (!claimed_ && !end_asked_)
    co_await changed_.wait();
}

asio::awaitable<void> Sandbox::wait_as_warm() {
  co_await async::race(wait_claimed(), vmm_->wait_gone());
}

void Sandbox::claim(wire::StartSandbox request, base::SteadyTime received) {
  SPACE_ASSERT(state_ == State::warm && !end_asked_, "the caller looked for one that waits");
  entry_.machine = entry_.sandbox;
  entry_.machine_epoch = entry_.epoch;
  name_before_ = entry_.sandbox;
  request_ = std::move(request);
  received_ = received;
  entry_.sandbox = request_.sandbox;
  entry_.epoch = request_.epoch;
  entry_.policy = request_.policy.value_or(wire::EffectivePolicy());
  entry_.credentials = request_.credentials;
  entry_.internal = false;
  entry_.timeline.clear();
  mark("admitted");
  claimed_ = true;
  become(State::starting);
}

/// Journal and disk get the sandbox's name. Whoever finds both entries undoes both: until the
/// sandbox runs, there is nothing to lose.
async::Task<void> Sandbox::take_name() {
  entry_.phase = "starting";
  auto taken = co_await async::blocking([journal = host_.journal,
                                         disks = host_.disks,
                                         entry = entry_,
                                         before = name_before_]() -> base::Result<void> {
    if (auto noted = journal.write(entry); !noted) return noted;
    if (SPACE_FAULT("worker.warm.journaled")) return injected();
    if (auto renamed = disks.rename(before, entry.sandbox); !renamed) return renamed;
    if (SPACE_FAULT("worker.warm.renamed")) return injected();
    return journal.remove(before);
  });
  if (taken) name_before_.clear();
  co_return taken;
}

/// Over the line that was left open; over a new one should the agent have closed that.
async::Task<void> Sandbox::tell_claimed() {
  if (auto const line = std::exchange(line_, nullptr)) {
    std::optional<base::Result<void>> told;
    auto telling =
        claim_agent_over(line, agent_init(), base::system_clock().in(host_.init_patience));
    auto const first =
        co_await async::race(async::detail::store(&told, std::move(telling)), vmm_->wait_gone());
    line->close();
    if (first == async::First::right)
      co_return base::fail(base::Code::internal, "the virtual machine ended while it was starting");
    if (*told) {
      mark("initialised");
      co_return base::Result<void>();
    }
    auto const code = told->error().code();
    if (code != base::Code::unavailable && code != base::Code::deadline_exceeded)
      co_return base::passing(*told, "initialise the guest");
  }
  co_return co_await wait_for_agent(claiming());
}

async::Task<void> Sandbox::start_claimed() {
  auto named = co_await take_name();
  if (!named) co_return base::passing(named, "claim a warm machine");
  mark("claimed");
  begin_network(false);
  auto resumed = co_await vmm_->resume(base::system_clock().in(command_patience));
  if (!resumed) co_return base::passing(resumed, "let the warm machine go on");
  mark("continued");
  auto networked = co_await wait_for_network();
  if (!networked) co_return networked;
  auto answered = co_await tell_claimed();
  if (!answered) co_return answered;
  saved_key_.clear();
  if (SPACE_FAULT("worker.warm.claimed")) co_return injected();
  co_return base::Result<void>();
}

/// Boots and exercises a machine that belongs to nobody, and captures it. It stands still from then
/// on; the worker ends it.
async::Task<void> Sandbox::record() {
  auto prepared = co_await prepare();
  if (!prepared) co_return prepared;
  auto const pass = co_await host_.boots.enter();
  auto booted = co_await boot(vmm::MachineStart::record);
  if (!booted) co_return booted;
  auto answered = co_await wait_for_agent(exercise());
  if (!answered) co_return answered;
  recording_->init_key = entry_.init_key;
  note_proof();
  if (SPACE_FAULT("worker.base.exercised")) co_return injected();
  auto captured =
      co_await vmm_->capture(recording_->state, base::system_clock().in(host_.restore_patience));
  if (!captured) co_return base::passing(captured, "capture the machine");
  auto copied = co_await async::blocking(
      [pool = host_.disks, sandbox = id(), to = recording_->dir + "/disk.img"] {
        return pool.copy_out(sandbox, to);
      });
  if (!copied) co_return base::passing(copied, "keep the captured machine's disk");
  if (SPACE_FAULT("worker.base.captured")) co_return injected();
  co_return base::Result<void>();
}

}  // namespace worker
