#pragma once

#include "wire/worker.hpp"
#include "worker/journal.hpp"
#include "worker/seal.hpp"

#include <optional>
#include <string>
#include <vector>

namespace worker {

/// What is kept of a stopped machine, beside the files themselves.
struct SavedMachine {
  std::uint32_t format = 1;
  std::string name;      // of the suspended sandbox or of the snapshot
  std::string identity;  // of the host's VMM, processor and guest: it fits no other
  std::string accelerator;
  std::string build;
  std::uint32_t vcpus = 0;
  std::uint32_t memory_mib = 0;
  std::uint32_t disk_mib = 0;
  std::uint64_t tsc_khz = 0;
  std::string init_key;  // which its agent knows
  std::string base;      // key of the base snapshot whose memory lies below, "" = none
  std::uint64_t base_bytes = 0;
  std::int64_t base_changed_ns = 0;
  std::uint64_t pages_bytes = 0;
  std::string pages_sha256;
  std::uint64_t state_bytes = 0;
  std::string state_sha256;
  std::uint64_t disk_bytes = 0;
  std::int64_t disk_changed_ns = 0;
  double paused_ms = 0;
  JournalEntry entry;  // of a suspended sandbox, as it was

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(SavedMachine,
                      (),
                      (format,
                       name,
                       identity,
                       accelerator,
                       build,
                       vcpus,
                       memory_mib,
                       disk_mib,
                       tsc_khz,
                       init_key,
                       base,
                       base_bytes,
                       base_changed_ns,
                       pages_bytes,
                       pages_sha256,
                       state_bytes,
                       state_sha256,
                       disk_bytes,
                       disk_changed_ns,
                       paused_ms,
                       entry))

/// A saved machine, opened and proven to be what this host wrote.
struct LoadedMachine {
  SavedMachine saved;
  os::Fd memory;  // for reading: the base's, or a file of holes
  os::Fd pages;   // for reading
  os::Fd disk;    // for reading: to be cloned
  std::string state;
};

/// Machines at rest below one directory: `<dir>/<name>/{pages,state,disk.img,base,manifest.json}`.
/// `base` is a hard link of the memory file that the machine was started on, so that nobody can
/// take it away; absent for one that was booted. Blocking; copyable.
///
/// A machine is here as a whole or not at all: it is gathered under a name of its own, synced, and
/// renamed. What is believed: the manifest by its MAC, pages and state by their hashes in it, base
/// and disk (which the guest wrote) by size and time.
class StateStore {
 public:
  StateStore(std::string dir, std::string key_file)
      : dir_(std::move(dir)), key_file_(std::move(key_file)) {}

  /// Makes the directory and removes what was half-made.
  base::Result<void> open();

  /// An empty directory to gather one in. Whatever was gathered before under this name is gone.
  base::Result<std::string> begin(std::string const& name) const;
  /// A file in it, opened for reading and writing.
  static base::Result<os::Fd> create(std::string const& gathering, char const* file);
  /// What is in it now is on the disk, so that a later sync has little to do.
  static base::Result<void> sync(std::string const& gathering, char const* file);
  /// All of it durable, and under its name. Sizes and times of disk and base are filled in, and the
  /// hash of the pages when it is not known.
  /// Errors: exhausted (no room), conflict (there is one of that name).
  base::Result<void> keep(SavedMachine saved) const;
  void discard(std::string const& name) const;

  /// Its manifest alone, proven. not_found: none. Anything else: why it cannot be used.
  base::Result<SavedMachine> look(std::string const& name) const;
  /// All of it, proven, for a host of that identity.
  base::Result<LoadedMachine> load(std::string const& name, std::string const& identity) const;
  /// Gone for good when this succeeds, also after a power cut; absent is fine.
  base::Result<void> remove(std::string const& name) const;
  std::vector<std::string> names() const;

 private:
  base::Result<void> seal(SavedMachine saved, std::string const& gathering) const;

  std::string path(std::string const& name) const { return dir_ + "/" + name; }

  std::string gathering(std::string const& name) const { return dir_ + "/.taking-" + name; }

  std::string dir_;
  std::string key_file_;
  std::optional<SealKey> key_;
};

wire::SnapshotReport report_of(SavedMachine const& saved);

/// May a snapshot be called so? Never a name that base snapshots use.
bool is_snapshot_name(std::string_view name) noexcept;

}  // namespace worker
