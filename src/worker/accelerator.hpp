#pragma once

#include "vmm/vmm.hpp"
#include "wire/codec.hpp"

#include <optional>
#include <string>

namespace worker {

/// What one boot of the guest to its agent's first answer has shown on this host;
/// `accelerator.json`. It holds for one life of the host's kernel and one guest: a device file that
/// opens proves nothing, nor does yesterday's kernel.
struct ProofRecord {
  std::string boot_id;
  std::string guest;        // fingerprint of kernel and initramfs
  std::string accelerator;  // kvm, tcg
  std::string sentence;
};
BOOST_DESCRIBE_STRUCT(ProofRecord, (), (boot_id, guest, accelerator, sentence))

/// Which accelerator this worker uses, and how it knows. Files are read and written blocking, at
/// start and once per proof.
class AcceleratorChoice {
 public:
  AcceleratorChoice(std::string file, std::string guest_dir)
      : file_(std::move(file)), guest_dir_(std::move(guest_dir)) {}

  /// Blocking: reads the guest once (about 0.2 s) and what was proven before. `wanted` is
  /// Config::accelerator.
  base::Result<void> open(std::string const& wanted, bool kvm_device);

  /// Nothing: KVM might work, and only a boot can tell.
  std::optional<vmm::Accelerator> decided() const noexcept { return decided_; }

  /// A machine under `accelerator` has answered, or (for tcg, `sentence` says it) could not under
  /// KVM. Blocking.
  base::Result<void> record(vmm::Accelerator accelerator, std::string sentence);

  /// True once a boot has confirmed the choice.
  bool proven() const noexcept { return proven_; }

  /// Fingerprint of the guest's kernel and initramfs.
  std::string const& guest() const noexcept { return guest_; }

  /// How it was decided, for people.
  std::string const& sentence() const noexcept { return sentence_; }

 private:
  std::string file_;
  std::string guest_dir_;
  std::string boot_id_;
  std::string guest_;
  std::optional<vmm::Accelerator> decided_;
  bool proven_ = false;
  std::string sentence_ = "not decided yet";
};

}  // namespace worker
