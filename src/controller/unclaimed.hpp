#pragma once

#include "wire/worker.hpp"

#include <string>
#include <vector>

/// What is at rest on a node and its installation's database has never heard of: kept, and told.
/// docs/decisions/0015-unclaimed.md
namespace controller {

class Unclaimed {
 public:
  /// All of the last look; what is new among them is logged.
  void found_sandboxes(std::string const& node, std::vector<std::string> ids);
  void found_snapshots(std::string const& node, std::vector<std::string> ids);

  /// Into what is told of the node.
  void tell(wire::NodeReport& report) const;

 private:
  void log(std::string const& node) const;

  std::vector<std::string> sandboxes_;
  std::vector<std::string> snapshots_;
};

}  // namespace controller
