#include "cli/host_facts.hpp"

#include "cli/supervisor.hpp"

#include <sys/utsname.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

/// The rest of the first line that starts with `key`, blanks trimmed.
std::string field_of(std::string const& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    line.erase(0, key.size());
    auto const start = line.find_first_not_of(" \t:");
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

double mib_of_kib(std::string const& text) {
  double kib = 0;
  std::istringstream(text) >> kib;
  return kib / 1024;
}

}  // namespace

json::object host_facts() {
  utsname names{};
  uname(&names);
  std::ifstream load("/proc/loadavg");
  double one_minute = 0;
  load >> one_minute;
  return {
      {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
      {"processor", field_of("/proc/cpuinfo", "model name")},
      {"kernel", std::string(static_cast<char const*>(names.release))},
      {"memory_mib", static_cast<std::int64_t>(mib_of_kib(field_of("/proc/meminfo", "MemTotal")))},
      {"load", one_minute}};
}

json::object program_memory_mib(wire::Config const& config) {
  json::object out;
  auto state = read_supervisor(config);
  if (!state) return out;
  out["space-supervisor"] =
      mib_of_kib(field_of(fmt::format("/proc/{}/status", state->pid), "VmRSS"));
  for (auto const& service : state->services) {
    if (service.pid > 0)
      out[service.name] =
          mib_of_kib(field_of(fmt::format("/proc/{}/status", service.pid), "VmRSS"));
  }
  return out;
}

std::vector<double> machine_memory_mib(wire::Config const& config) {
  std::vector<double> out;
  std::error_code failed;
  for (auto const& entry : fs::directory_iterator("/proc", failed)) {
    auto const name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::uint32_t user = 0;
    std::istringstream(field_of(entry.path() / "status", "Uid")) >> user;
    if (user < config.slot_uid_base || user >= config.slot_uid_base + config.slots_max) continue;
    auto const size = mib_of_kib(field_of(entry.path() / "smaps_rollup", "Pss"));
    if (size > 0) out.push_back(size);
  }
  return out;
}

}  // namespace cli
