#pragma once

#include "hostd/client.hpp"
#include "vmm/vmm.hpp"
#include "wire/config.hpp"

namespace worker {

/// What one sandbox may move in a second; 0 = no limit.
struct Rates {
  std::uint64_t disk_bytes_per_s = 0;
  std::uint64_t disk_ops_per_s = 0;
  std::uint64_t net_bytes_per_s = 0;  // each direction
};

Rates rates_of(wire::Config const& config) noexcept;

/// VMM processes by way of space-hostd.
class HostdLauncher final : public vmm::Launcher {
 public:
  /// `tb_size_mib`: the emulator's translation cache.
  HostdLauncher(hostd::Client hostd,
                Rates rates,
                std::uint32_t tb_size_mib = hostd::Machine{}.tb_size_mib)
      : hostd_(std::move(hostd)), rates_(rates), tb_size_mib_(tb_size_mib) {}

  async::Task<vmm::Process> start(vmm::BootSpec spec) override;
  async::Task<vmm::Process> attach(std::uint32_t slot) override;
  async::Task<vmm::ProcessEnd> end(std::uint32_t slot) override;

 private:
  hostd::Client hostd_;
  Rates rates_;
  std::uint32_t tb_size_mib_;
};

}  // namespace worker
