#include "vmm/vmm.hpp"

namespace vmm {
namespace {

std::unexpected<base::Error> not_offered() {
  return base::fail(base::Code::internal, "the driver of this host cannot do that");
}

}  // namespace

async::Task<std::string> Vmm::save_devices(base::Deadline) {
  co_return not_offered();
}

async::Task<std::uint64_t> Vmm::memory_address(base::Deadline) {
  co_return not_offered();
}

async::Task<bool> Vmm::stopped(base::Deadline) {
  co_return not_offered();
}

}  // namespace vmm
