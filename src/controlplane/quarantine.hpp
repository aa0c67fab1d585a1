#pragma once

#include "controlplane/network_service.hpp"
#include "controlplane/placement.hpp"

namespace controlplane {

/// Credentials that servers sent back to guests: what workers report is stored, and brought to
/// every sandbox that names one; then the worker is told so, which until then gives that credential
/// to nobody. Only a person lets one out again, or gives it a new value.
class Quarantine {
 public:
  Quarantine(Nodes const& nodes,
             WorkerClient& workers,
             store::Store& store,
             NetworkService& network)
      : nodes_(nodes), workers_(workers), store_(store), network_(network) {}

  /// Looks each second, until cancelled.
  asio::awaitable<void> run();
  /// One look, now. For tests.
  asio::awaitable<void> look();

 private:
  struct Told {
    std::string address;  // of the worker
    wire::Reflected reflected;
  };

  asio::awaitable<void> take_in(wire::Reflected reflected);
  asio::awaitable<bool> bring(store::CredentialRow row);

  Nodes const& nodes_;
  WorkerClient& workers_;
  store::Store& store_;
  NetworkService& network_;
  using Key = std::pair<std::string, std::int64_t>;  // credential, time
  /// What was stored already and is in force; the statement itself does nothing twice.
  std::map<Key, base::SteadyTime> done_;
  std::map<Key, base::SteadyTime> again_at_;  // what is not in force everywhere yet
};

/// May this be asked of the database? A worker may say anything. Pure.
bool is_sane(wire::Reflected const& reflected) noexcept;

}  // namespace controlplane
