#include "worker/host.hpp"

#include "vmm/qemu_command.hpp"

#include <fstream>
#include <sstream>

#include <unistd.h>

namespace worker {
namespace {

std::uint64_t host_memory_mib() {
  auto const pages = ::sysconf(_SC_PHYS_PAGES);
  auto const page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0
             ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) >> 20U
             : 0;
}

std::uint64_t cores() {
  return static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

Amounts totals(wire::Config const& config) {
  return {.memory_mib = config.memory_mib_max ? config.memory_mib_max : host_memory_mib() / 4 * 3,
          .vcpus = config.vcpus_max ? config.vcpus_max : cores() * 16,
          .disk_mib = 0,  // measured when the pool is opened
          .slots = config.slots_max};
}

std::string worker_dir(wire::Config const& config) {
  return config.data_dir + "/worker";
}

}  // namespace

Host::Host(boost::asio::any_io_executor on, wire::Config from)
    : config(std::move(from)),
      executor(on),
      hostd(config.hostd_socket()),
      launcher(hostd, rates_of(config), config.translation_cache_mib),
      driver(on,
             launcher,
             {.bytes_per_s = rates_of(config).disk_bytes_per_s,
              .ops_per_s = rates_of(config).disk_ops_per_s}),
      engine(worker_dir(config) + "/engine.json"),
      journal(worker_dir(config) + "/sandboxes"),
      disks(config.pool()),
      slots(on, hostd, config.slots_max, 4),
      dialer(hostd),
      boots(on, cores()),
      ended(on),
      audit(on, worker_dir(config) + "/audit"),
      reflections(on, worker_dir(config) + "/reflected.json"),
      broker(on, [path = config.broker_socket()] { return net::connect_unix(path); }),
      capacity(totals(config)),
      accelerator(worker_dir(config) + "/accelerator.json", config.guest()),
      suspended(config.pool() + "/suspended", worker_dir(config) + "/state.key"),
      snapshots(config.pool() + "/snapshots", worker_dir(config) + "/state.key"),
      base_files(config.pool()) {}

async::Task<std::string> machine_identity(Host& host) {
  if (!host.identity.empty()) co_return host.identity;
  auto found = co_await async::blocking(
      [guest = guest_under(host.accelerator.guest(), host.driver.engine())] {
        return identity_of(guest, vmm::qemu_binary);
      });
  if (found) host.identity = *found;
  co_return found;
}

std::uint64_t Host::overhead_mib(vmm::Accelerator by) const noexcept {
  return vmm::overhead_mib(by == vmm::Accelerator::kvm, config.translation_cache_mib);
}

std::uint64_t resident_bytes_of(std::int32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  file >> size >> resident;
  return file ? resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

std::chrono::milliseconds cpu_time_of(std::int32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // The name in parentheses may hold anything; the fields are counted from behind it.
  auto const after = line.rfind(')');
  if (after == std::string::npos) return {};
  std::istringstream fields(line.substr(after + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field)
    fields >> skipped;
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  fields >> user >> system;
  auto const ticks = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
  return std::chrono::milliseconds(fields ? (user + system) * 1000 / ticks : 0);
}

}  // namespace worker
