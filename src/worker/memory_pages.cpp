#include "worker/memory_pages.hpp"

#include "async/beside.hpp"
#include "vmm/changed_pages.hpp"
#include "worker/held_pages.hpp"
#include "worker/page_map.hpp"
#include "worker/seal.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace worker {
namespace {

using vmm::page_bytes;

constexpr std::size_t chunk_bytes = 2 << 20;

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

/// Bytes of the machine's memory, from so many of its pages on; asked for from front to back.
using ReadPages =
    std::function<base::Result<void>(char* into, std::uint64_t first, std::size_t count)>;

class Saver {
 public:
  Saver(ReadPages read, bool on_file, PagesFor use, os::FdRef into)
      : read_(std::move(read)), on_file_(on_file), out_(into, use) {}

  base::Result<void> add(std::uint64_t first, std::uint64_t count) {
    while (count > 0) {
      auto const room = out_.room();
      auto const part = std::min<std::size_t>(count, room.size() / page_bytes);
      auto read = read_(room.data(), first, part);
      if (!read) return read;
      if (auto kept = out_.filled(keep(room.data(), first, part) * page_bytes); !kept) return kept;
      first += part;
      count -= part;
    }
    return {};
  }

  base::Result<SavedPages> finish(std::uint64_t memory_pages) {
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

  ReadPages read_;
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
  auto const read = [&](char* to, std::uint64_t first, std::size_t count) {
    return read_at(machine.memory, to, count * page_bytes, address + first * page_bytes);
  };
  Saver saver(read, on_file, use, into);
  auto const saved = each_changed_run(
      machine.pages, address, pages_of(memory_mib), [&](std::uint64_t first, std::uint64_t count) {
        return saver.add(first, count);
      });
  if (!saved) return std::unexpected(saved.error());
  return saver.finish(pages_of(memory_mib));
}

base::Result<SavedPages> save_held_pages(HeldPages const& held,
                                         std::uint32_t memory_mib,
                                         bool on_file,
                                         os::FdRef into) {
  auto const* next = held.bytes();
  auto const read = [&](char* to, std::uint64_t, std::size_t count) {
    std::memcpy(to, next, count * page_bytes);
    next += count * page_bytes;
    return base::Result<void>();
  };
  Saver saver(read, on_file, PagesFor::rest, into);
  for (auto const& run : held.runs()) {
    if (auto saved = saver.add(run.first, run.count); !saved) return std::unexpected(saved.error());
  }
  return saver.finish(pages_of(memory_mib));
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
