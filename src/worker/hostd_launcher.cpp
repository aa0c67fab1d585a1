#include "worker/hostd_launcher.hpp"

namespace worker {
namespace {

vmm::Process process_of(hostd::Vmm started) {
  return {started.pid,
          std::move(started.pidfd),
          std::move(started.qmp),
          std::move(started.console),
          std::move(started.errors),
          std::move(started.exchange)};
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

hostd::Machine machine_of(vmm::BootSpec const& spec, Rates const& rates) {
  hostd::Machine machine;
  machine.disk_bytes_per_s_max = rates.disk_bytes_per_s;
  machine.disk_ops_per_s_max = rates.disk_ops_per_s;
  machine.net_bytes_per_s_max = rates.net_bytes_per_s;
  machine.accelerator =
      spec.accelerator == vmm::Accelerator::kvm ? hostd::Accelerator::kvm : hostd::Accelerator::tcg;
  machine.engine =
      spec.engine == vmm::Engine::firecracker ? hostd::Engine::firecracker : hostd::Engine::qemu;
  machine.start = start_of(spec.start);
  machine.changed_pages = spec.changes ? 1 : 0;
  machine.vcpus = spec.vcpus;
  machine.memory_mib = spec.memory_mib;
  machine.tsc_khz = spec.tsc_khz;
  return machine;
}

}  // namespace

Rates rates_of(wire::Config const& config) noexcept {
  return {.disk_bytes_per_s = std::uint64_t{config.disk_mib_per_s_max} << 20,
          .disk_ops_per_s = config.disk_ops_per_s_max,
          .net_bytes_per_s = std::uint64_t{config.net_mib_per_s_max} << 20};
}

async::Task<vmm::Process> HostdLauncher::start(vmm::BootSpec spec) {
  auto const sandbox = base::SandboxId::parse(spec.sandbox);
  if (!sandbox) co_return std::unexpected(sandbox.error());
  // Shared, because the call runs on another thread and a std::function is copyable.
  auto const shared = std::make_shared<vmm::BootSpec>(std::move(spec));
  auto started = co_await async::blocking(
      [client = hostd_, rates = rates_, tb_size_mib = tb_size_mib_, shared, id = *sandbox] {
        auto machine = machine_of(*shared, rates);
        machine.tb_size_mib = tb_size_mib;
        return client.start_vmm(shared->slot,
                                id,
                                shared->epoch,
                                machine,
                                os::FdRef(shared->disk),
                                os::FdRef(shared->memory),
                                os::FdRef(shared->changes));
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
