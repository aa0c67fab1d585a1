#pragma once

#include "integration/hostd_fixture.hpp"
#include "vmm/vmm.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>

namespace test {

/// Why no guest can be started here; "" when one can. Tests skip with it.
std::string why_no_guest(Installation const& installation);

/// An ext4 file system with nothing in it: the agent stays in memory, and answering is all that is
/// asked of it. False when mke2fs (e2fsprogs) failed.
[[nodiscard]] bool make_empty_disk(std::string const& image);

/// GET /health of the agent through the slot's network; "" when nothing came within the limit.
std::string ask_agent(hostd::Client const& client,
                      std::uint32_t slot,
                      std::chrono::milliseconds limit = std::chrono::seconds(2));

/// Did the agent answer, at once or within the limit?
boost::asio::awaitable<bool> agent_answers(hostd::Client client,
                                           std::uint32_t slot,
                                           std::chrono::seconds limit = std::chrono::seconds(60));

/// Machines straight on a space-hostd, without a worker.
class WithMachines : public ::testing::Test {
 protected:
  static constexpr std::uint32_t memory_mib = 256;

  void SetUp() override;

  std::string path(std::string const& name) const { return installation_.directory() + "/" + name; }

  hostd::Client client() const { return hostd_->client(); }

  os::Fd open(std::string const& name, int flags) const;

  /// Epoch 1, an id of its own, `disk` below the installation's directory.
  vmm::BootSpec boot_spec(std::uint32_t slot, std::string const& disk) const;

  /// A started machine in a slot of its own; null after a failure, which the test then has.
  boost::asio::awaitable<std::unique_ptr<vmm::Vmm>> start(vmm::BootSpec spec);

  Installation installation_;
  std::optional<Hostd> hostd_;

 private:
  std::vector<std::unique_ptr<vmm::Launcher>> launchers_;
  std::uint64_t tsc_khz_ = 0;
};

}  // namespace test
