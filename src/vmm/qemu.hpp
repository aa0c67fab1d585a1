#pragma once

#include "vmm/vmm.hpp"

namespace vmm {

/// QEMU's `microvm` machine, with KVM or in software. Its command line is space-hostd's
/// (qemu_command.hpp); here is what talks to the running process.
class QemuDriver final : public Driver {
 public:
  QemuDriver(asio::any_io_executor executor, Launcher& launcher)
      : executor_(std::move(executor)), launcher_(launcher) {}

  async::Task<std::unique_ptr<Vmm>> boot(BootSpec spec) override;
  async::Task<std::unique_ptr<Vmm>> adopt(std::uint32_t slot) override;
  /// Adopts what the launcher has found in `slot`.
  base::Result<std::unique_ptr<Vmm>> take_over(std::uint32_t slot, Process process);

 private:
  asio::any_io_executor executor_;
  Launcher& launcher_;
};

}  // namespace vmm
