#pragma once

#include "worker/host.hpp"
#include "worker/sandbox.hpp"

#include <map>
#include <memory>

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

  /// Null when it is not here (any more).
  std::shared_ptr<Sandbox> find(std::string const& sandbox) const;
  std::vector<wire::WorkerSandbox> list() const;
  wire::NodeReport report() const;

  Host& host() noexcept { return host_; }

 private:
  boost::asio::awaitable<void> run(std::shared_ptr<Sandbox> sandbox);
  async::Task<wire::WorkerSandbox> outcome_of(std::shared_ptr<Sandbox> sandbox);
  async::Task<void> make_room(wire::StartSandbox request);
  async::Task<vmm::Accelerator> choose_accelerator(std::string build);
  async::Task<void> prove_kvm(std::string build);
  boost::asio::awaitable<void> prove_ahead();
  base::Result<std::shared_ptr<Sandbox>> admit(Sandbox::New wanted);

  async::Task<void> open_files();
  boost::asio::awaitable<void> wait_for_hostd();
  boost::asio::awaitable<std::vector<hostd::Inspected>> inspect_slots();
  void adopt(JournalEntry entry,
             std::vector<hostd::Inspected> const& slots,
             std::vector<bool>& claimed);
  boost::asio::awaitable<void> remove_orphan(std::uint32_t slot);
  boost::asio::awaitable<void> remove_stray_disks();
  boost::asio::awaitable<void> maintain();

  Host host_;
  std::map<std::string, std::shared_ptr<Sandbox>> sandboxes_;
  async::Turnstile proving_;
  base::Result<void> guest_known_;
  async::TaskGroup tasks_;
};

/// What is wrong with a request to start, "" when nothing is. A pure rule.
std::string problem_of(wire::StartSandbox const& request);

}  // namespace worker
