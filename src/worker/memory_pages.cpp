#include "worker/memory_pages.hpp"

#include "async/beside.hpp"
#include "vmm/changed_pages.hpp"
#include "worker/seal.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <span>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace worker {
namespace {

using vmm::page_bytes;

// Of the kernel's page map (its documentation, admin-guide/mm/pagemap).
constexpr std::uint64_t present = 1ULL << 63U;
constexpr std::uint64_t swapped = 1ULL << 62U;
constexpr std::uint64_t of_file = 1ULL << 61U;

constexpr std::size_t pages_per_read = 64 * 1024;  // of the map: 256 MiB of memory at a time
constexpr std::size_t chunk_bytes = 2 << 20;

/// Exactly so many bytes from there.
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

base::Result<void> write_all(os::FdRef into, std::span<char const> bytes, bool begin) {
  auto const size = bytes.size();
  while (!bytes.empty()) {
    auto const done = ::write(into.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && (errno == ENOSPC || errno == EDQUOT))
      return base::fail(base::Code::exhausted, "the host's pool has no room for its memory");
    if (done <= 0) return base::fail_errno("write the machine's memory");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  if (!begin) return {};
  // A hint: the sync reports what goes wrong.
  auto const end = ::lseek(into.get(), 0, SEEK_CUR);
  static_cast<void>(::sync_file_range(
      into.get(), end - static_cast<off_t>(size), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE));
  return {};
}

/// The file, written from front to back in large parts, each while the next one is filled.
class Writer {
 public:
  Writer(os::FdRef into, PagesFor use) : into_(into), at_rest_(use == PagesFor::rest) {}

  /// Where the next bytes belong: at most this many, then filled() says how many came.
  std::span<char> room() {
    auto& part = parts_[filling_];
    if (part.empty()) part.resize(chunk_bytes);
    return std::span(part).subspan(size_);
  }

  base::Result<void> filled(std::size_t bytes) {
    size_ += bytes;
    bytes_ += bytes;
    return size_ == chunk_bytes ? hand_over() : base::Result<void>();
  }

  base::Result<void> add(void const* bytes, std::size_t size) {
    auto const* next = static_cast<char const*>(bytes);
    while (size > 0) {
      auto const into = room();
      auto const part = std::min(size, into.size());
      std::memcpy(into.data(), next, part);
      if (auto added = filled(part); !added) return added;
      next += part;
      size -= part;
    }
    return {};
  }

  base::Result<void> finish() {
    auto handed = hand_over();
    auto written = settled();
    return handed ? written : handed;
  }

  std::uint64_t bytes() const noexcept { return bytes_; }

  std::string hash() { return at_rest_ ? digest_.hex() : std::string(); }

 private:
  base::Result<void> hand_over() {
    if (size_ == 0) return {};
    std::span<char const> const part(parts_[filling_].data(), size_);
    if (auto before = settled(); !before) return before;
    // Here and now where the host has no thread left.
    writing_ = async::beside(
        [into = into_, part, begin = at_rest_] { return write_all(into, part, begin); });
    if (at_rest_) digest_.add(part.data(), part.size());
    filling_ = 1 - filling_;
    size_ = 0;
    return {};
  }

  base::Result<void> settled() { return writing_.valid() ? writing_.get() : base::Result<void>(); }

  os::FdRef into_;
  bool at_rest_;
  Sha256 digest_;
  std::array<std::vector<char>, 2> parts_;
  std::size_t filling_ = 0;
  std::size_t size_ = 0;  // of what is in that part
  std::uint64_t bytes_ = 0;
  std::future<base::Result<void>> writing_;  // the other part; ends before both
};

bool is_zero(char const* page) {
  return page[0] == 0 && std::memcmp(page, page + 1, page_bytes - 1) == 0;
}

class Saver {
 public:
  Saver(hostd::MachineMemory const& machine,
        std::uint64_t address,
        bool on_file,
        PagesFor use,
        os::FdRef into)
      : machine_(machine), address_(address), on_file_(on_file), out_(into, use) {}

  base::Result<SavedPages> save(std::uint64_t memory_pages) {
    std::vector<std::uint64_t> map(pages_per_read);
    for (std::uint64_t at = 0; at < memory_pages; at += map.size()) {
      map.resize(std::min<std::uint64_t>(pages_per_read, memory_pages - at));
      auto seen = read_at(machine_.pages,
                          map.data(),
                          map.size() * sizeof map[0],
                          (address_ / page_bytes + at) * sizeof map[0]);
      if (!seen) return std::unexpected(seen.error());
      if (auto copied = copy_of(map, at); !copied) return std::unexpected(copied.error());
    }
    vmm::ChangedPagesTrailer const trailer{.pages = pages_,
                                           .runs = runs_.size(),
                                           .memory_pages = memory_pages,
                                           .magic = vmm::changed_pages_magic};
    auto written = out_.add(runs_.data(), runs_.size() * sizeof(vmm::PageRun));
    if (written) written = out_.add(&trailer, sizeof trailer);
    if (written) written = out_.finish();
    if (!written) return std::unexpected(written.error());
    return SavedPages{.pages = pages_, .bytes = out_.bytes(), .sha256 = out_.hash()};
  }

 private:
  static bool changed(std::uint64_t entry) {
    return (entry & (present | swapped)) != 0 && (entry & of_file) == 0;
  }

  base::Result<void> copy_of(std::vector<std::uint64_t> const& map, std::uint64_t first) {
    for (std::size_t i = 0; i < map.size();) {
      if (!changed(map[i])) {
        ++i;
        continue;
      }
      std::size_t end = i + 1;
      while (end < map.size() && changed(map[end]))
        ++end;
      if (auto copied = copy_run(first + i, end - i); !copied) return copied;
      i = end;
    }
    return {};
  }

  base::Result<void> copy_run(std::uint64_t first, std::size_t count) {
    while (count > 0) {
      auto const room = out_.room();
      auto const part = std::min<std::size_t>(count, room.size() / page_bytes);
      auto read =
          read_at(machine_.memory, room.data(), part * page_bytes, address_ + first * page_bytes);
      if (!read) return read;
      if (auto kept = out_.filled(keep(room.data(), first, part) * page_bytes); !kept) return kept;
      first += part;
      count -= part;
    }
    return {};
  }

  /// Leaves out what need not be kept, and tells how many pages are left.
  std::size_t keep(char* pages, std::uint64_t first, std::size_t count) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count;) {
      auto const skip = [&](std::size_t n) { return !on_file_ && is_zero(pages + n * page_bytes); };
      if (skip(i)) {
        ++i;
        continue;
      }
      std::size_t end = i + 1;
      while (end < count && !skip(end))
        ++end;
      if (kept != i)
        std::memmove(pages + kept * page_bytes, pages + i * page_bytes, (end - i) * page_bytes);
      note(static_cast<std::uint32_t>(first + i), static_cast<std::uint32_t>(end - i));
      kept += end - i;
      i = end;
    }
    return kept;
  }

  void note(std::uint32_t first, std::uint32_t count) {
    pages_ += count;
    if (!runs_.empty() && runs_.back().first + runs_.back().count == first) {
      runs_.back().count += count;
    } else {
      runs_.push_back({first, count});
    }
  }

  hostd::MachineMemory const& machine_;
  std::uint64_t address_;
  bool on_file_;
  Writer out_;
  std::vector<vmm::PageRun> runs_;
  std::uint64_t pages_ = 0;
};

std::uint64_t pages_of(std::uint32_t memory_mib) {
  return (std::uint64_t{memory_mib} << 20U) / page_bytes;
}

}  // namespace

base::Result<SavedPages> save_changed_pages(hostd::MachineMemory const& machine,
                                            std::uint64_t address,
                                            std::uint32_t memory_mib,
                                            bool on_file,
                                            os::FdRef into,
                                            PagesFor use) {
  if (address % page_bytes != 0)
    return base::fail(base::Code::internal, "the machine's memory begins within a page");
  return Saver(machine, address, on_file, use, into).save(pages_of(memory_mib));
}

base::Result<void> check_changed_pages(os::FdRef file, std::uint32_t memory_mib) {
  auto const wrong = [](char const* what) {
    return base::fail(base::Code::internal, std::string("the saved memory is damaged: ") + what);
  };
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return base::fail_errno("look at the saved memory");
  auto const size = static_cast<std::uint64_t>(about.st_size);
  vmm::ChangedPagesTrailer trailer;
  if (size < sizeof trailer) return wrong("too short");
  auto read = read_at(file, &trailer, sizeof trailer, size - sizeof trailer);
  if (!read) return read;
  auto const memory_pages = pages_of(memory_mib);
  bool const fits =
      trailer.magic == vmm::changed_pages_magic && trailer.memory_pages == memory_pages &&
      trailer.pages <= memory_pages && trailer.runs <= trailer.pages &&
      size == trailer.pages * page_bytes + trailer.runs * sizeof(vmm::PageRun) + sizeof trailer;
  if (!fits) return wrong("of another size");
  std::vector<vmm::PageRun> runs(trailer.runs);
  read = read_at(file, runs.data(), runs.size() * sizeof runs[0], trailer.pages * page_bytes);
  if (!read) return read;
  std::uint64_t next = 0;
  std::uint64_t pages = 0;
  for (auto const& run : runs) {
    if (run.count == 0 || run.first < next) return wrong("its pages are out of order");
    next = std::uint64_t{run.first} + run.count;
    pages += run.count;
    if (next > memory_pages) return wrong("a page lies outside of memory");
  }
  return pages == trailer.pages ? base::Result<void>() : wrong("its pages do not add up");
}

}  // namespace worker
