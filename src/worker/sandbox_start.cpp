#include "base/fault.hpp"
#include "base/log.hpp"
#include "base/metric_names.hpp"
#include "worker/agent_client.hpp"
#include "worker/sandbox.hpp"

/// From admission to `running`. Each step leaves nothing that end() does not take away.
namespace worker {

namespace asio = boost::asio;

namespace {

std::unexpected<base::Error> injected() {
  return base::fail(base::Code::internal, "a fault was injected here");
}

/// Is a boot getting anywhere? A pure rule over the VMM's processor time.
class Progress {
 public:
  Progress(BootLimits limits, base::SteadyTime now) : limits_(limits), began_(now), moved_(now) {}

  base::Result<void> look(base::SteadyTime now, std::chrono::milliseconds cpu) {
    if (cpu != cpu_) {
      cpu_ = cpu;
      moved_ = now;
    }
    auto const seconds = [](auto span) {
      return std::chrono::duration_cast<std::chrono::seconds>(span).count();
    };
    if (cpu > limits_.cpu)
      return late(
          fmt::format("used {} s of processor time without its agent answering", seconds(cpu)));
    if (now - moved_ > limits_.stall)
      return late(fmt::format("stood still for {} s", seconds(now - moved_)));
    if (now - began_ > limits_.all)
      return late(fmt::format("did not answer within {} s", seconds(now - began_)));
    return {};
  }

  /// How long to wait for one connection: short at first, because what a guest without network was
  /// sent is lost and repeated by the kernel only after a second; never much in relation to what
  /// the boot takes anyhow.
  std::chrono::milliseconds patience(base::SteadyTime now) const {
    auto const tenth = std::chrono::duration_cast<std::chrono::milliseconds>(now - began_) / 10;
    return std::clamp(tenth, std::chrono::milliseconds(60), std::chrono::milliseconds(1'000));
  }

 private:
  static std::unexpected<base::Error> late(std::string what) {
    return base::fail(base::Code::deadline_exceeded, "the guest " + what);
  }

  BootLimits limits_;
  base::SteadyTime began_;
  base::SteadyTime moved_;
  std::chrono::milliseconds cpu_{0};
};

}  // namespace

asio::awaitable<void> Sandbox::start() {
  auto const first = co_await async::race(start_steps_noting(), wait_end_asked());
  if (first == async::First::right)
    start_error_ = base::Error(base::Code::conflict, "the sandbox was ended while it was starting");
  if (!start_error_) {
    bool const warm = wait_warm_ && !claimed_;
    base::log::info(warm ? "machine_warm" : "sandbox_running",
                    {{"sandbox", id()},
                     {"epoch", epoch()},
                     {"ms", entry_.timeline.back().at_ms},
                     {"by", describe().started_by}});
    if (warm) co_return become(State::warm);
    if (!internal())
      base::metrics().observe(base::metric::start_seconds,
                              entry_.timeline.back().at_ms / 1000,
                              {describe().started_by});
    request_ = wire::StartSandbox();  // the guest knows its token and environment; we need not
    co_return become(State::running);
  }
  base::log::warn(
      "sandbox_start_failed",
      {{"sandbox", id()}, {"what", start_error_->message()}, {"detail", start_error_->detail()}});
  if (!internal())
    base::metrics().count(base::metric::start_failures, {base::name_of(start_error_->code())});
  blame("start_failed", start_error_->message());
  entry_.error_code = base::name_of(start_error_->code());
}

/// The first boot that worked is the proof that boots work here.
void Sandbox::note_proof() {
  auto& choice = host_.accelerator;
  if (choice.proven() || (choice.decided() && *choice.decided() != accelerator_)) return;
  auto const booted = entry_.timeline.back().at_ms - started_at("slot_taken");
  auto const noted =
      choice.record(accelerator_,
                    fmt::format("{}; a guest booted to its agent's first answer in {:.1f} s",
                                accelerator_ == vmm::Accelerator::kvm ? "KVM" : choice.sentence(),
                                booted / 1000));
  if (!noted) base::log::warn("proof_not_kept", {{"what", noted.error().message()}});
}

double Sandbox::started_at(std::string_view step) const {
  auto const found = std::ranges::find(entry_.timeline, step, &wire::TimelineStep::step);
  return found == entry_.timeline.end() ? 0 : found->at_ms;
}

asio::awaitable<void> Sandbox::start_steps_noting() {
  auto done = co_await start_steps();
  if (!done) start_error_ = std::move(done.error());
}

async::Task<void> Sandbox::start_steps() {
  if (SPACE_FAULT("worker.start.admitted")) co_return injected();
  if (recording_) co_return co_await record();
  if (wait_warm_ && !claimed_) co_return co_await become_warm();
  base::Result<void> started;
  if (request_.from_snapshot.empty()) {
    started = co_await start_quickest();
  } else {
    started = co_await start_from_snapshot();
  }
  if (!started) co_return started;
  auto noted = co_await write_journal("running");
  if (!noted) co_return base::passing(noted, "note the start");
  if (SPACE_FAULT("worker.start.initialised")) co_return injected();
  co_return base::Result<void>();
}

/// The quickest way that there is for it, and when that fails the next: at last a boot from
/// nothing.
async::Task<void> Sandbox::start_quickest() {
  auto const final = [](base::Error const& error) {
    return error.code() == base::Code::invalid_argument || error.code() == base::Code::not_found ||
           error.code() == base::Code::exhausted;
  };
  if (claimed_) {
    auto claimed = co_await start_claimed();
    if (claimed || final(claimed.error())) co_return claimed;
    co_await begin_anew(std::move(claimed.error()));
  }
  if (base_ && host_.bases.current(base_)) {
    auto restored = co_await start_from_base();
    if (restored || final(restored.error())) co_return restored;
    co_await begin_anew(std::move(restored.error()));
  }
  base_.reset();
  co_return co_await start_cold();
}

async::Task<void> Sandbox::start_cold() {
  auto prepared = co_await prepare();
  if (!prepared) co_return prepared;
  // In order, few at a time; the place is kept until the agent has answered.
  auto const pass = co_await host_.boots.enter();
  auto booted = co_await boot(vmm::MachineStart::boot);
  if (!booted) co_return booted;
  auto networked = co_await wait_for_network();
  if (!networked) co_return networked;
  auto answered = co_await wait_for_agent(initialise());
  if (!answered) co_return answered;
  note_proof();
  co_return base::Result<void>();
}

async::Task<void> Sandbox::prepare() {
  auto const number = co_await host_.slots.take();
  if (!number) co_return std::unexpected(number.error());
  entry_.slot = *number;
  slot_is_ours_ = true;
  auto noted = co_await write_journal("starting");
  if (!noted) co_return base::passing(noted, "note the start");
  if (SPACE_FAULT("worker.start.journaled")) co_return injected();
  auto disk = co_await make_disk();
  if (!disk) co_return base::passing(disk, "make the disk");
  disk_ = std::move(*disk);
  mark("disk_cloned");
  if (SPACE_FAULT("worker.start.disk_cloned")) co_return injected();
  auto made = co_await host_.slots.make(slot());
  if (!made) co_return base::passing(made, "make the slot");
  mark("slot_taken");
  begin_network(false);
  if (SPACE_FAULT("worker.start.slot_taken")) co_return injected();
  co_return base::Result<void>();
}

async::Task<os::Fd> Sandbox::make_disk() {
  // Shared: the clone may come back after we were cancelled, and must be closed then.
  auto disk = std::make_shared<base::Result<os::Fd>>();
  co_await async::run_blocking([disk,
                                pool = host_.disks,
                                base = base_,
                                build = entry_.build,
                                sandbox = id(),
                                disk_mib = entry_.disk_mib] {
    if (!base) {
      *disk = pool.clone(build, sandbox, disk_mib);
      return;
    }
    auto const same = base->check_unchanged();
    *disk = same ? pool.clone_image(base->disk, sandbox, disk_mib)
                 : base::Result<os::Fd>(std::unexpected(same.error()));
    if (!*disk) return;
    auto const linked = pool.keep_base(base->memory, sandbox);
    if (!linked) *disk = std::unexpected(linked.error());
  });
  co_return std::move(*disk);
}

async::Task<void> Sandbox::boot(vmm::MachineStart how) {
  vmm::BootSpec spec;
  spec.slot = slot();
  spec.sandbox = id();
  spec.epoch = epoch();
  spec.accelerator = accelerator_;
  spec.vcpus = entry_.vcpus;
  spec.memory_mib = entry_.memory_mib;
  spec.tsc_khz = base_ ? base_->tsc_khz : host_.tsc_khz;
  spec.disk = std::move(disk_);
  spec.start = how;
  if (how != vmm::MachineStart::boot) {
    auto memory = (base_ ? base_->memory : recording_->memory).duplicate();
    if (!memory) co_return base::passing(memory, "open the machine's memory");
    spec.memory = std::move(*memory);
  }
  auto vmm = co_await host_.driver.boot(std::move(spec));
  if (!vmm) co_return std::unexpected(std::move(vmm.error()));
  vmm_ = std::move(*vmm);
  mark("vmm_started");
  if (SPACE_FAULT("worker.start.vmm_started")) co_return injected();
  co_return base::Result<void>();
}

async::Task<void> Sandbox::wait_for_agent(Talk talk) {
  std::optional<base::Result<void>> reached;
  auto const first =
      co_await async::race(async::detail::store(&reached, reach_agent(talk)), vmm_->wait_gone());
  if (first == async::First::right)
    co_return base::fail(base::Code::internal, "the virtual machine ended while it was starting");
  co_return std::move(*reached);
}

Sandbox::Talk Sandbox::initialise() {
  return [this](net::Stream stream, std::function<void()> on_answer) {
    return initialise_agent(std::move(stream),
                            agent_init(),
                            base::system_clock().in(host_.init_patience),
                            std::move(on_answer));
  };
}

async::Task<void> Sandbox::reach_agent(Talk talk) {
  auto const& clock = base::system_clock();
  Progress progress(limits_, clock.steady_now());
  // A guest that has been up loses nothing that it is sent: giving up on a connection that it is
  // still about to take would only make it do the work twice.
  bool const was_up = base_ || !saved_key_.empty() || state_ == State::restoring;
  constexpr std::chrono::milliseconds long_patience(2'000);
  bool answered = false;
  for (;;) {
    auto const patience = was_up ? long_patience : progress.patience(clock.steady_now());
    auto reached = co_await host_.dialer.dial(slot(), wire::agent_port, patience);
    if (reached.stream) {
      auto on_answer = [this, &answered] {
        if (!answered) mark("agent_answered");
        answered = true;
      };
      auto done = co_await talk(std::move(reached.stream), on_answer);
      if (answered && SPACE_FAULT("worker.start.agent_answered")) co_return injected();
      if (done) {
        mark("initialised");
        co_return done;
      }
      // A wrong answer stays wrong; a cut or silence may be an agent that is not ready.
      auto const code = done.error().code();
      if (code != base::Code::unavailable && code != base::Code::deadline_exceeded)
        co_return base::passing(done, "initialise the guest");
    }
    auto going = progress.look(clock.steady_now(), cpu_time_of(vmm_->pid()));
    if (!going) co_return base::passing(going, "wait for the agent");
    if (reached.reached != Reached::slow) co_await async::sleep_for(std::chrono::milliseconds(10));
  }
}

wire::AgentInit Sandbox::agent_init() const {
  wire::AgentInit init;
  init.init_key = saved_key_.empty() ? entry_.init_key : saved_key_;
  if (!saved_key_.empty()) init.next_init_key = entry_.init_key;
  init.nonce = base::random_hex(16);
  init.entropy = base::random_hex(64);
  init.timestamp = base::to_rfc3339(base::system_clock().wall_now());
  init.hostname = id();
  init.machine_id = base::random_hex(16);
  init.accessToken = request_.access_token;
  init.envVars = request_.env;
  init.defaultUser = request_.default_user;
  init.defaultWorkdir = request_.default_workdir;
  if (gateway_) init.caBundle = gateway_->authority_pem();
  return init;
}

}  // namespace worker
