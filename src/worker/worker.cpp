#include "worker/worker.hpp"

#include "base/log.hpp"
#include "base/metric_names.hpp"

namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds end_patience(60);
constexpr std::chrono::seconds undo_patience(15);
// A proof is a boot on a host that offers KVM: if it worked, it would take a second.
constexpr BootLimits proof_limits{std::chrono::milliseconds(10'000),
                                  std::chrono::milliseconds(10'000),
                                  std::chrono::milliseconds(60'000)};

asio::awaitable<void> until(std::shared_ptr<Sandbox> sandbox, Sandbox::State past) {
  while (sandbox->state() < past)
    co_await sandbox->wait_changed();
}

bool has_nul(std::string_view text) {
  return text.find('\0') != std::string_view::npos;
}

std::string problem_of_env(std::map<std::string, std::string> const& env) {
  std::size_t bytes = 0;
  for (auto const& [name, value] : env) {
    if (name.empty() || name.find('=') != std::string::npos || has_nul(name))
      return "env: a name is empty, or holds '=' or NUL";
    if (has_nul(value)) return fmt::format("env.{}: holds NUL", name);
    bytes += name.size() + value.size() + 2;
  }
  return bytes > 128 * 1024 ? "env: over 128 KiB in all" : "";
}

}  // namespace

std::string problem_of(wire::StartSandbox const& request) {
  if (!base::SandboxId::parse(request.sandbox)) return "sandbox: not a sandbox id";
  if (request.epoch == 0) return "epoch: at least 1";
  if (!is_build_name(request.build)) return "build: not the name of a template build";
  if (request.vcpus < 1 || request.vcpus > 32) return "vcpus: 1 to 32";
  if (request.memory_mib < 128 || request.memory_mib > (1U << 20U))
    return "memory_mib: 128 to 1048576 MiB";
  if (request.disk_mib < 1 || request.disk_mib > (1U << 22U)) return "disk_mib: 1 to 4194304 MiB";
  if (request.access_token.size() > 512 || has_nul(request.access_token))
    return "access_token: at most 512 bytes without NUL";
  if (request.default_user.empty() || request.default_user.size() > 256 ||
      has_nul(request.default_user))
    return "default_user: 1 to 256 bytes without NUL";
  if (request.default_workdir.size() > 4096 || has_nul(request.default_workdir))
    return "default_workdir: at most 4096 bytes without NUL";
  if (!request.from_snapshot.empty() && !is_snapshot_name(request.from_snapshot))
    return "from_snapshot: not the name of a snapshot";
  return problem_of_env(request.env);
}

Worker::Worker(asio::any_io_executor executor, wire::Config config)
    : host_(executor, std::move(config)),
      proving_(executor),
      taking_(executor),
      settling_(executor),
      ahead_changed_(executor),
      tasks_(executor) {
  std::chrono::duration<double> const now = base::system_clock().wall_now().time_since_epoch();
  base::metrics().set(base::metric::worker_started, now.count());
}

std::shared_ptr<Sandbox> Worker::find(std::string const& sandbox) const {
  auto const found = sandboxes_.find(sandbox);
  return found == sandboxes_.end() ? nullptr : found->second;
}

asio::awaitable<void> Worker::run(std::shared_ptr<Sandbox> sandbox) {
  co_await sandbox->live();
  ahead_changed_.notify_all();
  auto const found = sandboxes_.find(sandbox->id());
  if (found == sandboxes_.end() || found->second != sandbox) co_return;
  guard_counts_.forget(sandbox->id());
  sandboxes_.erase(found);
}

async::Task<wire::WorkerSandbox> Worker::start(wire::StartSandbox request) {
  auto const received = base::system_clock().steady_now();
  auto wrong = problem_of(request);
  if (!wrong.empty()) co_return base::fail(base::Code::invalid_argument, std::move(wrong));
  if (draining_) co_return base::fail(base::Code::unavailable, "this host is being drained");
  auto const accelerator = co_await choose_accelerator(request.build);
  if (!accelerator) co_return std::unexpected(accelerator.error());
  MachineShape const shape{
      request.build, *accelerator, request.vcpus, request.memory_mib, request.disk_mib};
  co_await wait_looked_at(shape);
  bool settled = false;  // the pool, so that what was just removed is free
  for (;;) {
    auto room = co_await make_room(request);
    if (!room) co_return std::unexpected(std::move(room.error()));
    if (auto const same = find(request.sandbox)) co_return co_await outcome_of(same);
    // Asked again: the drain may have begun, and listed what is here, while this one waited.
    if (draining_) co_return base::fail(base::Code::unavailable, "this host is being drained");
    auto placed = place(request, *accelerator, received);
    if (placed) co_return co_await outcome_of(std::move(*placed));
    bool const full = placed.error().code() == base::Code::exhausted;
    bool const pool_full =
        full && !host_.disks.has_room(request.disk_mib, host_.pool_headroom_mib).has_value();
    bool freed = false;
    if (pool_full && !settled) {
      settled = freed = true;
      co_await settle_pool();
    } else if (full && !pool_full) {
      // Machines of nobody make room for somebody's; next to none in a pool that others filled.
      freed = co_await give_up_warm();
    }
    if (!freed) co_return std::unexpected(std::move(placed.error()));
  }
}

/// One for all who asked before it began.
asio::awaitable<void> Worker::settle_pool() {
  auto const asked = base::system_clock().steady_now();
  auto const turn = co_await settling_.enter();
  if (settle_began_ > asked) co_return;
  settle_began_ = base::system_clock().steady_now();
  auto const done = co_await async::blocking([pool = host_.disks] { return pool.settle(); });
  if (!done) base::log::warn("pool_not_settled", {{"what", done.error().message()}});
}

/// A waiting machine that fits, or a new one. At once: nobody can come between.
base::Result<std::shared_ptr<Sandbox>> Worker::place(wire::StartSandbox const& request,
                                                     vmm::Accelerator accelerator,
                                                     base::SteadyTime received) {
  MachineShape const shape{
      request.build, accelerator, request.vcpus, request.memory_mib, request.disk_mib};
  // A template that was removed is found missing by a start from nothing.
  bool const ahead =
      !request.cold && request.from_snapshot.empty() && host_.disks.image_mib(request.build) > 0;
  if (auto const warm = ahead ? find_warm(shape) : nullptr) {
    auto room = host_.disks.has_room(request.disk_mib, host_.pool_headroom_mib);
    if (!room) return std::unexpected(std::move(room.error()));
    auto node = sandboxes_.extract(warm->id());
    warm->claim(request, received);
    node.key() = warm->id();
    sandboxes_.insert(std::move(node));
    note_demand(shape);
    return warm;
  }
  Sandbox::New wanted;
  wanted.request = request;
  wanted.received = received;
  wanted.accelerator = accelerator;
  if (ahead) wanted.base = host_.bases.find(shape);
  auto admitted = admit(std::move(wanted));
  if (admitted) note_demand(shape);
  return admitted;
}

/// Succeeds when this life may begin, or is here already (and nothing may be awaited between this
/// and its use).
async::Task<void> Worker::make_room(wire::StartSandbox request) {
  for (;;) {
    auto const here = find(request.sandbox);
    if (!here) break;
    if (here->epoch() == request.epoch) co_return base::Result<void>();
    if (here->epoch() > request.epoch)
      co_return base::fail(base::Code::conflict, "a newer life of this sandbox is here");
    here->ask_end("deleted", "a newer life of this sandbox was asked for");
    auto const ended = co_await async::run_until(base::system_clock().in(end_patience),
                                                 until(here, Sandbox::State::ended));
    if (ended != async::Ended::finished)
      co_return base::fail(base::Code::unavailable,
                           "an older life of this sandbox is still ending");
  }
  auto const* over = host_.ended.find(request.sandbox);
  if (!over || over->epoch < request.epoch) co_return base::Result<void>();
  if (over->epoch > request.epoch)
    co_return base::fail(base::Code::conflict, "a newer life of this sandbox was here");
  if (over->cause == "start_failed")
    co_return base::fail(base::code_named(over->error_code), over->detail);
  co_return base::fail(base::Code::conflict,
                       fmt::format("this life of the sandbox is over: {}", over->cause));
}

base::Result<std::shared_ptr<Sandbox>> Worker::admit(Sandbox::New wanted) {
  auto const& request = wanted.request;
  auto reservation = host_.capacity.reserve(
      {.memory_mib = request.memory_mib + host_.overhead_mib(wanted.accelerator),
       .vcpus = request.vcpus,
       .disk_mib = request.disk_mib,
       .slots = 1});
  if (!reservation) return std::unexpected(std::move(reservation.error()));
  auto room = host_.disks.has_room(request.disk_mib, host_.pool_headroom_mib);
  if (!room) return std::unexpected(std::move(room.error()));
  wanted.reservation = std::move(*reservation);
  auto sandbox = std::make_shared<Sandbox>(host_, std::move(wanted));
  sandboxes_[sandbox->id()] = sandbox;
  tasks_.spawn("sandbox", run(sandbox));
  return sandbox;
}

async::Task<wire::WorkerSandbox> Worker::outcome_of(std::shared_ptr<Sandbox> sandbox) {
  while (sandbox->state() == Sandbox::State::starting)
    co_await sandbox->wait_changed();
  if (sandbox->state() == Sandbox::State::running) co_return sandbox->describe();
  // Nothing of a failed start is left when the caller hears of it, unless the host itself is in
  // trouble.
  auto const ended = co_await async::run_until(base::system_clock().in(undo_patience),
                                               until(sandbox, Sandbox::State::ended));
  if (ended != async::Ended::finished)
    base::log::warn("undo_goes_on", {{"sandbox", sandbox->id()}});
  if (sandbox->start_error()) co_return std::unexpected(*sandbox->start_error());
  co_return base::fail(base::Code::conflict,
                       fmt::format("the sandbox has ended: {}", sandbox->entry().cause));
}

async::Task<wire::EndedSandbox> Worker::end(std::string sandbox,
                                            std::uint64_t epoch,
                                            std::string cause) {
  if (!base::SandboxId::parse(sandbox))
    co_return base::fail(base::Code::invalid_argument, "sandbox: not a sandbox id");
  if (epoch == 0) co_return base::fail(base::Code::invalid_argument, "epoch: at least 1");
  if (auto const here = find(sandbox)) {
    if (here->epoch() > epoch)
      co_return base::fail(base::Code::conflict, "a newer life of this sandbox is here");
    std::string detail = cause == "deleted" ? "" : "the platform was stopped on its host";
    here->ask_end(std::move(cause), std::move(detail));
    auto const ended = co_await async::run_until(base::system_clock().in(end_patience),
                                                 until(here, Sandbox::State::ended));
    if (ended == async::Ended::finished) co_return to_wire(here->entry());
    co_return base::fail(base::Code::unavailable,
                         "the sandbox is being ended, but its host is slow; ask again");
  }
  if (auto const* over = host_.ended.find(sandbox); over && over->epoch >= epoch)
    co_return to_wire(*over);
  // Never here, and from now on it may not come: a start that was overtaken by this call is
  // refused.
  auto const now = base::system_clock().wall_now();
  JournalEntry entry;
  entry.phase = "ended";
  entry.sandbox = std::move(sandbox);
  entry.epoch = epoch;
  entry.cause = "deleted";
  entry.detail = "it was not here";
  entry.ended_at = base::to_rfc3339(now);
  entry.ended_unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  host_.ended.add(entry);
  auto const noted =
      co_await async::blocking([journal = host_.journal, entry] { return journal.write(entry); });
  if (!noted)
    base::log::error("journal_not_written",
                     {{"sandbox", entry.sandbox}, {"what", noted.error().message()}});
  co_return to_wire(entry);
}

async::Task<vmm::Accelerator> Worker::choose_accelerator(std::string build) {
  if (!guest_known_) {
    // The guest's parts may have been installed since.
    guest_known_ = host_.accelerator.open(host_.config.accelerator,
                                          (host_.hostd_features & hostd::kvm_device) != 0);
    if (guest_known_) host_.engine.open(host_.accelerator.guest());
    host_.driver.use(host_.engine.engine());
    if (!guest_known_)
      co_return base::fail(base::Code::unavailable,
                           "this host has no guest kernel yet",
                           guest_known_.error().detail());
  }
  auto const decided = host_.accelerator.decided();
  if (decided && !engine_is_open()) co_return *decided;
  auto proven = co_await prove_kvm(std::move(build));
  if (!proven) co_return std::unexpected(std::move(proven.error()));
  co_return *host_.accelerator.decided();
}

bool Worker::engine_is_open() const {
  bool const found = (host_.hostd_features & hostd::firecracker_found) != 0;
  return host_.engine.to_be_tried(found, host_.accelerator.decided());
}

async::Task<void> Worker::boot_to_prove(std::string build, bool* tried) {
  Sandbox::New wanted;
  wanted.request.sandbox = base::SandboxId::make().str();
  wanted.request.epoch = 1;
  wanted.request.disk_mib = host_.disks.image_mib(build);
  wanted.request.build = std::move(build);
  wanted.accelerator = vmm::Accelerator::kvm;
  wanted.limits = proof_limits;
  wanted.internal = true;
  wanted.received = base::system_clock().steady_now();
  auto admitted = admit(std::move(wanted));
  if (!admitted) co_return std::unexpected(std::move(admitted.error()));
  auto const sandbox = std::move(*admitted);
  auto outcome = co_await outcome_of(sandbox);
  sandbox->ask_end("deleted", "");
  co_await until(sandbox, Sandbox::State::ended);
  *tried = std::ranges::any_of(sandbox->entry().timeline,
                               [](auto const& step) { return step.step == "slot_taken"; });
  if (outcome) co_return base::Result<void>();
  co_return std::unexpected(std::move(outcome.error()));
}

/// Succeeds when it is decided, either way. The first boot that works is the proof of KVM as well.
async::Task<void> Worker::prove_firecracker(std::string build) {
  bool tried = false;
  host_.driver.use(vmm::Engine::firecracker);
  auto outcome = co_await boot_to_prove(std::move(build), &tried);
  host_.driver.use(outcome ? vmm::Engine::firecracker : vmm::Engine::qemu);
  if (!outcome && !tried) co_return base::passing(outcome, "prove Firecracker by a boot");
  if (outcome) co_return host_.engine.record(true, "Firecracker, under which a guest has booted");
  auto const why = outcome.error().message();
  base::log::warn("firecracker_not_usable", {{"what", why}, {"detail", outcome.error().detail()}});
  co_return host_.engine.record(
      false, "Firecracker is on this host, but a guest did not boot under it (" + why + ")");
}

/// Succeeds when it is decided, either way.
async::Task<void> Worker::prove_kvm(std::string build) {
  auto const turn = co_await proving_.enter();
  if (engine_is_open()) {
    auto const proven = co_await prove_firecracker(build);
    // There is QEMU; tried again by the next that asks.
    if (!proven) base::log::warn("firecracker_not_tried", {{"what", proven.error().message()}});
  }
  if (host_.accelerator.decided()) co_return base::Result<void>();
  bool tried = false;
  auto outcome = co_await boot_to_prove(std::move(build), &tried);
  if (outcome) co_return base::Result<void>();  // Sandbox::start recorded it
  if (!tried || outcome.error().code() == base::Code::unavailable)
    co_return base::passing(outcome, "prove KVM by a boot");
  auto const why = outcome.error().message();
  base::log::warn("kvm_not_usable", {{"what", why}});
  co_return host_.accelerator.record(
      vmm::Accelerator::tcg,
      "software emulation: this host offers KVM, but a guest did not boot under it (" + why + ")");
}

/// As soon as there is a template to boot, so that the first sandbox need not wait for the proof.
asio::awaitable<void> Worker::prove_ahead() {
  while (!host_.accelerator.decided() || engine_is_open()) {
    auto pause = std::chrono::milliseconds(1'000);
    auto const builds = host_.disks.builds();
    if (!builds.empty()) {
      auto const proven = co_await prove_kvm(builds.back());
      if (proven) co_return;
      base::log::warn("accelerator_not_proven",
                      {{"what", proven.error().message()}, {"detail", proven.error().detail()}});
      pause = std::chrono::milliseconds(30'000);
    }
    co_await async::sleep_for(pause);
  }
}

}  // namespace worker
