#include "hostd/validate.hpp"

#include "base/id.hpp"

#include <cstring>

namespace hostd {
namespace {

bool in(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  return value >= least && value <= most;
}

/// 0 is "unlimited"; a limit that small would only ever hang a machine.
bool limit_in(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  return value == 0 || in(value, least, most);
}

std::string_view fault_in_engine(Machine const& machine, bool found) {
  bool const firecracker = machine.engine == Engine::firecracker;
  if (!firecracker && machine.engine != Engine::qemu) return "engine: unknown";
  if (!firecracker) return {};
  if (!found) return "engine: no Firecracker on this host";
  if (machine.accelerator != Accelerator::kvm) return "engine: Firecracker needs KVM";
  if (machine.changed_pages != 0) return "changed_pages: not with Firecracker";
  return {};
}

std::string_view fault_in_machine(Machine const& machine, bool kvm) {
  bool const known =
      machine.accelerator == Accelerator::tcg || machine.accelerator == Accelerator::kvm;
  if (!known) return "accelerator: unknown";
  if (machine.accelerator == Accelerator::kvm && !kvm) return "accelerator: no KVM on this host";
  if (!in(static_cast<std::uint32_t>(machine.start),
          static_cast<std::uint32_t>(MachineStart::boot),
          static_cast<std::uint32_t>(MachineStart::restore)))
    return "start: unknown";
  if (machine.changed_pages > (machine.start == MachineStart::restore ? 1U : 0U))
    return "changed_pages: 0, or 1 for a restore";
  if (!in(machine.vcpus, 1, 32)) return "vcpus: 1 to 32";
  if (!in(machine.memory_mib, 64, 262'144)) return "memory_mib: 64 to 262144";
  if (!in(machine.tb_size_mib, 8, 2048)) return "tb_size_mib: 8 to 2048";
  if (!limit_in(machine.disk_bytes_per_s_max, 65'536, 1'000'000'000'000))
    return "disk_bytes_per_s_max: 0 or 65536 to 10^12";
  if (!limit_in(machine.disk_ops_per_s_max, 10, 1'000'000'000))
    return "disk_ops_per_s_max: 0 or 10 to 10^9";
  if (!limit_in(machine.net_bytes_per_s_max, 8192, 1'000'000'000'000))
    return "net_bytes_per_s_max: 0 or 8192 to 10^12";
  if (!limit_in(machine.tsc_khz, 100'000, 20'000'000)) return "tsc_khz: 0 or 100000 to 20000000";
  return {};
}

std::string_view fault_in_sandbox(std::array<char, 24> const& bytes) {
  std::string_view const text(bytes.data(), ::strnlen(bytes.data(), bytes.size()));
  if (std::any_of(bytes.begin() + static_cast<std::ptrdiff_t>(text.size()),
                  bytes.end(),
                  [](char c) { return c != 0; })) {
    return "sandbox: not zero-padded";
  }
  if (!base::SandboxId::parse(text)) return "sandbox: not an id";
  return {};
}

std::string_view fault_in_passage(Passage const& passage) {
  if (passage.named > 1) return "named: 0 or 1";
  if (passage.count > networks_max) return "count: too many networks";
  for (std::size_t i = 0; i < networks_max; ++i) {
    auto const& [address, bits] = passage.networks[i];
    if (i >= passage.count && (address != 0 || bits != 0)) return "networks: more than counted";
    if (bits > 32) return "networks: a length is 0 to 32";
    auto const beyond = bits == 32 ? 0U : ~0U >> bits;
    if ((address & beyond) != 0) return "networks: bits beyond the length";
  }
  return {};
}

}  // namespace

std::string_view fault_in(Request const& request, Bounds const& bounds) {
  if (request.version != protocol_version) return "version: not spoken here";
  auto const action = request.action;
  if (!in(static_cast<std::uint32_t>(action),
          static_cast<std::uint32_t>(Action::hello),
          static_cast<std::uint32_t>(Action::count_drops))) {
    return "action: unknown";
  }
  bool const of_no_slot = action == Action::hello || action == Action::check_uplink;
  if (of_no_slot ? request.slot != 0 : request.slot >= bounds.slots) return "slot: out of range";
  if (action == Action::dial ? !in(request.port, 1, 65'535) : request.port != 0)
    return "port: 1 to 65535, for dial only";
  if (action == Action::start_vmm) {
    if (request.epoch == 0) return "epoch: at least 1";
    auto const sandbox = fault_in_sandbox(request.sandbox);
    if (!sandbox.empty()) return sandbox;
    auto const engine = fault_in_engine(request.machine, bounds.firecracker);
    return !engine.empty() ? engine : fault_in_machine(request.machine, bounds.kvm);
  }
  if (action == Action::let_through || action == Action::check_rules) {
    auto const passage = fault_in_passage(request.passage);
    if (!passage.empty()) return passage;
  } else if (request.passage.count != 0 || request.passage.named != 0) {
    return "passage: for let_through and check_rules only";
  }
  if (request.epoch != 0) return "epoch: for start_vmm only";
  if (request.sandbox != std::array<char, 24>{}) return "sandbox: for start_vmm only";
  return {};
}

}  // namespace hostd
