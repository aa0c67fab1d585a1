#include "worker/hostd_launcher.hpp"

namespace worker {
namespace {

vmm::Process process_of(hostd::Vmm started) {
  return {started.pid,
          std::move(started.pidfd),
          std::move(started.qmp),
          std::move(started.console),
          std::move(started.errors)};
}

hostd::MachineStart start_of(vmm::MachineStart start) {
  switch (start) {
    case vmm::MachineStart::boot:
      break;
    case vmm::MachineStart::record:
      return hostd::MachineStart::record;
    case vmm::MachineStart::restore:
      return hostd::MachineStart::restore;
  }
  return hostd::MachineStart::boot;
}

// What one sandbox may move, so that a flood of it leaves the disk and the packet path to its
// neighbours. Far above what a build or a download needs, and below what the emulator's or the
// kernel's queues carry.
constexpr std::uint64_t disk_bytes_per_s_max = 256ULL << 20;
constexpr std::uint64_t disk_ops_per_s_max = 20'000;
constexpr std::uint64_t net_bytes_per_s_max = 64ULL << 20;  // each direction

hostd::Machine machine_of(vmm::BootSpec const& spec) {
  hostd::Machine machine;
  machine.disk_bytes_per_s_max = disk_bytes_per_s_max;
  machine.disk_ops_per_s_max = disk_ops_per_s_max;
  machine.net_bytes_per_s_max = net_bytes_per_s_max;
  machine.accelerator =
      spec.accelerator == vmm::Accelerator::kvm ? hostd::Accelerator::kvm : hostd::Accelerator::tcg;
  machine.start = start_of(spec.start);
  machine.vcpus = spec.vcpus;
  machine.memory_mib = spec.memory_mib;
  machine.tsc_khz = spec.tsc_khz;
  return machine;
}

}  // namespace

async::Task<vmm::Process> HostdLauncher::start(vmm::BootSpec spec) {
  auto const sandbox = base::SandboxId::parse(spec.sandbox);
  if (!sandbox) co_return std::unexpected(sandbox.error());
  // Shared, because the call runs on another thread and a std::function is copyable.
  auto const shared = std::make_shared<vmm::BootSpec>(std::move(spec));
  auto started = co_await async::blocking([client = hostd_, shared, id = *sandbox] {
    return client.start_vmm(shared->slot,
                            id,
                            shared->epoch,
                            machine_of(*shared),
                            os::FdRef(shared->disk),
                            os::FdRef(shared->memory));
  });
  if (!started) co_return std::unexpected(std::move(started.error()));
  co_return process_of(std::move(*started));
}

async::Task<vmm::Process> HostdLauncher::attach(std::uint32_t slot) {
  auto attached =
      co_await async::blocking([client = hostd_, slot] { return client.attach_vmm(slot); });
  if (!attached) co_return std::unexpected(std::move(attached.error()));
  co_return process_of(std::move(*attached));
}

async::Task<vmm::ProcessEnd> HostdLauncher::end(std::uint32_t slot) {
  auto const ended =
      co_await async::blocking([client = hostd_, slot] { return client.end_vmm(slot); });
  if (!ended && ended.error().code() == base::Code::not_found) co_return vmm::ProcessEnd{};
  if (!ended) co_return std::unexpected(ended.error());
  co_return vmm::ProcessEnd{ended->wait_status, ended->out_of_memory};
}

}  // namespace worker
