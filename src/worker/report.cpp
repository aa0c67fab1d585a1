#include "worker/worker.hpp"

/// What a worker tells about itself and its sandboxes.
namespace worker {

std::vector<wire::WorkerSandbox> Worker::list() const {
  std::vector<wire::WorkerSandbox> out;
  for (auto const& [id, sandbox] : sandboxes_) {
    if (!sandbox->internal()) out.push_back(sandbox->describe());
  }
  return out;
}

wire::NodeReport Worker::report() const {
  struct Limit {
    hostd::FeatureBits bit;
    char const* name;
  };

  constexpr std::array<Limit, 4> limits{{{hostd::limits_memory, "memory"},
                                         {hostd::limits_cpu, "cpu"},
                                         {hostd::limits_pids, "pids"},
                                         {hostd::limits_io, "io"}}};
  auto const narrow = [](std::uint64_t value) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, UINT32_MAX));
  };
  wire::NodeReport out;
  auto const decided = host_.accelerator.decided();
  out.name = host_.config.node_name;
  out.driver = "qemu";
  out.accelerator = decided ? vmm::name_of(*decided) : "undecided";
  out.accelerator_proof = host_.accelerator.sentence();
  out.boundary = decided == vmm::Accelerator::kvm && host_.accelerator.proven();
  for (auto const& limit : limits) {
    if ((host_.hostd_features & limit.bit) == 0) out.unlimited.emplace_back(limit.name);
  }
  auto const& total = host_.capacity.total();
  auto const& used = host_.capacity.used();
  out.memory_mib_total = narrow(total.memory_mib);
  out.memory_mib_used = narrow(used.memory_mib);
  out.vcpus_total = narrow(total.vcpus);
  out.vcpus_used = narrow(used.vcpus);
  out.disk_mib_total = total.disk_mib;
  out.disk_mib_used = used.disk_mib;
  out.slots_total = narrow(total.slots);
  out.slots_used = narrow(used.slots);
  out.builds = host_.disks.builds();
  out.disk_clone = name_of(host_.clone_method);
  return out;
}

}  // namespace worker
