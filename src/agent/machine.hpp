#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace agent {

/// What POST /init changes outside this process. Nothing here is fatal: a machine with an odd file
/// system still serves, and the log says what was left out.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual void step_clock(base::WallTime time) = 0;
  /// Credits the bytes to the kernel's pool and makes it reseed at once: clones of one snapshot
  /// must not draw the same numbers.
  virtual void credit_entropy(std::string_view bytes) = 0;
  virtual void set_hostname(std::string const& hostname) = 0;
  virtual void set_machine_id(std::string const& machine_id) = 0;
  /// Adds an authority (PEM) to those that the guest's programs trust; takes the place of the one
  /// that was added before.
  virtual void trust_authority(std::string const& pem) = 0;
  /// Gives the root file system what its disk has beyond it.
  virtual void grow_root() = 0;
  /// Ends the connections to the world of a machine that was saved with them.
  virtual void end_connections() = 0;
};

/// The machine whose PID 1 we are.
class GuestMachine final : public Machine {
 public:
  void step_clock(base::WallTime time) override;
  void credit_entropy(std::string_view bytes) override;
  void set_hostname(std::string const& hostname) override;
  void set_machine_id(std::string const& machine_id) override;
  void trust_authority(std::string const& pem) override;
  void grow_root() override;
  void end_connections() override;
};

/// A process on somebody else's machine (tests): touches nothing.
class NoMachine final : public Machine {
 public:
  void step_clock(base::WallTime) override {}

  void credit_entropy(std::string_view) override {}

  void set_hostname(std::string const&) override {}

  void set_machine_id(std::string const&) override {}

  void trust_authority(std::string const&) override {}

  void grow_root() override {}

  void end_connections() override {}
};

/// PID 1, from the kernel's hand-over in the initramfs to a machine that can run commands: kernel
/// file systems, modules, the disk as root, devices, network, /etc. Fails only when there is no
/// root file system; whatever else does not work is logged and left.
base::Result<void> boot_machine();

/// Where PID 1 finds the disk that holds the root file system.
inline constexpr char root_disk[] = "/dev/vda";

/// Blocks of an ext4 file system and their size, from the 1 KiB that begins at byte 1024 of its
/// disk; nothing when that is no ext4 file system.
struct Ext4Size {
  std::uint64_t blocks = 0;
  std::uint64_t block_bytes = 0;
};

std::optional<Ext4Size> ext4_size(std::string_view superblock);

/// Makes this process the last one that the kernel takes when memory or time run short, so that a
/// machine full of running processes can still be asked, and a deadline still kills. For the
/// calling thread and what it starts later; those have to undo what is true here.
struct Protection {
  bool oom_score = false;
  bool real_time = false;
};

Protection protect_agent();

/// Ends the machine: asks every process to stop, waits a little, kills the rest, writes everything
/// to disk and switches off. Does not return.
[[noreturn]] void power_off();

/// The text of /etc/hosts for a machine of that name: `old` with our own lines renewed.
std::string hosts_text(std::string_view old, std::string_view hostname);

/// Where trust_authority() puts all authorities, the guest's own ones included.
inline constexpr char trusted_bundle[] = "/etc/ssl/certs/ca-certificates.crt";

/// The text of that file: `old` with our own part renewed.
std::string bundle_text(std::string_view old, std::string_view pem);

}  // namespace agent
