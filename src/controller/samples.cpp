#include "controller/samples.hpp"

#include "base/fault.hpp"
#include "base/log.hpp"

#include <cmath>

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t waiting_max = 4096;
constexpr double bytes_max = 1e15;

/// A guest's number in [0, most]; nothing when it is none.
std::optional<double> number_in(wire::json::object const& object,
                                std::string_view name,
                                double most) {
  auto const* value = object.if_contains(name);
  if (!value || !value->is_number()) return std::nullopt;
  auto const number = value->to_number<double>();
  if (!std::isfinite(number) || number < 0 || number > most) return std::nullopt;
  return number;
}

}  // namespace

std::optional<store::MetricRow> sample_of(std::string const& sandbox,
                                          wire::json::value const& said,
                                          base::WallTime now) {
  auto const* object = said.if_object();
  if (!object) return std::nullopt;
  auto const cpus = number_in(*object, "cpu_count", 1024);
  auto const cpu_used = number_in(*object, "cpu_used_pct", 1e6);
  auto const memory_used = number_in(*object, "mem_used", bytes_max);
  auto const memory_total = number_in(*object, "mem_total", bytes_max);
  auto const disk_used = number_in(*object, "disk_used", bytes_max);
  auto const disk_total = number_in(*object, "disk_total", bytes_max);
  if (!cpus || !cpu_used || !memory_used || !memory_total || !disk_used || !disk_total)
    return std::nullopt;
  store::MetricRow row;
  row.sandbox = sandbox;
  row.at = now;  // ours: a guest's clock is its own business
  row.cpu_count = static_cast<std::uint32_t>(*cpus);
  row.cpu_used_pct = *cpu_used;
  row.memory_used = static_cast<std::uint64_t>(*memory_used);
  row.memory_total = static_cast<std::uint64_t>(*memory_total);
  row.memory_cache =
      static_cast<std::uint64_t>(number_in(*object, "mem_cache", bytes_max).value_or(0));
  row.disk_used = static_cast<std::uint64_t>(*disk_used);
  row.disk_total = static_cast<std::uint64_t>(*disk_total);
  return row;
}

void Samples::add(std::string const& sandbox, wire::json::value const& said) {
  auto const* object = said.if_object();
  if (object && busy_.size() < waiting_max && number_in(*object, "commands", 1e6).value_or(0) > 0)
    busy_.insert(sandbox);
  if (waiting_.size() >= waiting_max) return;
  if (auto row = sample_of(sandbox, said, base::system_clock().wall_now()))
    waiting_.push_back(std::move(*row));
}

store::asio::awaitable<void> Samples::run() {
  while (true) {
    co_await async::sleep_for(500ms);
    if (!busy_.empty()) {
      std::vector<std::string> busy(busy_.begin(), busy_.end());
      busy_.clear();
      auto const touched =
          co_await store_.sandboxes.touch(std::move(busy), base::system_clock().in(3s));
      if (!touched) base::log::debug("use_not_noted", {{"why", touched.error().message()}});
    }
    if (waiting_.empty()) continue;
    auto batch = std::exchange(waiting_, {});
    if (SPACE_FAULT("controller.samples.before_write")) continue;
    auto const written = co_await store_.metrics.add(std::move(batch), base::system_clock().in(3s));
    // Lost samples are a gap in a graph, not worth keeping through an outage.
    if (!written) base::log::debug("samples_lost", {{"why", written.error().message()}});
  }
}

}  // namespace controller
