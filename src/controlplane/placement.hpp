#pragma once

#include "controlplane/worker_client.hpp"
#include "domain/placement.hpp"
#include "store/store.hpp"

/// The hosts as this process sees them: who they are comes from the database, what they have from
/// themselves, each second. Placement works on this alone; no create waits for a worker's report.
namespace controlplane {

class Nodes {
 public:
  Nodes(store::Store& store, WorkerClient& workers);

  /// Until cancelled: reads the list of nodes every few seconds, asks each for its report every
  /// second.
  asio::awaitable<void> run();
  /// One round of both, now. For tests.
  asio::awaitable<void> refresh();

  base::Result<domain::Placement::Reservation> choose(domain::PlacementRequest const& request,
                                                      std::vector<std::string> const& except);
  /// The same, but while every known host is silent it waits until `until`: a worker that died is
  /// started again within seconds, and a create need not fail for that. Waits for nothing else.
  async::Task<domain::Placement::Reservation> choose_when_ready(domain::PlacementRequest request,
                                                                base::Deadline until);
  /// "" for a node that is not known.
  std::string address_of(std::string const& name) const;

  struct Seen {
    store::NodeRow row;
    wire::NodeReport report;
    base::SteadyTime reported_at{};
    bool ready = false;
  };

  /// By name.
  std::map<std::string, Seen> const& all() const noexcept { return nodes_; }

 private:
  asio::awaitable<void> read_list();
  asio::awaitable<void> ask_all();
  asio::awaitable<void> ask(std::string name);

  store::Store& store_;
  WorkerClient& workers_;
  domain::Placement placement_;
  std::map<std::string, Seen> nodes_;
  base::SteadyTime listed_at_{};
};

}  // namespace controlplane
