#pragma once

#include "wire/worker.hpp"
#include "worker/base_snapshot.hpp"

#include <map>

namespace worker {

/// Which base snapshots machines may start from now, and why others are not used. Used on the loop
/// alone; the files are BaseFiles'.
class BaseShelf {
 public:
  /// Null when machines of this shape boot cold.
  std::shared_ptr<BaseSnapshot const> find(MachineShape const& shape) const;
  /// Is this the one that machines start from?
  bool current(std::shared_ptr<BaseSnapshot const> const& base) const;

  void put(std::shared_ptr<BaseSnapshot const> base);
  void refuse(MachineShape const& shape, std::string reason);

  void forget(MachineShape const& shape);
  /// Of those that may be used.
  std::vector<MachineShape> shapes() const;

  /// A machine of it did not come up. A VMM that refuses it is proof enough; an agent that did not
  /// answer may have been the host's fault once. True when it may not be used any more.
  [[nodiscard]] bool failed(BaseSnapshot const& base, bool surely, std::string reason);
  void worked(BaseSnapshot const& base);

  std::vector<wire::BaseSnapshotReport> report() const;

 private:
  struct Place {
    std::shared_ptr<BaseSnapshot const> base;
    int failures = 0;
    std::string reason;
  };

  std::map<MachineShape, Place> places_;
};

}  // namespace worker
