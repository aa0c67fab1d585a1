// Copies of a process's changed pages, of this one's: it reads itself as the worker reads a VMM.

#include "worker/held_pages.hpp"

#include "vmm/changed_pages.hpp"
#include "worker/memory_pages.hpp"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace worker {
namespace {

constexpr std::uint32_t memory_mib = 64;
constexpr std::size_t mib = 1 << 20;
constexpr std::size_t page = vmm::page_bytes;

class Held : public ::testing::Test {
 protected:
  Held() {
    auto* const at = ::mmap(nullptr,
                            memory_mib * mib,
                            PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1,
                            0);
    if (at == MAP_FAILED) throw std::runtime_error("no memory");
    guest_ = static_cast<char*>(at);
    ::madvise(at, memory_mib * mib, MADV_NOHUGEPAGE);
    self_.pages = os::Fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    self_.memory = os::Fd(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  }

  ~Held() override { ::munmap(guest_, memory_mib * mib); }

  void write(std::size_t first, std::size_t count, char what) {
    std::memset(guest_ + first * page, what, count * page);
  }

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(guest_); }

  static os::Fd file() { return os::Fd(::memfd_create("pages", MFD_CLOEXEC)); }

  static std::string text_of(os::Fd const& file) {
    std::string text(static_cast<std::size_t>(::lseek(file.get(), 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(file.get(), text.data(), text.size(), 0), ssize_t(text.size()));
    return text;
  }

  char* guest_ = nullptr;
  hostd::MachineMemory self_;
};

TEST_F(Held, PagesStayAsTheyWereAndMakeTheSameFile) {
  write(0, 3, 'a');
  write(7, 1, 'b');
  write(8, 1, '\0');
  write(300, 2000, 'c');
  write(memory_mib * mib / page - 1, 1, 'd');
  for (bool const on_file : {true, false}) {
    auto const straight = file();
    auto const expected = save_changed_pages(self_, address(), memory_mib, on_file, straight);
    ASSERT_TRUE(expected);
    EXPECT_EQ(expected->pages, on_file ? 2006U : 2005U);
    HeldPages held;
    ASSERT_TRUE(held.make_room(self_, address(), memory_mib, 1 << 30));
    auto const taken = held.take(self_, address(), memory_mib);
    ASSERT_TRUE(taken);
    ASSERT_TRUE(*taken);
    write(300, 100, 'x');
    auto const later = file();
    auto const saved = save_held_pages(held, memory_mib, on_file, later);
    write(300, 100, 'c');
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->pages, expected->pages);
    EXPECT_EQ(saved->sha256, expected->sha256);
    EXPECT_TRUE(text_of(later) == text_of(straight));
    EXPECT_TRUE(check_changed_pages(later, memory_mib));
  }
}

TEST_F(Held, NothingIsTakenWithoutRoomForAllOfIt) {
  write(0, 100, 'a');
  HeldPages held;
  auto const none = held.take(self_, address(), memory_mib);
  EXPECT_FALSE(*none) << "none was made";
  EXPECT_TRUE(held.make_room(self_, address(), memory_mib, mib));
  auto const bounded = held.take(self_, address(), memory_mib);
  EXPECT_FALSE(*bounded) << "it might have been more than it may";
  EXPECT_TRUE(held.make_room(self_, address(), memory_mib, 1 << 30));
  write(0, 24 * mib / page, 'a');
  auto const grown = held.take(self_, address(), memory_mib);
  EXPECT_FALSE(*grown) << "it changed more meanwhile than there is room for";
  EXPECT_TRUE(held.runs().empty());
  EXPECT_TRUE(held.make_room(self_, address(), memory_mib, 1 << 30));
  auto const again = held.take(self_, address(), memory_mib);
  EXPECT_TRUE(*again);
  EXPECT_GT(held_bytes_max(), 0U);
}

}  // namespace
}  // namespace worker
