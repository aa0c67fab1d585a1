#include "controller/retention.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"
#include "store/audit_checkpoints.hpp"

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr auto first_pause = 30s;  // a start has better things to do
constexpr auto pause = 5min;
constexpr auto database_time = 30s;
/// A day's notice before a suspended sandbox is deleted.
constexpr std::chrono::seconds expiry_notice = 24h;

void report(std::string_view what, base::Result<std::uint64_t> const& dropped) {
  if (!dropped) {
    base::log::warn("trim_failed", {{"what", what}, {"why", dropped.error().message()}});
  } else if (*dropped > 0) {
    base::log::info("trimmed", {{"what", what}, {"rows", *dropped}});
  }
}

base::Deadline soon() {
  return base::system_clock().in(database_time);
}

}  // namespace

store::asio::awaitable<void> Retention::run() {
  co_await async::sleep_for(first_pause);
  while (true) {
    co_await round();
    co_await async::sleep_for(pause);
  }
}

store::asio::awaitable<void> Retention::run_snapshots() {
  while (true) {
    co_await async::sleep_for(keep_.snapshots_every);
    co_await drop_snapshots();
    report("expiry_told", co_await store_.sandboxes.tell_expiries(expiry_notice, soon()));
  }
}

store::asio::awaitable<void> Retention::drop_snapshots() {
  auto due = co_await store_.snapshots.claim_due(20, soon());
  if (!due) co_return;
  for (auto const& one : *due) {
    if (SPACE_FAULT("controller.snapshot.before_remove")) continue;
    // One that expired while a sandbox was being created from it: that one is looked for only now,
    // when no other can begin.
    auto const starts = co_await store_.snapshots.has_starts(one.public_id, soon());
    if (!starts || *starts) continue;
    auto const removed = co_await links_.at(one.node_address)
                             .remove_snapshot(one.public_id, base::system_clock().in(15s));
    if (!removed) continue;
    auto const gone = co_await store_.snapshots.remove(one.id, soon());
    if (gone) base::log::info("snapshot_dropped", {{"snapshot", one.public_id}});
  }
}

store::asio::awaitable<void> Retention::round() {
  base::Result<std::uint64_t> dropped;
  do {
    dropped = co_await store_.sandboxes.trim_history(keep_.history, soon());
    report("history", dropped);
  } while (dropped && *dropped >= 1000);
  dropped = co_await store_.operations.trim(keep_.operations, soon());
  report("operations", dropped);
  dropped = co_await store_.events.trim(keep_.events, soon());
  report("events", dropped);
  dropped = co_await store_.idempotency.trim(soon());
  report("idempotency", dropped);
  dropped = co_await store_.keys.trim_uses(keep_.key_uses, soon());
  report("key_uses", dropped);
  dropped = co_await store_.metrics.trim(keep_.metrics, soon());
  report("metrics", dropped);
  store::AuditCheckpoints checkpoints(store_.database);
  dropped = co_await checkpoints.trim(soon());
  report("audit_checkpoints", dropped);
  // After the history, whose sandboxes they are of.
  dropped = co_await store_.policies.trim(soon());
  report("policies", dropped);
}

}  // namespace controller
