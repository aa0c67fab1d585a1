#include "worker/worker.hpp"

#include <sys/stat.h>

/// What a worker tells about itself and its sandboxes.
namespace worker {
namespace {

using namespace std::chrono_literals;

/// An administrator's word that what no database claims may go: a file, touched. It holds for ten
/// minutes, so that one which is forgotten there releases nothing a year later.
bool is_released(std::string const& path) {
  constexpr std::chrono::seconds holds = 10min;
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  auto const now = base::system_clock().wall_now();
  auto const touched = base::WallTime(std::chrono::seconds(found.st_mtim.tv_sec));
  return touched <= now + 1s && now - touched < holds;
}

}  // namespace

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
  out.driver = vmm::name_of(host_.driver.engine());
  out.accelerator = decided ? vmm::name_of(*decided) : "undecided";
  out.accelerator_proof = host_.accelerator.sentence();
  if (!host_.engine.sentence().empty()) out.accelerator_proof += "; " + host_.engine.sentence();
  out.boundary = decided == vmm::Accelerator::kvm && host_.accelerator.proven();
  for (auto const& limit : limits) {
    if ((host_.hostd_features & limit.bit) == 0) out.unlimited.emplace_back(limit.name);
  }
  auto const& total = host_.capacity.total();
  // What waits for nobody in particular gives way at once.
  auto const ahead = held_ahead();
  auto used = host_.capacity.used();
  used.memory_mib -= ahead.memory_mib;
  used.vcpus -= ahead.vcpus;
  used.disk_mib -= ahead.disk_mib;
  used.slots -= ahead.slots;
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
  out.draining = draining_;
  out.reflected = host_.reflections.all();
  out.release_unclaimed = is_released(host_.config.data_dir + "/worker/release-unclaimed");
  out.base_snapshots = host_.bases.report();
  for (auto const& [shape, demand] : demand_) {
    wire::WarmReport warm{shape.build, 0, warm_target(shape)};
    for (auto const& [id, sandbox] : sandboxes_) {
      bool const ready = sandbox->state() == Sandbox::State::warm && sandbox->shape() == shape;
      warm.ready += ready ? 1 : 0;
    }
    if (warm.ready > 0 || warm.target > 0) out.warm.push_back(std::move(warm));
  }
  return out;
}

}  // namespace worker
