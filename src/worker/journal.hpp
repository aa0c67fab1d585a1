#pragma once

#include "wire/codec.hpp"
#include "wire/worker.hpp"

#include <string>
#include <vector>

namespace worker {

/// One sandbox as this worker will need it after its own death: a file, `<dir>/<sandbox>.json`
/// (0600), written before the effects that it announces. The phase says what must be done with it
/// at the next start:
///   starting  half-made: undo it          running  adopt it, or say why it ended
///   ending    go on with the end          ended    nothing is left; kept 10 minutes for those who
///   ask
///   paused    as running, its machine stands still    suspended  nothing runs; see StateStore
///   suspending  go on with it when its state is complete, else let the machine go on
///   restoring   undo it: it is suspended
///   warm      a stopped machine that nobody has claimed: end it
struct JournalEntry {
  std::string phase;
  std::string sandbox;
  std::uint64_t epoch = 0;
  std::uint32_t slot = 0;
  std::string build;
  std::uint32_t vcpus = 0;
  std::uint32_t memory_mib = 0;
  std::uint32_t disk_mib = 0;
  std::uint64_t reserved_memory_mib = 0;  // with what the VMM needs beside its guest
  std::string init_key;                   // without it no later call to the agent's /init
  wire::EffectivePolicy policy;
  std::vector<wire::Lease> credentials;  // ciphertext
  bool internal = false;                 // nobody's sandbox: a proof, a recording, a warm machine
  std::string machine;                   // under which id hostd knows it; "" = the sandbox's
  std::uint64_t machine_epoch = 0;       // 0 = the sandbox's
  std::string started_by;                // "" = cold boot
  std::string base;                      // key of the base snapshot whose memory it maps
  bool was_paused = false;               // before it began to be suspended
  std::uint64_t suspended_bytes = 0;
  std::string lost_reason;  // why the suspended state cannot be used
  std::vector<wire::TimelineStep> timeline;
  // ending and ended:
  std::string cause;
  std::string detail;
  std::string error_code;  // of a failed start
  std::string console_tail;
  std::string ended_at;
  std::int64_t ended_unix_ms = 0;

  static bool required(std::string_view name) {
    return name == "phase" || name == "sandbox" || name == "epoch";
  }

  std::string check() const;
};
BOOST_DESCRIBE_STRUCT(JournalEntry,
                      (),
                      (phase,
                       sandbox,
                       epoch,
                       slot,
                       build,
                       vcpus,
                       memory_mib,
                       disk_mib,
                       reserved_memory_mib,
                       init_key,
                       policy,
                       credentials,
                       internal,
                       machine,
                       machine_epoch,
                       started_by,
                       base,
                       was_paused,
                       suspended_bytes,
                       lost_reason,
                       timeline,
                       cause,
                       detail,
                       error_code,
                       console_tail,
                       ended_at,
                       ended_unix_ms))

/// Blocking; call through async::blocking. Copyable, stateless.
class Journal {
 public:
  explicit Journal(std::string dir) : dir_(std::move(dir)) {}

  /// Makes the directory (0700) and removes half-written files.
  base::Result<void> open() const;
  /// Replaces the sandbox's file as a whole. Not synced: what the journal tells of lives no longer
  /// than the host's power, except disks, and a disk that no entry claims is removed at the
  /// worker's start.
  base::Result<void> write(JournalEntry const& entry) const;
  /// The same, and synced: for what outlives the host's power.
  base::Result<void> write_durably(JournalEntry const& entry) const;
  base::Result<void> remove(std::string const& sandbox) const;

  struct Loaded {
    std::vector<JournalEntry> entries;
    std::vector<std::string> broken;  // renamed to <name>.broken, for an operator
  };

  /// Fails when the directory cannot be read: then nobody knows what runs, and nothing may be
  /// killed.
  base::Result<Loaded> load() const;

 private:
  base::Result<void> write(JournalEntry const& entry, bool sync) const;

  std::string dir_;
};

}  // namespace worker
