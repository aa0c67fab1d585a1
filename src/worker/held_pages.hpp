#pragma once

#include "hostd/client.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace worker {

/// A stopped machine's changed pages in our own memory, so that it stands still for this copy alone
/// and not until a file is written. All of it blocks.
class HeldPages {
 public:
  struct Run {
    std::uint64_t first = 0;  // page of the machine
    std::uint64_t count = 0;
  };

  /// While the machine runs: memory for what has changed by now and some more, in place already.
  /// None (and no error) where that is more than `bytes_max`, or all that are held at once are more
  /// than the process may hold. Errors: unavailable (the process has ended), internal.
  base::Result<void> make_room(hostd::MachineMemory const& machine,
                               std::uint64_t address,
                               std::uint32_t memory_mib,
                               std::uint64_t bytes_max);
  /// Of the stopped machine, on two threads. False: there is no room for them, none is held.
  base::Result<bool> take(hostd::MachineMemory const& machine,
                          std::uint64_t address,
                          std::uint32_t memory_mib);

  std::vector<Run> const& runs() const noexcept { return runs_; }

  /// The pages of all runs, one after the other.
  char const* bytes() const noexcept { return room_.get(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(char* at) const noexcept;
  };

  std::unique_ptr<char, Unmap> room_{nullptr, Unmap{0}};
  std::vector<Run> runs_;
};

/// What one machine may have of the host's memory for this at present: a quarter of what is free.
std::uint64_t held_bytes_max();

}  // namespace worker
