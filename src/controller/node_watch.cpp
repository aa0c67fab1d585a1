#include "controller/node_watch.hpp"

#include "base/fault.hpp"
#include "base/id.hpp"
#include "base/log.hpp"
#include "controller/backoff.hpp"

#include <algorithm>

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr auto database_time = 3s;
constexpr auto worker_time = 3s;
constexpr auto sample_time = 2s;
constexpr std::size_t work_max = 200;

/// A worker's sentence may quote what a file held.
std::string printable(std::string text) {
  text.resize(std::min<std::size_t>(text.size(), 1000));
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

base::Deadline in(std::chrono::milliseconds duration) {
  return base::system_clock().in(duration);
}

}  // namespace

NodeWatch::NodeWatch(store::asio::any_io_executor executor,
                     std::string name,
                     std::string address,
                     store::Store& store,
                     WorkerLinks& links,
                     Finisher& finisher,
                     Samples& samples,
                     WatchTimes times)
    : name_(std::move(name)),
      store_(store),
      link_(links.at(address)),
      finisher_(finisher),
      samples_(samples),
      times_(times),
      ends_(store),
      reconciler_(name_, times.confirm_after),
      work_(std::move(executor)) {}

std::optional<wire::NodeReport> NodeWatch::fresh_report() const {
  if (!report_ || base::system_clock().steady_now() - reported_at_ > 3 * times_.report_every)
    return std::nullopt;
  auto report = report_;
  unclaimed_.tell(*report);
  return report;
}

store::asio::awaitable<void> NodeWatch::run_reports() {
  Backoff first(50ms, 1000ms);
  bool answered = true;
  while (true) {
    auto report = co_await link_.report(in(worker_time));
    if (report.has_value() != answered) {
      answered = report.has_value();
      if (answered) base::log::info("worker_answers", {{"node", name_}});
      if (!answered)
        base::log::warn("worker_silent", {{"node", name_}, {"why", report.error().message()}});
    }
    if (report) {
      report->name = name_;  // a node speaks for itself only
      report_ = std::move(*report);
      reported_at_ = base::system_clock().steady_now();
      if (draining_ && *draining_ != report_->draining) {
        auto const told = co_await link_.drain(*draining_, in(worker_time));
        base::log::info("node_drain",
                        {{"node", name_}, {"on", *draining_}, {"told", told.has_value()}});
      }
    }
    // A worker that was never heard of may be about to come up.
    co_await async::sleep_for(report_ ? times_.report_every : first.next());
  }
}

store::asio::awaitable<void> NodeWatch::run_ends() {
  Backoff backoff(50ms, 1000ms);
  while (true) {
    std::function<void()> on_open = [&backoff] { backoff.reset(); };
    WorkerLink::OnEnded on_ended = [this](wire::EndedSandbox ended) {
      return take_end(std::move(ended));
    };
    auto const broken = co_await link_.follow_ended(on_open, on_ended);
    if (!broken)
      base::log::debug("ended_stream_broke", {{"node", name_}, {"why", broken.error().message()}});
    co_await async::sleep_for(backoff.next());
  }
}

/// In a task of its own: one row that waits for the database must not hold up the causes of the
/// others.
store::asio::awaitable<void> NodeWatch::take_end(wire::EndedSandbox ended) {
  if (work_.running() < work_max) {
    work_.spawn("ended", ends_.record(std::move(ended)));
    co_return;
  }
  co_await ends_.record(std::move(ended));
}

store::asio::awaitable<void> NodeWatch::run_looks() {
  while (true) {
    bool const looked = co_await look();
    if (!looked) reconciler_.forget();
    co_await async::sleep_for(times_.look_every);
  }
}

store::asio::awaitable<bool> NodeWatch::look() {
  auto look = co_await take_look();
  if (!look) {
    base::log::debug("look_failed", {{"node", name_}, {"why", look.error().message()}});
    co_return false;
  }
  sample(look->machines);
  auto plan = reconciler_.look(*look, base::system_clock().steady_now());
  unclaimed_.found_sandboxes(name_, plan.unclaimed);
  co_await carry_out(std::move(plan));
  if (++looks_ % times_.snapshot_looks == 0) co_await look_at_snapshots();
  co_return true;
}

/// Files of snapshots that no row knows, in two looks. Those that were begun with this database are
/// of a request that outlived its program; any other may be the only copy of what another database
/// knows, and stays.
store::asio::awaitable<void> NodeWatch::look_at_snapshots() {
  auto const there = co_await link_.snapshots(in(worker_time));
  if (!there) co_return;
  std::vector<std::string> names;
  for (auto const& one : *there)
    names.push_back(one.snapshot);
  auto const without = co_await store_.snapshots.without_row(std::move(names), in(database_time));
  if (!without) co_return;
  std::set<std::string> orphans(without->begin(), without->end());
  std::vector<std::string> sandboxes;
  for (auto const& one : *there) {
    if (orphans.contains(one.snapshot)) sandboxes.push_back(one.sandbox);
  }
  std::set<std::string> begun;
  if (!orphans.empty()) {
    auto ours = co_await store_.snapshots.begun(
        std::move(*without), std::move(sandboxes), in(database_time));
    if (!ours) co_return;
    begun.insert(ours->begin(), ours->end());
  }
  std::vector<std::string> unclaimed;
  for (auto const& one : orphans) {
    if (!orphans_.contains(one)) continue;
    if (begun.contains(one) || released()) {
      co_await remove_orphan(one);
    } else {
      unclaimed.push_back(one);
    }
  }
  unclaimed_.found_snapshots(name_, std::move(unclaimed));
  orphans_ = std::move(orphans);
}

store::asio::awaitable<void> NodeWatch::remove_orphan(std::string snapshot) {
  auto const removed = co_await link_.remove_snapshot(snapshot, in(15s));
  base::log::warn("snapshot_removed",
                  {{"node", name_},
                   {"snapshot", snapshot},
                   {"why", "it has no row"},
                   {"done", removed.has_value()}});
}

/// The worker first, then the database: rows are written before a worker is asked to start
/// anything, so a machine without a row in this order never had one, or has none any more.
async::Task<Look> NodeWatch::take_look() {
  Look look;
  auto machines = co_await link_.list(in(worker_time));
  if (!machines) co_return base::passing(machines);
  look.machines = std::move(*machines);
  if (SPACE_FAULT("controller.reconcile.before_rows"))
    co_return base::fail(base::Code::unavailable, "fault");
  auto rows = co_await store_.sandboxes.on_node(name_, in(database_time));
  if (!rows) co_return base::passing(rows);
  look.rows = std::move(*rows);
  look.released = released();
  std::set<std::string_view> known;
  for (auto const& row : look.rows)
    known.insert(row.public_id);
  std::vector<std::string> strays;
  for (auto const& machine : look.machines) {
    if (known.contains(machine.sandbox)) continue;
    auto elsewhere = co_await store_.sandboxes.find_live(machine.sandbox, in(database_time));
    if (!elsewhere) co_return base::passing(elsewhere);
    if (*elsewhere) look.rows.push_back(std::move(**elsewhere));
    if (!*elsewhere) strays.push_back(machine.sandbox);
  }
  if (!strays.empty()) {
    auto ended = co_await store_.sandboxes.ended(std::move(strays), in(database_time));
    if (!ended) co_return base::passing(ended);
    look.ended.insert(ended->begin(), ended->end());
  }
  co_return look;
}

store::asio::awaitable<void> NodeWatch::carry_out(Plan plan) {
  for (auto const& kill : plan.kill) {
    auto const removed = co_await link_.remove(kill.sandbox, kill.epoch, in(15s));
    base::log::warn("machine_removed",
                    {{"node", name_},
                     {"sandbox", kill.sandbox},
                     {"epoch", kill.epoch},
                     {"why", kill.why},
                     {"done", removed.has_value()}});
  }
  for (auto& row : plan.vanished)
    co_await end_vanished(std::move(row));
  for (auto& one : plan.problems) {
    auto const said =
        co_await store_.sandboxes.set_problem(one.id, printable(one.why), in(database_time));
    base::log::warn("suspended_state_lost",
                    {{"node", name_}, {"why", one.why}, {"written", said.has_value()}});
  }
  for (auto& one : plan.align)
    co_await align(std::move(one));
  for (auto& row : plan.finish) {
    if (work_.running() >= work_max) break;
    work_.spawn("finish_delete", finisher_.finish_delete(std::move(row), in(10s)));
  }
}

store::asio::awaitable<void> NodeWatch::align(Plan::Align align) {
  auto const& row = align.row;
  base::log::warn("sandbox_out_of_step",
                  {{"node", name_},
                   {"sandbox", row.public_id},
                   {"row", domain::name_of(row.state)},
                   {"how", align.how}});
  if (align.how == "suspended") {
    co_await follow_suspended(row);
    co_return;
  }
  auto const moved = co_await link_.move(row.public_id, align.how, row.epoch, in(15s));
  if (!moved)
    base::log::warn("not_aligned", {{"sandbox", row.public_id}, {"why", moved.error().message()}});
}

/// The worker has suspended it and nobody wrote that down.
store::asio::awaitable<void> NodeWatch::follow_suspended(store::SandboxRow row) {
  if (SPACE_FAULT("controller.align.before_row")) co_return;
  store::Begin begin;
  begin.id = row.id;
  begin.project_id = row.project_id;
  begin.from = row.state;
  begin.event = domain::SandboxEvent::suspend;
  begin.kind = "sandbox.suspend";
  begin.operation = base::make_short_id('x');
  begin.lease_owner = name_;
  begin.lease = 20s;
  begin.actor = "host";
  auto const operation = begin.operation;
  auto begun = co_await store_.sandboxes.begin(std::move(begin), in(database_time));
  if (!begun || !begun->applied || !begun->now) co_return;
  co_await finisher_.finish_suspend(std::move(*begun->now), operation, "host", in(10s));
}

store::asio::awaitable<void> NodeWatch::end_vanished(store::SandboxRow row) {
  auto const found = co_await link_.find(row.public_id, in(worker_time));
  if (!found) co_return;
  if (*found && (*found)->epoch >= row.epoch) co_return;
  store::End end;
  end.id = row.id;
  end.event = domain::SandboxEvent::machine_failed;
  end.epoch = row.epoch;
  end.actor = "controller";
  end.reason = domain::EndReason::unknown;
  end.detail = "its machine was not there any more; its host or its worker was restarted";
  if (row.state == domain::SandboxState::suspended) {
    end.reason = domain::EndReason::host_lost;
    end.detail = "its suspended state was not on its host any more";
  } else if (!reconciler_.has_seen(row.public_id, row.epoch)) {
    end.reason = domain::EndReason::host_lost;
    end.detail =
        "its host stopped without a warning: it ran, and was not there any more when the platform "
        "started again (a power cut, or everything was killed at once)";
  }
  auto const ended = co_await store_.sandboxes.end(std::move(end), in(database_time));
  if (ended && *ended)
    base::log::warn("sandbox_vanished", {{"node", name_}, {"sandbox", row.public_id}});
}

void NodeWatch::sample(std::vector<wire::WorkerSandbox> const& machines) {
  auto const now = base::system_clock().steady_now();
  std::set<std::string_view> running;
  for (auto const& machine : machines) {
    if (machine.state != "running") continue;
    running.insert(machine.sandbox);
    auto const [last, first_time] = sampled_at_.try_emplace(machine.sandbox, now);
    if (!first_time && now - last->second < times_.sample_every) continue;
    if (sampling_.contains(machine.sandbox) || work_.running() >= work_max) continue;
    last->second = now;
    sampling_.insert(machine.sandbox);
    work_.spawn("sample", sample_one(machine.sandbox));
  }
  std::erase_if(sampled_at_, [&](auto const& one) { return !running.contains(one.first); });
}

store::asio::awaitable<void> NodeWatch::sample_one(std::string sandbox) {
  auto const said = co_await link_.metrics(sandbox, in(sample_time));
  sampling_.erase(sandbox);
  if (said) samples_.add(sandbox, *said);
}

store::asio::awaitable<void> NodeWatch::close() {
  work_.cancel();
  co_await work_.join();
}

}  // namespace controller
