#pragma once

#include "controller/ends.hpp"
#include "controller/finisher.hpp"
#include "controller/reconcile.hpp"
#include "controller/samples.hpp"
#include "controller/unclaimed.hpp"

#include <set>

/// One node: its report every second, its stream of ends, its list against the rows, its guests'
/// metrics.
namespace controller {

struct WatchTimes {
  std::chrono::milliseconds report_every{1000};
  std::chrono::milliseconds look_every{2000};
  /// Two looks this far apart must agree before anything is done.
  std::chrono::milliseconds confirm_after{4000};
  std::chrono::milliseconds sample_every{5000};
  std::chrono::milliseconds nodes_every{5000};
  std::chrono::milliseconds checkpoints_every{10'000};  // of the audit log
  std::uint32_t snapshot_looks = 15;  // after how many looks its snapshots are looked at
};

class NodeWatch {
 public:
  NodeWatch(store::asio::any_io_executor executor,
            std::string name,
            std::string address,
            store::Store& store,
            WorkerLinks& links,
            Finisher& finisher,
            Samples& samples,
            WatchTimes times);

  /// Until cancelled.
  store::asio::awaitable<void> run_reports();
  store::asio::awaitable<void> run_ends();
  store::asio::awaitable<void> run_looks();
  store::asio::awaitable<void> close();

  std::string const& name() const noexcept { return name_; }

  /// As its row says. The worker is told until its report says the same.
  void set_draining(bool draining) noexcept { draining_ = draining; }

  /// The last report, when it is fresh.
  std::optional<wire::NodeReport> fresh_report() const;

 private:
  store::asio::awaitable<void> take_end(wire::EndedSandbox ended);
  store::asio::awaitable<bool> look();
  async::Task<Look> take_look();
  store::asio::awaitable<void> carry_out(Plan plan);
  store::asio::awaitable<void> end_vanished(store::SandboxRow row);
  store::asio::awaitable<void> align(Plan::Align align);
  store::asio::awaitable<void> follow_suspended(store::SandboxRow row);
  store::asio::awaitable<void> look_at_snapshots();
  store::asio::awaitable<void> remove_orphan(std::string snapshot);

  bool released() const noexcept { return report_ && report_->release_unclaimed; }

  void sample(std::vector<wire::WorkerSandbox> const& machines);
  store::asio::awaitable<void> sample_one(std::string sandbox);

  std::string name_;
  store::Store& store_;
  WorkerLink& link_;
  Finisher& finisher_;
  Samples& samples_;
  WatchTimes times_;
  Ends ends_;
  Reconciler reconciler_;
  std::optional<wire::NodeReport> report_;
  std::optional<bool> draining_;
  std::set<std::string> orphans_;  // snapshots without a row at the last look
  Unclaimed unclaimed_;
  std::uint32_t looks_ = 0;
  base::SteadyTime reported_at_;
  std::map<std::string, base::SteadyTime> sampled_at_;  // of machines that run; when last asked
  std::set<std::string> sampling_;
  async::TaskGroup work_;
};

}  // namespace controller
