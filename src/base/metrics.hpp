#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/describe/class.hpp>

/// What an operator's Prometheus sees of this process. The families are a fixed table
/// (metric_names.hpp); labels are words of ours, never a sandbox's id, a host name or anything else
/// that a guest chooses. Programs that nobody asks themselves hand their samples on: a gateway to
/// its worker, a worker to the API.
namespace base {

enum class MetricKind : std::uint8_t { counter, gauge, histogram };

/// Who counts it, from the least trusted on.
enum class MetricTeller : std::uint8_t { gateway, worker, api };

struct Metric {
  std::string_view name;
  MetricKind kind = MetricKind::counter;
  MetricTeller teller = MetricTeller::worker;
  std::string_view labels;  // "decision,reason"; "" none
  std::string_view help;
  std::span<double const> bounds = {};  // of a histogram's buckets, in seconds, without +Inf
};

/// One series: a family, its labels' values in order, and what was counted.
struct MetricSample {
  std::string name;
  std::vector<std::string> labels = {};
  double value = 0;                         // of a histogram: the sum of what was observed
  std::vector<std::uint64_t> buckets = {};  // of a histogram: how many fell into each, +Inf last
};
BOOST_DESCRIBE_STRUCT(MetricSample, (), (name, labels, value, buckets))

/// Thread-safe. Never fails: what does not fit is counted under the label "other".
class Metrics {
 public:
  using Labels = std::initializer_list<std::string_view>;

  void count(Metric const& metric, Labels labels = {}, double by = 1);
  void observe(Metric const& metric, double seconds, Labels labels = {});
  void set(Metric const& metric, double value, Labels labels = {});

  /// Adds what somebody else counted. False, and nothing is added, when it is none of the families
  /// that `from` may tell or is not shaped like it.
  bool merge(MetricSample const& sample, MetricTeller from);

  std::vector<MetricSample> all() const;
  /// What was counted since the last call, and begins at nought.
  std::vector<MetricSample> take();

 private:
  MetricSample& series(Metric const& metric, std::span<std::string_view const> labels);

  mutable std::mutex mutex_;
  std::map<std::string, MetricSample, std::less<>> samples_;
  std::map<std::string_view, std::size_t> series_;  // of each family
};

/// Of this process.
Metrics& metrics();

/// Nothing when no family is called so.
Metric const* metric_named(std::string_view name);

/// The text that Prometheus reads. Samples of a node carry its name as a label; "" for none.
struct NodeSamples {
  std::string node;
  std::vector<MetricSample> samples;
};

std::string prometheus_text(std::span<NodeSamples const> all);

}  // namespace base
