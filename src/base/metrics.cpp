#include "base/metrics.hpp"

#include "base/metric_names.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace base {
namespace {

constexpr std::size_t series_max = 128;  // of one family
constexpr std::size_t word_max = 40;
constexpr double value_max = 1e15;
constexpr std::uint64_t bucket_max = std::uint64_t{1} << 50U;

bool is_word(std::string_view text) {
  return !text.empty() && text.size() <= word_max && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

/// "warm machine" → warm_machine; what is no word of ours → other.
std::string word_of(std::string_view text) {
  std::string out(text.substr(0, word_max + 1));
  std::ranges::replace(out, ' ', '_');
  return is_word(out) ? out : "other";
}

std::size_t count_of(std::string_view labels) {
  return labels.empty() ? 0 : 1 + static_cast<std::size_t>(std::ranges::count(labels, ','));
}

bool sane(MetricSample const& sample, Metric const& metric) {
  bool const histogram = metric.kind == MetricKind::histogram;
  return std::isfinite(sample.value) && sample.value >= 0 && sample.value <= value_max &&
         sample.labels.size() == count_of(metric.labels) &&
         std::ranges::all_of(sample.labels, is_word) &&
         sample.buckets.size() == (histogram ? metric.bounds.size() + 1 : 0) &&
         std::ranges::all_of(sample.buckets, [](auto count) { return count <= bucket_max; });
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char const c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

/// `node="a",reason="b"`, without braces.
std::string labels_of(Metric const& metric, std::string_view node, MetricSample const& sample) {
  std::string out;
  auto const add = [&out](std::string_view name, std::string_view value) {
    fmt::format_to(
        std::back_inserter(out), R"({}{}="{}")", out.empty() ? "" : ",", name, escaped(value));
  };
  if (!node.empty()) add("node", node);
  auto names = metric.labels;
  for (auto const& value : sample.labels) {
    auto const cut = names.find(',');
    add(names.substr(0, cut), value);
    names = cut == std::string_view::npos ? std::string_view() : names.substr(cut + 1);
  }
  return out;
}

void print_histogram(std::string& out,
                     Metric const& metric,
                     std::string const& labels,
                     MetricSample const& sample) {
  auto const to = std::back_inserter(out);
  auto const comma = labels.empty() ? "" : ",";
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < metric.bounds.size(); ++i) {
    below += sample.buckets[i];
    fmt::format_to(
        to, "{}_bucket{{{}{}le=\"{}\"}} {}\n", metric.name, labels, comma, metric.bounds[i], below);
  }
  below += sample.buckets.back();
  fmt::format_to(to, "{}_bucket{{{}{}le=\"+Inf\"}} {}\n", metric.name, labels, comma, below);
  auto const braces = labels.empty() ? labels : "{" + labels + "}";
  fmt::format_to(to, "{}_sum{} {}\n", metric.name, braces, sample.value);
  fmt::format_to(to, "{}_count{} {}\n", metric.name, braces, below);
}

void print(std::string& out,
           Metric const& metric,
           std::string_view node,
           MetricSample const& sample) {
  auto const labels = labels_of(metric, node, sample);
  if (metric.kind == MetricKind::histogram) return print_histogram(out, metric, labels, sample);
  auto const braces = labels.empty() ? labels : "{" + labels + "}";
  fmt::format_to(std::back_inserter(out), "{}{} {}\n", metric.name, braces, sample.value);
}

std::string_view type_of(MetricKind kind) {
  if (kind == MetricKind::counter) return "counter";
  return kind == MetricKind::gauge ? "gauge" : "histogram";
}

}  // namespace

Metrics& metrics() {
  static Metrics of_this_process;
  return of_this_process;
}

Metric const* metric_named(std::string_view name) {
  auto const found =
      std::ranges::find_if(metric::all, [name](auto const* one) { return one->name == name; });
  return found == metric::all.end() ? nullptr : *found;
}

/// With the lock held.
MetricSample& Metrics::series(Metric const& metric, std::span<std::string_view const> labels) {
  std::vector<std::string> words;
  for (auto const label : labels)
    words.push_back(word_of(label));
  words.resize(count_of(metric.labels), "other");
  auto key = fmt::format("{}|{}", metric.name, fmt::join(words, ","));
  auto found = samples_.find(key);
  if (found == samples_.end() && series_[metric.name] >= series_max) {
    std::ranges::fill(words, "other");
    key = fmt::format("{}|{}", metric.name, fmt::join(words, ","));
    found = samples_.find(key);
  }
  if (found != samples_.end()) return found->second;
  ++series_[metric.name];
  bool const histogram = metric.kind == MetricKind::histogram;
  std::vector<std::uint64_t> buckets(histogram ? metric.bounds.size() + 1 : 0);
  MetricSample made{std::string(metric.name), std::move(words), 0, std::move(buckets)};
  return samples_.emplace(std::move(key), std::move(made)).first->second;
}

void Metrics::count(Metric const& metric, Labels labels, double by) {
  std::scoped_lock const lock(mutex_);
  series(metric, labels).value += by;
}

void Metrics::observe(Metric const& metric, double seconds, Labels labels) {
  std::scoped_lock const lock(mutex_);
  auto& one = series(metric, labels);
  auto const bucket = std::ranges::lower_bound(metric.bounds, seconds) - metric.bounds.begin();
  ++one.buckets.at(static_cast<std::size_t>(bucket));
  one.value += std::max(seconds, 0.0);
}

void Metrics::set(Metric const& metric, double value, Labels labels) {
  std::scoped_lock const lock(mutex_);
  series(metric, labels).value = value;
}

bool Metrics::merge(MetricSample const& sample, MetricTeller from) {
  auto const* const metric = metric_named(sample.name);
  if (metric == nullptr || metric->teller > from || !sane(sample, *metric)) return false;
  std::vector<std::string_view> const labels(sample.labels.begin(), sample.labels.end());
  std::scoped_lock const lock(mutex_);
  auto& one = series(*metric, labels);
  one.value = metric->kind == MetricKind::gauge ? sample.value : one.value + sample.value;
  for (std::size_t i = 0; i < one.buckets.size(); ++i)
    one.buckets[i] += sample.buckets[i];
  return true;
}

std::vector<MetricSample> Metrics::all() const {
  std::scoped_lock const lock(mutex_);
  std::vector<MetricSample> out;
  for (auto const& [key, sample] : samples_)
    out.push_back(sample);
  return out;
}

std::vector<MetricSample> Metrics::take() {
  std::scoped_lock const lock(mutex_);
  std::vector<MetricSample> out;
  for (auto& [key, sample] : samples_)
    out.push_back(std::move(sample));
  samples_.clear();
  series_.clear();
  return out;
}

std::string prometheus_text(std::span<NodeSamples const> all) {
  std::string out;
  for (auto const* metric : metric::all) {
    std::string lines;
    for (auto const& node : all)
      for (auto const& sample : node.samples)
        if (sample.name == metric->name && sane(sample, *metric))
          print(lines, *metric, node.node, sample);
    if (lines.empty()) continue;
    fmt::format_to(std::back_inserter(out),
                   "# HELP {0} {1}\n# TYPE {0} {2}\n{3}",
                   metric->name,
                   metric->help,
                   type_of(metric->kind),
                   lines);
  }
  return out;
}

}  // namespace base
