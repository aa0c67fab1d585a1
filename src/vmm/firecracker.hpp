#pragma once

#include "vmm/vmm.hpp"

namespace vmm {

/// What one machine may move on its disk in a second, by Firecracker's own limiter; 0 = no limit.
struct DiskLimits {
  std::uint64_t bytes_per_s = 0;
  std::uint64_t ops_per_s = 0;
};

/// Firecracker with KVM, devices on MMIO. space-hostd starts it in the same jail as QEMU; here is
/// what talks to the running process. docs/decisions/0010-firecracker.md.
///
/// What differs from QEMU behind the same interface: a capture writes all of the guest's memory to
/// the memory file (so resume() after it spoils nothing); a disk that cannot be written is told to
/// the guest as an error of its device, so stalled() is never true; the state of devices cannot be
/// had without all of memory, so save_devices() is refused, and with it a suspend.
class FirecrackerDriver final : public Driver {
 public:
  FirecrackerDriver(asio::any_io_executor executor, Launcher& launcher, DiskLimits limits = {})
      : executor_(std::move(executor)), launcher_(launcher), limits_(limits) {}

  async::Task<std::unique_ptr<Vmm>> boot(BootSpec spec) override;
  async::Task<std::unique_ptr<Vmm>> adopt(std::uint32_t slot) override;
  /// Adopts what the launcher has found in `slot`.
  async::Task<std::unique_ptr<Vmm>> take_over(std::uint32_t slot, Process process);

 private:
  asio::any_io_executor executor_;
  Launcher& launcher_;
  DiskLimits limits_;
};

namespace firecracker {

/// explain_exit() for a Firecracker: it has a status for each way to die, and one (0) for a guest
/// that reset, halted or panicked, which only the console tells apart.
Exit exit_of(ExitEvidence evidence);

}  // namespace firecracker
}  // namespace vmm
