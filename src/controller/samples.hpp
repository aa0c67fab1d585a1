#pragma once

#include "store/store.hpp"
#include "wire/codec.hpp"

#include <set>
#include <string>
#include <vector>

/// What guests say of their CPU, memory and disk, on its way to the database in batches; and of
/// their commands, which keep a sandbox from being idle.
namespace controller {

/// Numbers of a guest, made harmless: finite, not negative, not absurd. Nothing when it is no such
/// answer.
std::optional<store::MetricRow> sample_of(std::string const& sandbox,
                                          wire::json::value const& said,
                                          base::WallTime now);

class Samples {
 public:
  explicit Samples(store::Store& store) : store_(store) {}

  /// Kept until the next write; a few thousand at most, then the newest are dropped.
  void add(std::string const& sandbox, wire::json::value const& said);
  /// Writes what was added about once a second. Until cancelled.
  store::asio::awaitable<void> run();

 private:
  store::Store& store_;
  std::vector<store::MetricRow> waiting_;
  std::set<std::string> busy_;  // whose commands run, whether or not somebody is connected
};

}  // namespace controller
