#pragma once

#include "store/database.hpp"

/// Samples of what guests use, for graphs. Bounded by age; lost when the database crashes.
namespace store {

struct MetricRow {
  std::string sandbox;  // public id
  base::WallTime at;    // kept in whole seconds: two samples of one second are one
  std::uint32_t cpu_count = 0;
  double cpu_used_pct = 0;
  std::uint64_t memory_used = 0;  // bytes
  std::uint64_t memory_total = 0;
  std::uint64_t memory_cache = 0;
  std::uint64_t disk_used = 0;
  std::uint64_t disk_total = 0;
};

class Metrics {
 public:
  explicit Metrics(Database& database) : database_(database) {}

  /// One statement for all of them. Several controllers may add the same second: the first one
  /// stays.
  async::Task<void> add(std::vector<MetricRow> rows, base::Deadline deadline);
  /// Oldest first, both ends inclusive by whole seconds; the newest `limit` of them.
  async::Task<std::vector<MetricRow>> list(std::string sandbox,
                                           std::optional<base::WallTime> start,
                                           std::optional<base::WallTime> end,
                                           std::uint32_t limit,
                                           base::Deadline deadline);
  /// The newest sample of each of these that has one.
  async::Task<std::vector<MetricRow>> latest(std::vector<std::string> sandboxes,
                                             base::Deadline deadline);
  /// Drops what is older, and what belongs to no live sandbox.
  async::Task<std::uint64_t> trim(std::chrono::hours keep, base::Deadline deadline);

 private:
  Database& database_;
};

}  // namespace store
