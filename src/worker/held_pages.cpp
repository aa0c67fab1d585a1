#include "worker/held_pages.hpp"

#include "async/beside.hpp"
#include "os/text_file.hpp"
#include "vmm/changed_pages.hpp"
#include "worker/page_map.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>

namespace worker {
namespace {

using vmm::page_bytes;

constexpr std::uint64_t all_held_max = 1 << 30;
constexpr std::uint64_t spare_bytes = 16 << 20;  // for what changes until the machine stands still
constexpr std::uint64_t huge_page_bytes = 2 << 20;
constexpr std::uint64_t piece_bytes = 1 << 20;  // that one thread takes at a time

std::atomic<std::uint64_t> all_held{0};

std::uint64_t pages_of(std::uint32_t memory_mib) {
  return (std::uint64_t{memory_mib} << 20U) / page_bytes;
}

struct Piece {
  std::uint64_t from = 0;
  char* to = nullptr;
  std::uint64_t bytes = 0;
};

std::vector<Piece> pieces_of(std::vector<HeldPages::Run> const& runs,
                             std::uint64_t address,
                             char* to) {
  std::vector<Piece> out;
  for (auto const& run : runs) {
    auto from = address + run.first * page_bytes;
    for (auto left = run.count * page_bytes; left > 0;) {
      auto const part = std::min(left, piece_bytes);
      out.push_back({from, to, part});
      from += part;
      to += part;
      left -= part;
    }
  }
  return out;
}

/// Faults are taken here and not while a machine waits. False: there is not so much.
bool populate(char* at, std::size_t bytes) {
  static_cast<void>(::madvise(at, bytes, MADV_HUGEPAGE));                    // only faster
  return ::madvise(at, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;  // Linux before 5.14
}

}  // namespace

void HeldPages::Unmap::operator()(char* at) const noexcept {
  ::munmap(at, bytes);
  all_held -= bytes;
}

base::Result<void> HeldPages::make_room(hostd::MachineMemory const& machine,
                                        std::uint64_t address,
                                        std::uint32_t memory_mib,
                                        std::uint64_t bytes_max) {
  room_.reset();
  std::uint64_t changed = 0;
  auto const counted = each_changed_run(
      machine.pages, address, pages_of(memory_mib), [&](std::uint64_t, std::uint64_t count) {
        changed += count * page_bytes;
        return base::Result<void>();
      });
  if (!counted) return counted;
  auto const wanted =
      std::min(changed + changed / 8 + spare_bytes, std::uint64_t{memory_mib} << 20U);
  auto const bytes = (wanted + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  if (bytes > bytes_max) return {};
  bool const allowed = all_held.fetch_add(bytes) + bytes <= all_held_max;
  auto* const at = allowed ? ::mmap(nullptr,
                                    bytes,
                                    PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                    -1,
                                    0)
                           : MAP_FAILED;
  if (at == MAP_FAILED) {
    all_held -= bytes;
    return {};
  }
  room_ = std::unique_ptr<char, Unmap>(static_cast<char*>(at), Unmap{bytes});
  if (!populate(room_.get(), bytes)) room_.reset();
  return {};
}

base::Result<bool> HeldPages::take(hostd::MachineMemory const& machine,
                                   std::uint64_t address,
                                   std::uint32_t memory_mib) {
  runs_.clear();
  if (!room_) return false;
  std::uint64_t size = 0;
  auto const seen = each_changed_run(
      machine.pages, address, pages_of(memory_mib), [&](std::uint64_t first, std::uint64_t count) {
        runs_.push_back({first, count});
        size += count * page_bytes;
        return base::Result<void>();
      });
  if (!seen) return std::unexpected(seen.error());
  if (size > room_.get_deleter().bytes) {
    runs_.clear();
    room_.reset();
    return false;
  }
  auto const pieces = pieces_of(runs_, address, room_.get());
  std::atomic<std::size_t> next{0};
  auto const copy = [&]() -> base::Result<void> {
    for (auto i = next++; i < pieces.size(); i = next++) {
      auto const& piece = pieces[i];
      if (auto read = read_at(machine.memory, piece.to, piece.bytes, piece.from); !read)
        return read;
    }
    return {};
  };
  auto other = async::beside(copy);
  auto mine = copy();
  auto const theirs = other.get();
  if (!mine) return std::unexpected(mine.error());
  if (!theirs) return std::unexpected(theirs.error());
  return true;
}

std::uint64_t held_bytes_max() {
  auto const text = os::read_text("/proc/meminfo");
  constexpr std::string_view key = "MemAvailable:";
  auto const at = text ? text->find(key) : std::string::npos;
  if (at == std::string::npos) return 0;
  auto const digits = text->find_first_not_of(' ', at + key.size());
  std::uint64_t kib = 0;
  if (digits == std::string::npos) return 0;
  static_cast<void>(std::from_chars(text->data() + digits, text->data() + text->size(), kib));
  return (kib << 10U) / 4;
}

}  // namespace worker
