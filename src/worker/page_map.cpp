#include "worker/page_map.hpp"

#include "vmm/changed_pages.hpp"

#include <algorithm>
#include <cerrno>
#include <vector>

#include <unistd.h>

namespace worker {
namespace {

// Of the kernel's page map (its documentation, admin-guide/mm/pagemap).
constexpr std::uint64_t present = 1ULL << 63U;
constexpr std::uint64_t swapped = 1ULL << 62U;
constexpr std::uint64_t of_file = 1ULL << 61U;

constexpr std::size_t pages_per_read = 64 * 1024;  // of the map: 256 MiB of memory at a time

bool changed(std::uint64_t entry) {
  return (entry & (present | swapped)) != 0 && (entry & of_file) == 0;
}

base::Result<void> runs_in(std::vector<std::uint64_t> const& map,
                           std::uint64_t first,
                           PagesSeen const& seen) {
  for (std::size_t i = 0; i < map.size();) {
    if (!changed(map[i])) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < map.size() && changed(map[end]))
      ++end;
    if (auto taken = seen(first + i, end - i); !taken) return taken;
    i = end;
  }
  return {};
}

}  // namespace

base::Result<void> read_at(os::FdRef file, void* into, std::size_t bytes, std::uint64_t at) {
  auto* next = static_cast<char*>(into);
  while (bytes > 0) {
    auto const got = ::pread(file.get(), next, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno("read the machine's memory");
    if (got == 0) return base::fail(base::Code::unavailable, "the virtual machine has ended");
    next += got;
    at += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

base::Result<void> each_changed_run(os::FdRef map,
                                    std::uint64_t address,
                                    std::uint64_t pages,
                                    PagesSeen const& seen) {
  std::vector<std::uint64_t> part(pages_per_read);
  for (std::uint64_t at = 0; at < pages; at += part.size()) {
    part.resize(std::min<std::uint64_t>(pages_per_read, pages - at));
    auto step = read_at(map,
                        part.data(),
                        part.size() * sizeof part[0],
                        (address / vmm::page_bytes + at) * sizeof part[0]);
    if (step) step = runs_in(part, at, seen);
    if (!step) return step;
  }
  return {};
}

}  // namespace worker
