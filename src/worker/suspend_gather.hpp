#pragma once

#include "hostd/client.hpp"
#include "worker/disk.hpp"
#include "worker/held_pages.hpp"
#include "worker/memory_pages.hpp"
#include "worker/state_store.hpp"

#include <functional>
#include <string>

namespace worker {

/// The files of a machine that is to be kept, gathered below a name of their own. What can be done
/// before it stands still is done in prepare(), and what can be done when it goes on again in
/// finish(), so that take() is short. All block; after a failure whatever there is goes with
/// StateStore::discard.
class Gather {
 public:
  Gather(hostd::Client hostd, DiskPool disks, StateStore store)
      : hostd_(std::move(hostd)), disks_(std::move(disks)), store_(std::move(store)) {}

  SavedMachine saved;  // `name` and what describes the machine: from the caller
  std::string sandbox;
  std::uint32_t slot = 0;
  bool ends = false;           // the machine does not go on: its disk itself is kept, not a copy
  std::uint64_t held_max = 0;  // of a copy in memory, of one that goes on
  std::uint64_t address = 0;   // where its memory begins in the VMM
  std::string state;           // of its devices, for take()
  double devices_ms = 0;       // that saving those took
  /// Done by take() beside the rest: what must be noted before the machine counts as kept.
  std::function<base::Result<void>()> note;

  base::Result<void> prepare();
  /// Of the stopped machine.
  base::Result<void> take();
  /// It may go on. Fills in what `saved` says of pages and state.
  base::Result<void> finish();

 private:
  base::Result<void> prepare_copy();
  base::Result<void> keep_rest();
  base::Result<void> write_pages(PagesFor use);
  base::Result<void> write_held();

  hostd::Client hostd_;
  DiskPool disks_;
  StateStore store_;
  std::string dir_;
  hostd::MachineMemory memory_;
  os::Fd pages_;
  HeldPages held_;
  bool written_ = false;  // the pages, straight from the machine
};

}  // namespace worker
