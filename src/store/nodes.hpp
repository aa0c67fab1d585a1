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
  /// All reports of one round in one statement.
  async::Task<void> beat(std::vector<Heartbeat> beats, base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
