#pragma once

#include "worker/guard_drops.hpp"
#include "worker/host.hpp"
#include "worker/sandbox.hpp"

#include <deque>
#include <map>
#include <memory>
#include <set>

namespace worker {

/// The brain of one host: which sandboxes are here, who may come, what is left of a former life.
/// Answers to src/wire/worker.hpp (Api and DialServer put it on sockets). One thread.
class Worker {
 public:
  Worker(boost::asio::any_io_executor executor, wire::Config config);

  /// Finds everything of a former life again: running machines are adopted, half-started ones
  /// undone, what nobody claims removed. Waits for space-hostd as long as it takes. Fails when the
  /// journal or the pool cannot be read: then nobody knows what runs, and nothing is touched.
  async::Task<void> open();
  /// Stops watching. Machines go on; the next worker finds them. What was half-started is undone
  /// then.
  boost::asio::awaitable<void> close();

  /// Returns when the agent has answered, or nothing is left. Goes on when the caller leaves.
  async::Task<wire::WorkerSandbox> start(wire::StartSandbox request);
  /// Returns when everything is released; `unavailable` when that takes over a minute (it goes on).
  /// `cause`: deleted, or host_stopped when it is this host that ends and not the sandbox's owner.
  async::Task<wire::EndedSandbox> end(std::string sandbox,
                                      std::uint64_t epoch,
                                      std::string cause = "deleted");

  /// pause, resume, suspend.
  async::Task<wire::WorkerSandbox> change(std::string sandbox,
                                          std::uint64_t epoch,
                                          Sandbox::Change::What what);
  /// conflict: not suspended here. When the state cannot be used, describe() tells with
  /// `lost_reason`.
  async::Task<wire::WorkerSandbox> restore(std::string sandbox, wire::StartSandbox request);
  async::Task<wire::SnapshotReport> snapshot(std::string sandbox, wire::TakeSnapshot request);
  async::Task<void> remove_snapshot(std::string name);
  async::Task<std::vector<wire::SnapshotReport>> snapshots() const;
  async::Task<void> set_drain(bool on);

  /// Null when it is not here (any more).
  std::shared_ptr<Sandbox> find(std::string const& sandbox) const;
  std::vector<wire::WorkerSandbox> list() const;
  /// A machine that waits to be claimed; null when none does.
  std::shared_ptr<Sandbox> any_warm() const;
  wire::NodeReport report() const;
  /// One look at the packet rules of every slot and of the way out (worker_rules.cpp).
  boost::asio::awaitable<void> check_rules();
  /// Counts what the guards of some slots dropped; of the next ones at the next call.
  boost::asio::awaitable<void> count_drops();

  Host& host() noexcept { return host_; }

 private:
  boost::asio::awaitable<void> run(std::shared_ptr<Sandbox> sandbox);
  async::Task<wire::WorkerSandbox> outcome_of(std::shared_ptr<Sandbox> sandbox);
  async::Task<void> make_room(wire::StartSandbox request);
  async::Task<vmm::Accelerator> choose_accelerator(std::string build);
  boost::asio::awaitable<void> settle_pool();
  async::Task<void> prove_kvm(std::string build);
  async::Task<void> prove_firecracker(std::string build);
  /// Boots a machine of nobody under KVM to its agent's first answer. `tried`: there was a machine.
  async::Task<void> boot_to_prove(std::string build, bool* tried);
  bool engine_is_open() const;
  boost::asio::awaitable<void> prove_ahead();
  base::Result<std::shared_ptr<Sandbox>> admit(Sandbox::New wanted);
  base::Result<std::shared_ptr<Sandbox>> place(wire::StartSandbox const& request,
                                               vmm::Accelerator accelerator,
                                               base::SteadyTime received);

  // worker_ahead.cpp: what is made before anybody asks for it.

  /// How much a kind of machine is wanted.
  struct Demand {
    base::SteadyTime used{};  // latest create
    std::uint32_t creates = 0;
    std::deque<base::SteadyTime> recent;  // those of the last minute, bounded
    int failures = 0;                     // of what was made ahead, in a row
    base::SteadyTime not_before{};
  };

  struct Next {
    MachineShape shape;
    bool record = false;  // else a warm machine
  };

  async::Task<void> find_bases();
  boost::asio::awaitable<void> load_bases();
  boost::asio::awaitable<void> keep_ready();
  boost::asio::awaitable<void> wait_quiet();
  std::optional<Next> next_ahead() const;
  std::optional<MachineShape> home_shape() const;
  bool worth_recording(MachineShape const& shape) const;
  std::uint32_t warm_target(MachineShape const& shape) const;
  std::uint32_t warm_count(MachineShape const& shape) const;
  bool roomy(MachineShape const& shape) const;
  async::Task<void> record_base(MachineShape shape);
  async::Task<void> make_warm(MachineShape shape);
  void retire_warm();
  boost::asio::awaitable<void> forget_unwanted();
  std::shared_ptr<Sandbox> find_warm(MachineShape const& shape) const;
  boost::asio::awaitable<bool> give_up_warm();
  boost::asio::awaitable<void> wait_looked_at(MachineShape shape);
  Amounts held_ahead() const;
  void note_demand(MachineShape const& shape);

  // worker_states.cpp
  boost::asio::awaitable<void> adopt_saved();
  std::string drain_file() const;

  async::Task<void> open_files();
  boost::asio::awaitable<void> wait_for_hostd();
  boost::asio::awaitable<std::vector<hostd::Inspected>> inspect_slots();
  void adopt(JournalEntry entry,
             std::vector<hostd::Inspected> const& slots,
             std::vector<bool>& claimed);
  void adopt_entry(JournalEntry entry, Sandbox::Found found);
  boost::asio::awaitable<void> remove_orphan(std::uint32_t slot);
  boost::asio::awaitable<void> remove_stray_disks();
  boost::asio::awaitable<void> maintain();
  boost::asio::awaitable<void> watch_rules();
  boost::asio::awaitable<void> check_uplink();

  Host host_;
  std::map<std::string, std::shared_ptr<Sandbox>> sandboxes_;
  async::Turnstile proving_;
  async::Turnstile taking_;    // of snapshots: one at a time
  async::Turnstile settling_;  // of the pool
  base::SteadyTime settle_began_{};
  bool draining_ = false;
  int uplink_failures_ = 0;  // of its rules, in a row
  GuardCounts guard_counts_{base::metrics()};
  std::string counted_last_;  // sandbox
  base::Result<void> guest_known_;
  std::map<MachineShape, Demand> demand_;
  std::set<MachineShape> looking_;  // snapshots of a former life that are still being verified
  async::Signal ahead_changed_;
  async::TaskGroup tasks_;
};

/// What is wrong with a request to start, "" when nothing is. A pure rule.
std::string problem_of(wire::StartSandbox const& request);

}  // namespace worker
