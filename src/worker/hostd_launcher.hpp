#pragma once

#include "hostd/client.hpp"
#include "vmm/vmm.hpp"

namespace worker {

/// VMM processes by way of space-hostd.
class HostdLauncher final : public vmm::Launcher {
 public:
  explicit HostdLauncher(hostd::Client hostd) : hostd_(std::move(hostd)) {}

  async::Task<vmm::Process> start(vmm::BootSpec spec) override;
  async::Task<vmm::Process> attach(std::uint32_t slot) override;
  async::Task<vmm::ProcessEnd> end(std::uint32_t slot) override;

 private:
  hostd::Client hostd_;
};

}  // namespace worker
