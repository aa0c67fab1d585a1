#pragma once

#include "vmm/vmm.hpp"
#include "wire/codec.hpp"
#include "worker/seal.hpp"

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace worker {

/// What makes one machine as good as another for a sandbox.
struct MachineShape {
  std::string build;
  vmm::Accelerator accelerator = vmm::Accelerator::tcg;
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;

  friend auto operator<=>(MachineShape const&, MachineShape const&) = default;
};

/// A file as it was when it was looked at.
struct FileMark {
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;
  std::int64_t changed_ns = 0;  // of the content

  friend bool operator==(FileMark const&, FileMark const&) = default;
};

/// A verified snapshot that machines go on from. The files stay while somebody holds this.
struct BaseSnapshot {
  MachineShape shape;
  std::string key;
  std::uint64_t tsc_khz = 0;
  std::string init_key;  // that its agent knows
  std::string state;     // of the devices, as it was verified: no file is read again
  os::Fd memory;         // read-only
  os::Fd disk;           // read-only
  FileMark memory_mark;
  FileMark disk_mark;

  /// The files are still those that were verified. Blocking, a few microseconds.
  base::Result<void> check_unchanged() const;
};

/// A snapshot that is being made: a directory of its own until it is complete.
struct BaseRecording {
  MachineShape shape;
  std::string dir;
  os::Fd memory;  // read-write, of the machine's size
  os::Fd state;   // read-write, empty
  std::string init_key;
};

/// The base snapshots of a pool: `snapshots/base-<key>/{memory,state,disk.img,manifest.json}`. The
/// key stands for everything that a snapshot depends on, so what an upgrade made useless is simply
/// not found, and removed at the next start. Blocking; copyable.
///
/// What is believed: the manifest by its MAC (the host's own key), the state by its hash in the
/// manifest, at every load and then kept in memory; memory by its hash once per load, which is once
/// per life of the worker, and then by size, inode and time; the disk by size and time alone, as
/// the template's image that it comes from. State and manifest are parsed by programs, so they must
/// be ours; memory and disk are bytes of the guest, where the hash finds damage.
class BaseFiles {
 public:
  explicit BaseFiles(std::string pool) : dir_(std::move(pool) + "/snapshots") {}

  /// `identity`: what this host makes machines of (identity_of). Removes what was half-made and
  /// what another identity left.
  base::Result<void> open(std::string const& key_file, std::string identity);

  bool opened() const noexcept { return key_.has_value(); }

  std::string key_of(MachineShape const& shape) const;

  base::Result<BaseRecording> begin(MachineShape const& shape) const;
  /// Of a recording whose machine has been captured and is gone, with its disk at `dir`/disk.img.
  /// Durable when it returns.
  base::Result<void> keep(BaseRecording const& recording, std::uint64_t tsc_khz) const;
  void discard(BaseRecording const& recording) const;

  /// not_found: there is none. Anything else says why it cannot be used.
  base::Result<std::shared_ptr<BaseSnapshot const>> load(MachineShape const& shape,
                                                         std::uint64_t tsc_khz) const;
  /// Nobody starts from it any more; manifest, state and reason stay for people.
  void set_aside(MachineShape const& shape, std::string const& reason) const;
  /// Its template is gone. Machines that live on it keep the file.
  void remove(MachineShape const& shape) const;
  /// What there is, by its manifests.
  std::vector<MachineShape> shapes() const;

 private:
  std::string dir_;
  std::string identity_;
  std::optional<SealKey> key_;
};

/// Everything of this host that a snapshot depends on beside the template and the sizes: the
/// guest's kernel and initramfs, the VMM's program, its command line, the processor. Blocking:
/// reads the program.
base::Result<std::string> identity_of(std::string const& guest_fingerprint,
                                      std::string const& vmm_program);

}  // namespace worker
