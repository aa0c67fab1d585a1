#pragma once

#include "vmm/firecracker.hpp"
#include "vmm/qemu.hpp"
#include "wire/codec.hpp"

namespace worker {

/// Whether Firecracker may run machines here, and how that is known: a boot of the real guest to
/// its agent's first answer, once per life of the host's kernel and guest. `engine.json` beside
/// `accelerator.json`. Files are read and written blocking, at start and once per proof.
struct EngineRecord {
  std::string boot_id;
  std::string guest;  // AcceleratorChoice::guest()
  bool firecracker = false;
  std::string sentence;
};
BOOST_DESCRIBE_STRUCT(EngineRecord, (), (boot_id, guest, firecracker, sentence))

class EngineChoice {
 public:
  explicit EngineChoice(std::string file) : file_(std::move(file)) {}

  /// Blocking. `guest` is the fingerprint of the guest's parts.
  void open(std::string guest);

  /// A boot is to tell: the binary is there, machines may run under KVM, and none has been tried.
  bool to_be_tried(bool found, std::optional<vmm::Accelerator> decided) const noexcept;

  /// Blocking.
  base::Result<void> record(bool works, std::string sentence);

  vmm::Engine engine() const noexcept {
    return works_ ? vmm::Engine::firecracker : vmm::Engine::qemu;
  }

  /// For people; "" while nothing was tried.
  std::string const& sentence() const noexcept { return sentence_; }

 private:
  std::string file_;
  std::string boot_id_;
  std::string guest_;
  bool tried_ = false;
  bool works_ = false;
  std::string sentence_;
};

/// The drivers of this host behind one: new machines run under the engine in use, found ones under
/// theirs.
class EngineDriver final : public vmm::Driver {
 public:
  EngineDriver(boost::asio::any_io_executor executor,
               vmm::Launcher& launcher,
               vmm::DiskLimits limits)
      : launcher_(launcher), qemu_(executor, launcher), firecracker_(executor, launcher, limits) {}

  /// For machines under KVM; software emulation is QEMU's.
  void use(vmm::Engine engine) noexcept { engine_ = engine; }

  vmm::Engine engine() const noexcept { return engine_; }

  async::Task<std::unique_ptr<vmm::Vmm>> boot(vmm::BootSpec spec) override;
  async::Task<std::unique_ptr<vmm::Vmm>> adopt(std::uint32_t slot) override;

 private:
  vmm::Launcher& launcher_;
  vmm::QemuDriver qemu_;
  vmm::FirecrackerDriver firecracker_;
  vmm::Engine engine_ = vmm::Engine::qemu;
};

/// What of the guest and its engine a kept machine depends on, as identity_of() takes it: states of
/// one engine are nothing to the other.
std::string guest_under(std::string guest, vmm::Engine engine);

}  // namespace worker
