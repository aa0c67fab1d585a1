#pragma once

#include "hostd/client.hpp"
#include "os/fd.hpp"

#include <cstdint>
#include <string>

/// Which pages of a stopped machine's memory differ from what it was started on, and a file of them
/// (src/vmm/changed_pages.hpp). All of it blocks.
namespace worker {

class HeldPages;

struct SavedPages {
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;  // of the file
  std::string sha256;       // of the file; empty unless it was asked for
};

enum class PagesFor : std::uint8_t {
  rest,    // the machine does not go on: hashed in passing, and the disk begins to write at once
  copying  // it does, as soon as this returns: nothing but the copy
};

/// What the kernel holds for the process alone differs: the pages of the file below are the page
/// cache's. `on_file` is false for a machine that was booted: below it is nothing but zeros, and
/// pages of zeros are left out. `address`: where memory begins in the process. Reading and writing
/// are done at the same time, on two threads.
/// Errors: exhausted (no room for the file), unavailable (the process has ended), internal.
base::Result<SavedPages> save_changed_pages(hostd::MachineMemory const& machine,
                                            std::uint64_t address,
                                            std::uint32_t memory_mib,
                                            bool on_file,
                                            os::FdRef into,
                                            PagesFor use = PagesFor::rest);

/// The same file of pages that are held, for PagesFor::rest; the machine may go on meanwhile.
base::Result<SavedPages> save_held_pages(HeldPages const& held,
                                         std::uint32_t memory_mib,
                                         bool on_file,
                                         os::FdRef into);

/// Is this, from first to last byte, such a file of a machine of that size? Errors: what is wrong.
base::Result<void> check_changed_pages(os::FdRef file, std::uint32_t memory_mib);

}  // namespace worker
