#include "base/log.hpp"
#include "vmm/qemu_command.hpp"
#include "worker/worker.hpp"

/// What a worker makes before anybody asks for it: base snapshots, and machines that wait. One at a
/// time, and only while nobody's start is under way.
namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds look_again(5);
constexpr std::chrono::minutes wanted_for(10);  // after the latest create
constexpr std::chrono::seconds demand_window(60);
constexpr std::uint32_t growth_max = 4;
constexpr std::size_t recent_max = 256;
constexpr std::size_t bases_max = 16;  // from which on each template has one
constexpr int quiet_steps = 3;
constexpr int failures_max = 3;
constexpr std::chrono::seconds pause_after_failure(15);
constexpr std::chrono::seconds looking_patience(5);
constexpr std::chrono::seconds yield_patience(10);

asio::awaitable<void> until(std::shared_ptr<Sandbox> sandbox, Sandbox::State past) {
  while (sandbox->state() < past)
    co_await sandbox->wait_changed();
}

wire::StartSandbox nobodys(MachineShape const& shape) {
  wire::StartSandbox out;
  out.sandbox = base::SandboxId::make().str();
  out.epoch = 1;
  out.build = shape.build;
  out.vcpus = shape.vcpus;
  out.memory_mib = shape.memory_mib;
  out.disk_mib = shape.disk_mib;
  return out;
}

}  // namespace

/// Which snapshots a former life has left; they are verified later.
async::Task<void> Worker::find_bases() {
  auto const accelerator = host_.accelerator.decided();
  if (!guest_known_ || !accelerator || host_.base_files.opened()) co_return base::Result<void>();
  auto found = co_await async::blocking(
      [files = host_.base_files,
       guest = guest_under(host_.accelerator.guest(), host_.driver.engine()),
       key = host_.config.data_dir + "/worker/state.key"]() mutable
          -> base::Result<std::pair<BaseFiles, std::vector<MachineShape>>> {
        auto identity = identity_of(guest, vmm::qemu_binary);
        if (!identity) return base::passing(identity);
        if (auto opened = files.open(key, std::move(*identity)); !opened)
          return base::passing(opened);
        auto shapes = files.shapes();
        return std::pair(std::move(files), std::move(shapes));
      });
  if (!found) co_return base::passing(found, "look for base snapshots");
  host_.base_files = std::move(found->first);
  for (auto& shape : found->second) {
    if (shape.accelerator == *accelerator) looking_.insert(std::move(shape));
  }
  co_return base::Result<void>();
}

asio::awaitable<void> Worker::load_bases() {
  for (auto const& shape : std::set(looking_)) {
    auto loaded =
        co_await async::blocking([files = host_.base_files, shape, tsc_khz = host_.tsc_khz] {
          auto one = files.load(shape, tsc_khz);
          if (!one) files.set_aside(shape, one.error().message());
          return one;
        });
    looking_.erase(shape);
    demand_.try_emplace(shape);
    if (loaded) {
      host_.bases.put(std::move(*loaded));
    } else {
      base::log::warn("base_snapshot_refused",
                      {{"build", shape.build}, {"what", loaded.error().message()}});
      host_.bases.refuse(shape, loaded.error().message());
    }
    ahead_changed_.notify_all();
  }
}

/// A create may wait for the proof that its snapshot is whole: that takes less than a boot.
asio::awaitable<void> Worker::wait_looked_at(MachineShape shape) {
  auto const looking = [](Worker* worker, MachineShape wanted) -> asio::awaitable<void> {
    while (worker->looking_.contains(wanted))
      co_await worker->ahead_changed_.wait();
  };
  if (looking_.contains(shape))
    co_await async::run_until(base::system_clock().in(looking_patience), looking(this, shape));
}

asio::awaitable<void> Worker::keep_ready() {
  while (!host_.base_files.opened()) {
    auto const found = co_await find_bases();
    if (!found) co_return;
    if (!host_.base_files.opened()) co_await async::sleep_for(std::chrono::seconds(1));
  }
  co_await load_bases();
  for (;;) {
    co_await forget_unwanted();
    retire_warm();
    auto const next = next_ahead();
    if (!next) {
      co_await async::run_until(base::system_clock().in(look_again), ahead_changed_.wait());
      co_await asio::this_coro::throw_if_cancelled(true);
      continue;
    }
    co_await wait_quiet();
    auto done = base::Result<void>();
    if (next->record) {
      done = co_await record_base(next->shape);
    } else {
      done = co_await make_warm(next->shape);
    }
    auto& demand = demand_[next->shape];
    if (done) {
      demand.failures = 0;
      continue;
    }
    ++demand.failures;
    demand.not_before =
        base::system_clock().steady_now() + pause_after_failure * (1 << demand.failures);
    base::log::warn(next->record ? "base_snapshot_not_made" : "warm_machine_not_made",
                    {{"build", next->shape.build},
                     {"what", done.error().message()},
                     {"detail", done.error().detail()}});
    if (next->record && done.error().code() != base::Code::exhausted)
      host_.bases.refuse(next->shape, "it could not be made: " + done.error().message());
  }
}

asio::awaitable<void> Worker::wait_quiet() {
  for (int quiet = 0; quiet < quiet_steps; ++quiet) {
    bool const busy = std::ranges::any_of(sandboxes_, [](auto const& one) {
      return one.second->state() == Sandbox::State::starting && !one.second->internal();
    });
    if (busy || host_.boots.waiting() > 0) quiet = -1;
    co_await async::sleep_for(host_.quiet_step);
  }
}

/// What `space up` is to have ready: the latest template in the size that a create without wishes
/// has.
std::optional<MachineShape> Worker::home_shape() const {
  auto const accelerator = host_.accelerator.decided();
  auto const build = host_.disks.latest_build();
  wire::StartSandbox const usual;
  if (!accelerator || build.empty() || host_.disks.image_mib(build) > usual.disk_mib)
    return std::nullopt;
  return MachineShape{build, *accelerator, usual.vcpus, usual.memory_mib, usual.disk_mib};
}

/// One per template at once; of other sizes once they were wanted twice, and not of all that
/// anybody can think of: each costs a boot and some hundred MiB.
bool Worker::worth_recording(MachineShape const& shape) const {
  if (shape == home_shape()) return true;
  auto const found = demand_.find(shape);
  if (found == demand_.end() || found->second.creates == 0) return false;
  bool const first = std::ranges::none_of(demand_, [&](auto const& one) {
    return one.first.build == shape.build && host_.bases.find(one.first) != nullptr;
  });
  return first || (found->second.creates >= 2 && host_.bases.shapes().size() < bases_max);
}

/// Follows the creates of the last minute, within bounds.
std::uint32_t Worker::warm_target(MachineShape const& shape) const {
  auto const least = host_.config.warm_target;
  auto const found = demand_.find(shape);
  if (found == demand_.end() || found->second.creates == 0)
    return shape == home_shape() ? least : 0;
  auto const now = base::system_clock().steady_now();
  if (now - found->second.used >= wanted_for) return shape == home_shape() ? least : 0;
  auto const recent = std::ranges::count_if(
      found->second.recent, [&](auto const& at) { return now - at < demand_window; });
  return std::clamp(static_cast<std::uint32_t>(recent), least, least * growth_max);
}

/// Also those that are being made.
std::uint32_t Worker::warm_count(MachineShape const& shape) const {
  return static_cast<std::uint32_t>(std::ranges::count_if(sandboxes_, [&](auto const& one) {
    auto const& sandbox = *one.second;
    return sandbox.internal() && sandbox.base() && sandbox.state() <= Sandbox::State::warm &&
           sandbox.shape() == shape;
  }));
}

/// Would a quarter of everything still be free?
bool Worker::roomy(MachineShape const& shape) const {
  auto const& total = host_.capacity.total();
  auto const& used = host_.capacity.used();
  auto const fits = [](std::uint64_t all, std::uint64_t now, std::uint64_t more) {
    return now + more <= all - all / 4;
  };
  return fits(total.memory_mib,
              used.memory_mib,
              shape.memory_mib + host_.overhead_mib(shape.accelerator)) &&
         fits(total.vcpus, used.vcpus, shape.vcpus) && fits(total.slots, used.slots, 1) &&
         fits(total.disk_mib, used.disk_mib, std::uint64_t{shape.disk_mib} + shape.memory_mib);
}

std::optional<Worker::Next> Worker::next_ahead() const {
  if (draining_) return std::nullopt;
  auto const now = base::system_clock().steady_now();
  auto wanted = std::vector<std::pair<base::SteadyTime, MachineShape>>();
  for (auto const& [shape, demand] : demand_)
    wanted.emplace_back(demand.used, shape);
  std::ranges::sort(wanted, std::greater());
  if (auto home = home_shape()) wanted.emplace_back(base::SteadyTime(), std::move(*home));
  for (auto const& [used, shape] : wanted) {
    auto const found = demand_.find(shape);
    bool const rests = found != demand_.end() &&
                       (found->second.failures >= failures_max || found->second.not_before > now);
    if (rests || !roomy(shape) || host_.disks.image_mib(shape.build) == 0) continue;
    bool const usable = host_.bases.find(shape) != nullptr;
    if (!usable && worth_recording(shape)) return Next{shape, true};
    if (usable && warm_count(shape) < warm_target(shape)) return Next{shape, false};
  }
  return std::nullopt;
}

async::Task<void> Worker::record_base(MachineShape shape) {
  auto memory = host_.capacity.reserve({.disk_mib = shape.memory_mib});
  if (!memory) co_return base::passing(memory, "make a base snapshot");
  auto begun = co_await async::blocking([files = host_.base_files, shape] {
    auto recording = files.begin(shape);
    return recording
               ? base::Result<std::shared_ptr<BaseRecording>>(
                     std::make_shared<BaseRecording>(std::move(*recording)))
               : base::Result<std::shared_ptr<BaseRecording>>(std::unexpected(recording.error()));
  });
  if (!begun) co_return base::passing(begun, "begin a base snapshot");
  auto const recording = *begun;
  Sandbox::New wanted;
  wanted.request = nobodys(shape);
  wanted.received = base::system_clock().steady_now();
  wanted.accelerator = shape.accelerator;
  wanted.internal = true;
  wanted.recording = recording;
  auto admitted = admit(std::move(wanted));
  base::Result<wire::WorkerSandbox> captured = std::unexpected(
      base::Error(base::Code::exhausted, "this host has no room for a base snapshot"));
  if (admitted) {
    captured = co_await outcome_of(*admitted);
    (*admitted)->ask_end("deleted", "");
    co_await until(*admitted, Sandbox::State::ended);
  }
  auto made = co_await async::blocking(
      [files = host_.base_files,
       recording,
       shape,
       ok = captured.has_value(),
       tsc_khz = host_.tsc_khz]() -> base::Result<std::shared_ptr<BaseSnapshot const>> {
        auto kept = ok ? files.keep(*recording, tsc_khz) : base::Result<void>();
        if (!ok || !kept) files.discard(*recording);
        if (!kept) return std::unexpected(kept.error());
        return files.load(shape, tsc_khz);
      });
  if (!captured) co_return base::passing(captured);
  if (!made) co_return base::passing(made, "keep the base snapshot");
  base::log::info("base_snapshot_made", {{"build", shape.build}, {"key", (*made)->key}});
  host_.bases.put(std::move(*made));
  demand_.try_emplace(shape);
  co_return base::Result<void>();
}

async::Task<void> Worker::make_warm(MachineShape shape) {
  Sandbox::New wanted;
  wanted.request = nobodys(shape);
  wanted.received = base::system_clock().steady_now();
  wanted.accelerator = shape.accelerator;
  wanted.internal = true;
  wanted.base = host_.bases.find(shape);
  wanted.warm = true;
  if (!wanted.base) co_return base::Result<void>();  // refused meanwhile
  demand_.try_emplace(shape);
  auto admitted = admit(std::move(wanted));
  if (!admitted) co_return base::passing(admitted, "make a warm machine");
  auto const sandbox = std::move(*admitted);
  co_await until(sandbox, Sandbox::State::warm);
  if (!sandbox->start_error()) co_return base::Result<void>();
  co_await until(sandbox, Sandbox::State::ended);
  co_return std::unexpected(*sandbox->start_error());
}

/// Those of snapshots that are no longer used, and those that nobody has wanted for a while; all
/// on a host that is being drained.
void Worker::retire_warm() {
  std::map<MachineShape, std::uint32_t> kept;
  for (auto const& [id, sandbox] : sandboxes_) {
    if (sandbox->state() != Sandbox::State::warm) continue;
    auto const shape = sandbox->shape();
    bool const good = !draining_ && host_.bases.current(sandbox->base()) &&
                      host_.disks.image_mib(shape.build) > 0 && kept[shape] < warm_target(shape);
    if (good) {
      ++kept[shape];
    } else {
      sandbox->ask_end("deleted", "");
    }
  }
}

/// Snapshots of templates that are gone, and sizes that nobody asks for any more.
asio::awaitable<void> Worker::forget_unwanted() {
  for (auto const& shape : host_.bases.shapes()) {
    if (host_.disks.image_mib(shape.build) > 0) continue;
    base::log::info("base_snapshot_removed",
                    {{"build", shape.build}, {"what", "its template is gone"}});
    host_.bases.forget(shape);
    demand_.erase(shape);
    co_await async::run_blocking([files = host_.base_files, shape] { files.remove(shape); });
  }
  auto const now = base::system_clock().steady_now();
  std::erase_if(demand_, [&](auto const& one) {
    return one.second.creates > 0 && now - one.second.used >= wanted_for &&
           !host_.bases.find(one.first);
  });
}

std::shared_ptr<Sandbox> Worker::find_warm(MachineShape const& shape) const {
  for (auto const& [id, sandbox] : sandboxes_) {
    if (sandbox->claimable() && sandbox->shape() == shape && host_.bases.current(sandbox->base()))
      return sandbox;
  }
  return nullptr;
}

std::shared_ptr<Sandbox> Worker::any_warm() const {
  for (auto const& [id, sandbox] : sandboxes_) {
    if (sandbox->claimable()) return sandbox;
  }
  return nullptr;
}

/// One that waits gives its room to somebody who is there. False when there is none.
asio::awaitable<bool> Worker::give_up_warm() {
  auto const warm = any_warm();
  if (!warm) co_return false;
  warm->ask_end("deleted", "");
  co_await async::run_until(base::system_clock().in(yield_patience),
                            until(warm, Sandbox::State::ended));
  co_return warm->state() == Sandbox::State::ended;
}

Amounts Worker::held_ahead() const {
  Amounts out;
  for (auto const& [id, sandbox] : sandboxes_) {
    if (!sandbox->internal() || !sandbox->base()) continue;
    auto const& held = sandbox->held();
    out.memory_mib += held.memory_mib;
    out.vcpus += held.vcpus;
    out.disk_mib += held.disk_mib;
    out.slots += held.slots;
  }
  return out;
}

void Worker::note_demand(MachineShape const& shape) {
  auto& demand = demand_[shape];
  demand.used = base::system_clock().steady_now();
  ++demand.creates;
  demand.recent.push_back(demand.used);
  if (demand.recent.size() > recent_max) demand.recent.pop_front();
  ahead_changed_.notify_all();
}

}  // namespace worker
