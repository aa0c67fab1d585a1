#pragma once

#include "os/fd.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hostd {

/// Which machine a slot was given to. Written and synced before the machine is started.
struct SlotRecord {
  std::string sandbox;
  std::uint64_t epoch = 0;

  friend bool operator==(SlotRecord const&, SlotRecord const&) = default;
};

struct SlotEnd {
  int wait_status = -1;
  bool out_of_memory = false;
};

/// What the file system holds of one slot: `<run>/hostd/netns/<n>` (the pinned namespace) and
/// `<run>/hostd/slots/<n>/` with record, spent, qmp.sock, console.sock,
/// or console.fifo, log.fifo,
/// gateway.sock, renewal.sock. All names are made from the
/// number.
class SlotFiles {
 public:
  SlotFiles(std::string const& directory, std::uint32_t slot);

  std::string const& netns() const noexcept { return netns_; }

  std::string qmp_socket() const { return directory_ + "/qmp.sock"; }

  std::string console_socket() const { return directory_ + "/console.sock"; }

  // Of a Firecracker, and there exactly when one was started in the slot.
  std::string console_fifo() const { return directory_ + "/console.fifo"; }

  std::string log_fifo() const { return directory_ + "/log.fifo"; }

  std::string gateway_socket() const { return directory_ + "/gateway.sock"; }

  std::string renewal_socket() const { return directory_ + "/renewal.sock"; }

  bool exists() const;
  base::Result<void> make() const;

  /// nullopt also for a record that cannot be read: what is not ours to understand is not a machine
  /// of ours.
  std::optional<SlotRecord> record() const;
  base::Result<void> write_record(SlotRecord const& record) const;
  /// How the slot's machine ended; nullopt while the slot is not spent.
  std::optional<SlotEnd> spent() const;
  /// The slot will take no machine any more. Before the record goes, so that a slot is never fresh
  /// twice.
  base::Result<void> mark_spent(SlotEnd const& end) const;
  base::Result<void> remove_record() const;
  void remove_sockets() const;
  /// Half-written files of a killed predecessor.
  void remove_leftovers() const;
  /// Everything; succeeds when nothing is there.
  base::Result<void> remove() const;

 private:
  std::string netns_;
  std::string directory_;
};

/// Numbers n of the entries `n` in a directory; other names are ignored.
std::vector<std::uint32_t> numbered_entries(std::string const& directory);

/// A number without sign, leading zeros or anything behind it, at most 4095.
std::optional<std::uint32_t> parse_slot(std::string_view text);

}  // namespace hostd
