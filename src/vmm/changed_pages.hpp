#pragma once

#include <cstdint>

/// The file of pages in which a machine's memory differs from the memory file that it was started
/// on: first the pages themselves, one after the other; then the runs in which they lie in memory,
/// in ascending order; last the trailer. In the byte order of the host: such a file never leaves
/// it.
namespace vmm {

inline constexpr std::uint64_t page_bytes = 4096;

struct PageRun {
  std::uint32_t first = 0;  // number of a page
  std::uint32_t count = 0;
};

struct ChangedPagesTrailer {
  std::uint64_t pages = 0;  // in all runs
  std::uint64_t runs = 0;
  std::uint64_t memory_pages = 0;  // of the whole machine
  std::uint64_t magic = 0;
};

inline constexpr std::uint64_t changed_pages_magic = 0x31'7365'6761'7053;  // "Spages1"

}  // namespace vmm
