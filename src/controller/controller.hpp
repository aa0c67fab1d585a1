#pragma once

#include "controller/audit_collector.hpp"
#include "controller/deadlines.hpp"
#include "controller/node_watch.hpp"
#include "controller/retention.hpp"
#include "controller/template_registry.hpp"
#include "wire/config.hpp"

#include <memory>

/// The whole of space-controller: reconcilers over one database. Several may run; none is the
/// leader. Work that must happen once is claimed in the database, everything else is idempotent.
namespace controller {

class Controller {
 public:
  /// `owner` names this process in leases.
  Controller(store::asio::any_io_executor executor,
             store::Store& store,
             wire::Config config,
             std::string owner,
             WatchTimes times = {},
             Keep keep = {});

  /// Starts the loops and returns when cancelled; awaits their end then. Not reusable.
  store::asio::awaitable<void> run();

 private:
  store::asio::awaitable<void> run_nodes();
  store::asio::awaitable<void> run_beats();
  store::asio::awaitable<void> refresh_nodes();
  store::asio::awaitable<void> give_up(store::NodeRow node);
  store::asio::awaitable<void> beat();
  void watch(std::string name, std::string address);

  store::asio::any_io_executor executor_;
  store::Store& store_;
  wire::Config config_;
  WatchTimes times_;
  WorkerLinks links_;
  Finisher finisher_;
  Deadlines deadlines_;
  Samples samples_;
  Retention retention_;
  TemplateRegistry registry_;
  std::map<std::string, std::unique_ptr<NodeWatch>> watches_;  // by address
  std::vector<std::unique_ptr<AuditCollector>> collectors_;
  bool beaten_ = false;
  bool beating_ = true;
  bool registered_ = false;  // our own node has its row
  async::TaskGroup loops_;
};

}  // namespace controller
