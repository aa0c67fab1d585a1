#include "base/log.hpp"
#include "worker/metrics.hpp"
#include "worker/worker.hpp"

#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

/// What a worker does to sandboxes that are here: pause to restore, snapshots, drain.
namespace worker {

namespace asio = boost::asio;

namespace {

std::unexpected<base::Error> not_here() {
  return base::fail(base::Code::not_found, "this sandbox is not on this worker");
}

std::unexpected<base::Error> other_life() {
  return base::fail(base::Code::conflict, "this is another life of the sandbox");
}

std::string_view name_of(Sandbox::Change::What what) {
  using What = Sandbox::Change::What;
  switch (what) {
    case What::pause:
      return "pause";
    case What::resume:
      return "resume";
    case What::suspend:
      return "suspend";
    case What::restore:
      return "restore";
    case What::snapshot:
      break;
  }
  return "snapshot";
}

async::Task<void> change_counted(std::shared_ptr<Sandbox> sandbox,
                                 std::shared_ptr<Sandbox::Change> wanted) {
  auto const what = name_of(wanted->what);
  Stopwatch const watch;
  auto done = co_await sandbox->change(std::move(wanted));
  if (done) {
    base::metrics().observe(base::metric::change_seconds, watch.seconds(), {what});
  } else {
    base::metrics().count(base::metric::change_failures,
                          {what, base::name_of(done.error().code())});
  }
  co_return done;
}

}  // namespace

async::Task<wire::WorkerSandbox> Worker::change(std::string sandbox,
                                                std::uint64_t epoch,
                                                Sandbox::Change::What what) {
  auto const here = find(sandbox);
  if (!here || here->internal()) co_return not_here();
  if (here->epoch() != epoch) co_return other_life();
  auto const wanted = std::make_shared<Sandbox::Change>();
  wanted->what = what;
  auto done = co_await change_counted(here, wanted);
  if (!done) co_return std::unexpected(std::move(done.error()));
  co_return here->describe();
}

async::Task<wire::WorkerSandbox> Worker::restore(std::string sandbox, wire::StartSandbox request) {
  auto wrong = problem_of(request);
  if (wrong.empty() && request.sandbox != sandbox) wrong = "sandbox: not the one of the path";
  if (!wrong.empty()) co_return base::fail(base::Code::invalid_argument, std::move(wrong));
  auto const here = find(sandbox);
  if (!here || here->internal())
    co_return base::fail(base::Code::conflict, "this sandbox is not suspended on this worker");
  if (here->epoch() > request.epoch) co_return other_life();
  if (draining_) co_return base::fail(base::Code::unavailable, "this host is being drained");
  for (;;) {
    auto const wanted = std::make_shared<Sandbox::Change>();
    wanted->what = Sandbox::Change::What::restore;
    wanted->request = request;
    auto done = co_await change_counted(here, wanted);
    if (done) co_return here->describe();
    // Machines of nobody make room for somebody's.
    bool const full = done.error().code() == base::Code::exhausted;
    bool const freed = full && co_await give_up_warm();
    if (!freed) co_return std::unexpected(std::move(done.error()));
  }
}

async::Task<wire::SnapshotReport> Worker::snapshot(std::string sandbox,
                                                   wire::TakeSnapshot request) {
  if (!is_snapshot_name(request.snapshot))
    co_return base::fail(
        base::Code::invalid_argument,
        "snapshot: 1 to 64 letters, digits, '-' and '_', and not base-… or aside-…");
  auto const here = find(sandbox);
  if (!here || here->internal()) co_return not_here();
  if (here->epoch() != request.epoch) co_return other_life();
  auto const turn = co_await taking_.enter();
  auto const taken = co_await async::blocking(
      [store = host_.snapshots, name = request.snapshot] { return store.look(name); });
  if (taken && taken->entry.sandbox == sandbox && taken->entry.epoch == request.epoch)
    co_return report_of(*taken);  // a repeat
  if (taken || taken.error().code() != base::Code::not_found)
    co_return base::fail(base::Code::conflict, "there is a snapshot of this name");
  auto const wanted = std::make_shared<Sandbox::Change>();
  wanted->what = Sandbox::Change::What::snapshot;
  wanted->snapshot = std::move(request.snapshot);
  auto done = co_await change_counted(here, wanted);
  if (!done) co_return std::unexpected(std::move(done.error()));
  co_return wanted->report;
}

async::Task<void> Worker::remove_snapshot(std::string name) {
  if (!is_snapshot_name(name))
    co_return base::fail(base::Code::invalid_argument, "snapshot: not the name of one");
  auto const turn = co_await taking_.enter();
  co_return co_await async::blocking(
      [store = host_.snapshots, name] { return store.remove(name); });
}

async::Task<std::vector<wire::SnapshotReport>> Worker::snapshots() const {
  co_return co_await async::blocking(
      [store = host_.snapshots]() -> base::Result<std::vector<wire::SnapshotReport>> {
        std::vector<wire::SnapshotReport> found;
        for (auto const& name : store.names()) {
          auto const saved = store.look(name);
          if (saved) found.push_back(report_of(*saved));
        }
        return found;
      });
}

/// Kept in a file: a drained host that was restarted is drained.
async::Task<void> Worker::set_drain(bool on) {
  auto done = co_await async::blocking([path = drain_file(), on]() -> base::Result<void> {
    if (on) {
      os::Fd const file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
      if (!file) return base::fail_errno("note that this host is drained", path);
    } else if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return base::fail_errno("note that this host is not drained", path);
    }
    return {};
  });
  if (done) draining_ = on;
  ahead_changed_.notify_all();
  co_return done;
}

std::string Worker::drain_file() const {
  return host_.config.data_dir + "/worker/draining";
}

/// Suspended sandboxes that the journal does not know: it was damaged, or lost with the host's
/// power. What is kept of them says all.
asio::awaitable<void> Worker::adopt_saved() {
  auto const names = co_await async::blocking([store = host_.suspended] { return store.names(); });
  for (auto const& name : names) {
    if (find(name)) continue;
    auto saved =
        co_await async::blocking([store = host_.suspended, name] { return store.look(name); });
    if (!saved) {
      base::log::error("saved_sandbox_unusable",
                       {{"sandbox", name}, {"what", saved.error().message()}});
      continue;
    }
    auto const* over = host_.ended.find(name);
    if (over && over->epoch >= saved->entry.epoch) {
      auto const removed =
          co_await async::blocking([store = host_.suspended, name] { return store.remove(name); });
      base::log::warn("stray_state", {{"sandbox", name}, {"removed", removed.has_value()}});
      continue;
    }
    adopt_entry(std::move(saved->entry), Sandbox::Found::nothing);
  }
}

}  // namespace worker
