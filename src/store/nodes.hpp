#pragma once

#include "store/database.hpp"
#include "wire/worker.hpp"

/// The hosts and what their workers last said of themselves.
namespace store {

struct NodeRow {
  std::string name;
  std::string address;  // the directory of its worker's sockets
  bool draining = false;
  wire::NodeReport report;
  std::optional<base::WallTime> heartbeat_at;
  std::optional<base::WallTime> lost_at;  // declared lost by an operator, and not heard of since
  base::WallTime created_at;
};

struct Heartbeat {
  std::string name;
  wire::NodeReport report;
};

class Nodes {
 public:
  explicit Nodes(Database& database) : database_(database) {}

  /// Makes the node known, or changes its address.
  async::Task<void> upsert(std::string name, std::string address, base::Deadline deadline);
  async::Task<std::vector<NodeRow>> list(base::Deadline deadline);
  /// All reports of one round in one statement. All of these nodes are evidently not lost.
  async::Task<void> beat(std::vector<Heartbeat> beats, base::Deadline deadline);
  /// not_found without that node.
  async::Task<void> set_draining(std::string name, bool draining, base::Deadline deadline);
  /// not_found without that node.
  async::Task<void> declare_lost(std::string name, base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
