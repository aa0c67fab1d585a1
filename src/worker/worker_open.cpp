#include "base/log.hpp"
#include "vmm/tsc.hpp"
#include "worker/worker.hpp"

#include <sys/stat.h>

#include <cerrno>

#include <unistd.h>

/// How a worker comes up: everything of its former life is found again before it answers anybody.
namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds first_pause(100);
constexpr std::chrono::milliseconds longest_pause(5'000);

struct Files {
  base::Result<CloneMethod> method;
  base::Result<PoolSpace> space;
  base::Result<std::uint64_t> tsc_khz;
  base::Result<void> saved;
  std::optional<StateStore> suspended;
  std::optional<StateStore> snapshots;
};

}  // namespace

async::Task<void> Worker::open() {
  auto opened = co_await open_files();
  if (!opened) co_return opened;
  auto loaded = co_await async::blocking([journal = host_.journal] { return journal.load(); });
  if (!loaded) co_return base::passing(loaded, "read the journal");
  for (auto const& name : loaded->broken)
    base::log::error("journal_broken", {{"file", name}});
  co_await wait_for_hostd();
  guest_known_ = host_.accelerator.open(host_.config.accelerator,
                                        (host_.hostd_features & hostd::kvm_device) != 0);
  if (guest_known_) host_.engine.open(host_.accelerator.guest());
  host_.driver.use(host_.engine.engine());
  if (!guest_known_)
    base::log::warn(
        "no_guest_yet",
        {{"what", guest_known_.error().message()}, {"detail", guest_known_.error().detail()}});
  auto const slots = co_await inspect_slots();
  std::vector<bool> claimed(slots.size(), false);
  // Ends in the order in which they were: the oldest are forgotten first.
  // Warm machines last: when one was being claimed, its slot is the sandbox's.
  std::ranges::sort(loaded->entries, {}, [](JournalEntry const& entry) {
    return std::pair(entry.phase == "warm", entry.ended_unix_ms);
  });
  for (auto& entry : loaded->entries)
    adopt(std::move(entry), slots, claimed);
  for (std::uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (claimed[slot] || slots[slot].state == hostd::SlotState::absent) continue;
    host_.slots.claim(slot);
    tasks_.spawn("remove an orphan", remove_orphan(slot));
  }
  co_await adopt_saved();
  co_await remove_stray_disks();
  host_.slots.start(host_.has_uplink());
  tasks_.spawn("maintain", maintain());
  tasks_.spawn("watch the rules", watch_rules());
  if (host_.config.base_snapshots) {
    auto bases = co_await find_bases();
    // Machines boot cold then.
    if (!bases)
      base::log::error("no_base_snapshots",
                       {{"what", bases.error().message()}, {"detail", bases.error().detail()}});
    tasks_.spawn("keep machines ready", keep_ready());
  }
  if (guest_known_ && (!host_.accelerator.decided() || engine_is_open()))
    tasks_.spawn("prove the accelerator", prove_ahead());
  base::log::info(
      "worker_open",
      {{"sandboxes", sandboxes_.size()}, {"accelerator", host_.accelerator.sentence()}});
  co_return base::Result<void>();
}

async::Task<void> Worker::open_files() {
  auto const dir = host_.config.data_dir + "/worker";
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    co_return base::fail_errno("make the worker's directory", dir);
  auto audit = co_await host_.audit.open(host_.config.node_name, dir + "/audit.key");
  if (!audit) co_return audit;
  tasks_.spawn("audit", host_.audit.run());
  auto reflections = co_await host_.reflections.open();
  if (!reflections) co_return reflections;
  auto journal = host_.journal.open();
  if (!journal) co_return journal;
  draining_ = ::access(drain_file().c_str(), F_OK) == 0;
  auto files = co_await async::blocking(
      [pool = host_.disks, suspended = host_.suspended, snapshots = host_.snapshots]() mutable {
        Files found;
        found.method = pool.open();
        found.saved = suspended.open();
        if (found.saved) found.saved = snapshots.open();
        found.suspended = std::move(suspended);
        found.snapshots = std::move(snapshots);
        found.space = pool.space();
        found.tsc_khz = vmm::measure_tsc_khz();
        return std::pair(pool, std::move(found));
      });
  auto& [pool, found] = files;
  if (!found.method) co_return base::passing(found.method, "open the pool");
  if (!found.space) co_return base::passing(found.space, "open the pool");
  if (!found.saved) co_return base::passing(found.saved, "open the saved machines");
  host_.disks = pool;
  host_.suspended = std::move(*found.suspended);
  host_.snapshots = std::move(*found.snapshots);
  host_.clone_method = *found.method;
  host_.capacity.set_disk_total(found.space->total_mib);
  host_.tsc_khz = found.tsc_khz.value_or(0);
  if (!found.tsc_khz) base::log::warn("no_tsc_rate", {{"what", found.tsc_khz.error().message()}});
  if (host_.clone_method == CloneMethod::copy)
    base::log::warn("pool_without_reflink", {{"pool", host_.config.pool()}});
  co_return base::Result<void>();
}

asio::awaitable<void> Worker::wait_for_hostd() {
  for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
    auto const hello = co_await async::blocking([client = host_.hostd] { return client.hello(); });
    if (hello) {
      host_.hostd_features = hello->features;
      co_return;
    }
    base::log::warn("hostd_awaited",
                    {{"what", hello.error().message()}, {"detail", hello.error().detail()}});
    co_await async::sleep_for(pause);
  }
}

asio::awaitable<std::vector<hostd::Inspected>> Worker::inspect_slots() {
  using Slots = std::vector<hostd::Inspected>;
  for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
    auto slots = co_await async::blocking(
        [client = host_.hostd, count = host_.slots.total()]() -> base::Result<Slots> {
          Slots found;
          for (std::uint32_t slot = 0; slot < count; ++slot) {
            auto one = client.inspect_slot(slot);
            if (!one) return std::unexpected(std::move(one.error()));
            found.push_back(std::move(*one));
          }
          return found;
        });
    if (slots) co_return std::move(*slots);
    base::log::warn("slots_not_seen",
                    {{"what", slots.error().message()}, {"detail", slots.error().detail()}});
    co_await async::sleep_for(pause);
  }
}

void Worker::adopt(JournalEntry entry,
                   std::vector<hostd::Inspected> const& slots,
                   std::vector<bool>& claimed) {
  if (entry.phase == "ended") {
    if (!entry.internal) host_.ended.add(std::move(entry));
    return;
  }
  auto found = Sandbox::Found::nothing;
  if (entry.slot < slots.size() && !claimed[entry.slot]) {
    auto const& slot = slots[entry.slot];
    auto const& machine = entry.machine.empty() ? entry.sandbox : entry.machine;
    auto const epoch = entry.machine.empty() ? entry.epoch : entry.machine_epoch;
    bool const same = slot.sandbox == machine && slot.epoch == epoch;
    if (same && slot.state == hostd::SlotState::running) found = Sandbox::Found::running;
    if (same && slot.state == hostd::SlotState::exited) found = Sandbox::Found::exited;
  }
  if (found != Sandbox::Found::nothing) {
    claimed[entry.slot] = true;
    host_.slots.claim(entry.slot);
  }
  base::log::info("sandbox_found",
                  {{"sandbox", entry.sandbox},
                   {"epoch", entry.epoch},
                   {"phase", entry.phase},
                   {"machine",
                    found == Sandbox::Found::running  ? "runs"
                    : found == Sandbox::Found::exited ? "exited"
                                                      : "none"}});
  adopt_entry(std::move(entry), found);
}

void Worker::adopt_entry(JournalEntry entry, Sandbox::Found found) {
  Amounts held{.memory_mib = entry.reserved_memory_mib,
               .vcpus = entry.vcpus,
               .disk_mib = entry.disk_mib,
               .slots = 1};
  bool const at_rest = entry.phase == "suspended" && found == Sandbox::Found::nothing;
  if (at_rest)
    held = {.disk_mib = entry.disk_mib + (entry.suspended_bytes + (1U << 20U) - 1) / (1U << 20U)};
  auto reservation = host_.capacity.adopt(held);
  auto sandbox = std::make_shared<Sandbox>(host_, std::move(entry), std::move(reservation), found);
  sandboxes_[sandbox->id()] = sandbox;
  guard_counts_.found(sandbox->id());
  tasks_.spawn("sandbox", run(sandbox));
}

asio::awaitable<void> Worker::remove_orphan(std::uint32_t slot) {
  for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
    auto const removed = co_await host_.slots.dispose(slot);
    if (removed) {
      base::log::info("orphan_removed", {{"slot", slot}});
      co_return;
    }
    base::log::warn("orphan_stays",
                    {{"slot", slot},
                     {"what", removed.error().message()},
                     {"detail", removed.error().detail()}});
    co_await async::sleep_for(pause);
  }
}

asio::awaitable<void> Worker::remove_stray_disks() {
  for (auto const& name : host_.disks.sandboxes()) {
    if (find(name)) continue;
    auto const removed =
        co_await async::blocking([pool = host_.disks, name] { return pool.remove(name); });
    base::log::warn("stray_disk", {{"sandbox", name}, {"removed", removed.has_value()}});
  }
}

asio::awaitable<void> Worker::maintain() {
  for (;;) {
    co_await async::sleep_for(std::chrono::milliseconds(30'000));
    for (auto const& entry : host_.ended.expire(base::system_clock().wall_now())) {
      // A newer life may have taken the file over meanwhile.
      if (find(entry.sandbox)) continue;
      auto const removed = co_await async::blocking(
          [journal = host_.journal, entry] { return journal.remove(entry.sandbox); });
      if (!removed)
        base::log::warn("journal_entry_stays",
                        {{"sandbox", entry.sandbox}, {"what", removed.error().message()}});
    }
    auto const space = co_await async::blocking([pool = host_.disks] { return pool.space(); });
    if (space) host_.capacity.set_disk_total(space->total_mib);
  }
}

asio::awaitable<void> Worker::close() {
  tasks_.cancel();
  co_await tasks_.join();
  co_await host_.slots.close();
  for (auto const& [id, sandbox] : sandboxes_)
    co_await sandbox->close();
  co_await host_.audit.close();
  auto const kept = co_await host_.reflections.keep();
  if (!kept) base::log::error("reflection_not_kept", {{"what", kept.error().message()}});
}

}  // namespace worker
