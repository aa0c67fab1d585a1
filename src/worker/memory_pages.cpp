#include "worker/memory_pages.hpp"

#include "vmm/changed_pages.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
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
constexpr std::size_t pages_per_copy = 256;

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

/// The file, written from front to back. What has been written goes to the disk meanwhile, so that
/// the sync at the end has little to wait for.
class Writer {
 public:
  explicit Writer(os::FdRef into) : into_(into) {}

  base::Result<void> add(void const* bytes, std::size_t size) {
    auto const* next = static_cast<char const*>(bytes);
    bytes_ += size;
    while (size > 0) {
      auto const done = ::write(into_.get(), next, size);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && (errno == ENOSPC || errno == EDQUOT))
        return base::fail(base::Code::exhausted, "the host's pool has no room for its memory");
      if (done <= 0) return base::fail_errno("write the machine's memory");
      next += done;
      size -= static_cast<std::size_t>(done);
    }
    if (bytes_ - begun_ >= begin_bytes) {
      // A hint: the sync reports what goes wrong.
      static_cast<void>(::sync_file_range(into_.get(),
                                          static_cast<off64_t>(begun_),
                                          static_cast<off64_t>(bytes_ - begun_),
                                          SYNC_FILE_RANGE_WRITE));
      begun_ = bytes_;
    }
    return {};
  }

  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::uint64_t begin_bytes = 4 << 20;

  os::FdRef into_;
  std::uint64_t bytes_ = 0;
  std::uint64_t begun_ = 0;  // handed to the disk
};

bool is_zero(char const* page) {
  return page[0] == 0 && std::equal(page, page + page_bytes - 1, page + 1);
}

class Saver {
 public:
  Saver(hostd::MachineMemory const& machine, std::uint64_t address, bool on_file, os::FdRef into)
      : machine_(machine),
        address_(address),
        on_file_(on_file),
        out_(into),
        buffer_(pages_per_copy * page_bytes) {}

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
    if (!written) return std::unexpected(written.error());
    return SavedPages{.pages = pages_, .bytes = out_.bytes()};
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
      while (end < map.size() && end - i < pages_per_copy && changed(map[end]))
        ++end;
      if (auto copied = copy_run(first + i, end - i); !copied) return copied;
      i = end;
    }
    return {};
  }

  base::Result<void> copy_run(std::uint64_t first, std::size_t count) {
    auto read =
        read_at(machine_.memory, buffer_.data(), count * page_bytes, address_ + first * page_bytes);
    if (!read) return read;
    for (std::size_t i = 0; i < count;) {
      auto const skip = [&](std::size_t n) { return !on_file_ && is_zero(page(n)); };
      if (skip(i)) {
        ++i;
        continue;
      }
      std::size_t end = i + 1;
      while (end < count && !skip(end))
        ++end;
      if (auto written = out_.add(page(i), (end - i) * page_bytes); !written) return written;
      note(static_cast<std::uint32_t>(first + i), static_cast<std::uint32_t>(end - i));
      i = end;
    }
    return {};
  }

  char const* page(std::size_t n) const { return buffer_.data() + n * page_bytes; }

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
  std::vector<char> buffer_;
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
                                            os::FdRef into) {
  if (address % page_bytes != 0)
    return base::fail(base::Code::internal, "the machine's memory begins within a page");
  return Saver(machine, address, on_file, into).save(pages_of(memory_mib));
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
