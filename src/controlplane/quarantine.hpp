#pragma once

#include "controlplane/network_service.hpp"
#include "controlplane/placement.hpp"

namespace controlplane {

/// Credentials that servers sent back to guests: what workers report is stored, and brought to
/// every sandbox that names one. Only a person lets one out again, or gives it a new value.
class Quarantine {
 public:
  Quarantine(Nodes const& nodes, store::Store& store, NetworkService& network)
      : nodes_(nodes), store_(store), network_(network) {}

  /// Looks each second, until cancelled.
  asio::awaitable<void> run();
  /// One look, now. For tests.
  asio::awaitable<void> look();

 private:
  asio::awaitable<void> take_in(wire::Reflected reflected);

  Nodes const& nodes_;
  store::Store& store_;
  NetworkService& network_;
  /// What was stored already; the statement itself does nothing twice.
  std::map<std::pair<std::string, std::int64_t>, base::SteadyTime> done_;
};

}  // namespace controlplane
