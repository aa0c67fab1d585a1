#include "agent/metrics.hpp"

#include "agent/small_files.hpp"
#include "base/clock.hpp"

#include <sys/statvfs.h>

#include <charconv>
#include <cmath>

#include <unistd.h>

namespace agent {
namespace {

struct CpuTicks {
  std::uint64_t total = 0;
  std::uint64_t idle = 0;
};

std::uint64_t number_at(std::string_view text) {
  auto const begin = text.find_first_not_of(" \t");
  std::uint64_t number = 0;
  if (begin != std::string_view::npos)
    std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return number;
}

/// "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guest time is part of
/// user time.
CpuTicks cpu_ticks() {
  auto const stat = read_small_file("/proc/stat").value_or(std::string());
  std::string_view line = std::string_view(stat).substr(0, stat.find('\n'));
  CpuTicks out;
  for (int column = 0; column <= 8; ++column) {
    auto const space = line.find(' ');
    std::string_view const word = line.substr(0, space);
    if (column > 0) {
      auto const ticks = number_at(word);
      out.total += ticks;
      if (column == 4 || column == 5) out.idle += ticks;
    }
    if (space == std::string_view::npos) break;
    line.remove_prefix(line.find_first_not_of(' ', space) == std::string_view::npos
                           ? line.size()
                           : line.find_first_not_of(' ', space));
  }
  return out;
}

double cpu_used_pct() {
  static CpuTicks before;
  auto const now = cpu_ticks();
  auto const total = now.total - before.total;
  auto const idle = now.idle - before.idle;
  before = now;
  if (total == 0) return 0;
  auto const used =
      100.0 * static_cast<double>(total - std::min(idle, total)) / static_cast<double>(total);
  return std::round(used * 100) / 100;
}

/// A figure of /proc/meminfo in bytes.
std::uint64_t meminfo(std::string_view text, std::string_view key) {
  auto const at = text.find(key);
  return at == std::string_view::npos ? 0 : number_at(text.substr(at + key.size())) * 1024;
}

}  // namespace

boost::json::object machine_metrics() {
  auto const text = read_small_file("/proc/meminfo").value_or(std::string());
  auto const total = meminfo(text, "MemTotal:");
  auto const cache = meminfo(text, "\nCached:") + meminfo(text, "\nSReclaimable:");
  auto const not_used = meminfo(text, "\nMemFree:") + meminfo(text, "\nBuffers:") + cache;
  auto const used = total - std::min(total, not_used);
  struct statvfs disk{};
  std::uint64_t disk_total = 0;
  std::uint64_t disk_free = 0;
  if (::statvfs("/", &disk) == 0) {
    disk_total = static_cast<std::uint64_t>(disk.f_blocks) * disk.f_frsize;
    disk_free = static_cast<std::uint64_t>(disk.f_bfree) * disk.f_frsize;
  }
  auto const now = std::chrono::system_clock::to_time_t(base::system_clock().wall_now());
  return {
      {"ts", static_cast<std::int64_t>(now)},
      {"cpu_count", static_cast<std::int64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)))},
      {"cpu_used_pct", cpu_used_pct()},
      {"mem_total", total},
      {"mem_used", used},
      {"mem_cache", cache},
      {"mem_total_mib", total >> 20},
      {"mem_used_mib", used >> 20},
      {"disk_used", disk_total - std::min(disk_total, disk_free)},
      {"disk_total", disk_total},
  };
}

}  // namespace agent
