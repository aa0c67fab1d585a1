// Base snapshots on a real space-hostd with a real guest: a machine is recorded and captured, and
// others go on from that moment, many on one memory file. Prints what it costs.

#include "async/testing.hpp"
#include "integration/guest_fixture.hpp"
#include "os/text_file.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

namespace test {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using std::chrono::milliseconds;

base::Deadline within(milliseconds limit) {
  return base::system_clock().in(limit);
}

/// Milliseconds until the agent has answered; fails the test after a minute.
awaitable<long> time_to_answer(hostd::Client client, std::uint32_t slot) {
  auto const begin = std::chrono::steady_clock::now();
  auto const answered = co_await agent_answers(client, slot);
  EXPECT_TRUE(answered) << "no answer of the agent in slot " << slot;
  co_return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// The fields in kB of the mapping of the file `inode`, as /proc/PID/smaps tells them.
std::map<std::string, long> mapping_of(std::int32_t pid, ino_t inode) {
  std::map<std::string, long> fields;
  bool inside = false;
  std::istringstream lines(os::read_text(fmt::format("/proc/{}/smaps", pid)).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second;
    words >> first >> second;
    if (!first.ends_with(":")) {
      std::string offset, device, number;
      words >> offset >> device >> number;
      inside = number == std::to_string(inode);
    } else if (inside) {
      first.pop_back();
      fields[first] += std::atol(second.c_str());
    }
  }
  return fields;
}

/// Of a file's content; no cryptography needed.
std::size_t hash_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::string part(1 << 20, '\0');
  std::size_t hash = 0;
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())))
    hash = hash * 31 + std::hash<std::string>()(part);
  return hash;
}

/// How the process holds the file: the modes of its descriptors.
std::set<int> modes_of(std::int32_t pid, ino_t inode) {
  std::set<int> modes;
  for (auto const& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    struct stat info{};
    if (::stat(entry.path().c_str(), &info) != 0 || info.st_ino != inode || !S_ISREG(info.st_mode))
      continue;
    std::istringstream lines(
        os::read_text(fmt::format("/proc/{}/fdinfo/{}", pid, entry.path().filename().string()))
            .value_or(""));
    std::string word;
    while (lines >> word && word != "flags:") {
    }
    lines >> word;
    modes.insert(static_cast<int>(std::strtol(word.c_str(), nullptr, 8)) & O_ACCMODE);
  }
  return modes;
}

class Snapshot : public WithMachines {
 protected:
  vmm::BootSpec spec(std::uint32_t slot, std::string const& disk, vmm::MachineStart start) const {
    auto spec = boot_spec(slot, disk);
    spec.start = start;
    if (start == vmm::MachineStart::record) spec.memory = open("memory", O_RDWR | O_CREAT);
    if (start == vmm::MachineStart::restore) spec.memory = open("memory", O_RDONLY);
    return spec;
  }

  awaitable<vmm::Exit> end(vmm::Vmm* vmm) {
    auto const exit = co_await vmm->kill();
    EXPECT_TRUE(exit);
    co_await vmm->close();
    co_return exit ? *exit : vmm::Exit();
  }

  /// Boots, lets the agent answer, stops and continues, captures, ends; `go_on`: not before it has
  /// answered again. True when all went well.
  awaitable<bool> record(bool go_on = false) {
    EXPECT_EQ(truncate_file(path("memory"), std::uint64_t{memory_mib} << 20), 0);
    auto const vmm = co_await start(spec(0, "disk.img", vmm::MachineStart::record));
    if (!vmm) co_return false;
    fmt::print("cold boot to first answer: {} ms\n", co_await time_to_answer(client(), 0));
    fmt::print("next answer: {} ms\n", co_await time_to_answer(client(), 0));
    auto const paused = co_await vmm->pause(within(milliseconds(5000)));
    auto const resumed = co_await vmm->resume(within(milliseconds(5000)));
    EXPECT_TRUE(paused && resumed);
    fmt::print("answer after stop and cont: {} ms\n", co_await time_to_answer(client(), 0));
    auto const state = open("state", O_RDWR | O_CREAT | O_TRUNC);
    auto const begin = std::chrono::steady_clock::now();
    auto const captured = co_await vmm->capture(state, within(milliseconds(10'000)));
    EXPECT_TRUE(captured) << captured.error().message() << " " << captured.error().detail();
    struct stat info{};
    EXPECT_EQ(::stat(path("memory").c_str(), &info), 0);
    fmt::print(
        "capture: {} ms, state {} bytes, memory file {} MiB of {}\n",
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count(),
        fs::file_size(path("state")),
        info.st_blocks / 2048,
        memory_mib);
    for (char const* copy : {"one.img", "two.img"})
      fs::copy_file(path("disk.img"), path(copy), fs::copy_options::overwrite_existing);
    if (go_on) {
      auto const resumed_again = co_await vmm->resume(within(milliseconds(5000)));
      EXPECT_TRUE(resumed_again) << resumed_again.error().detail();
      fmt::print("answer after the capture: {} ms\n", co_await time_to_answer(client(), 0));
    }
    auto const exit = co_await end(vmm.get());
    EXPECT_EQ(exit.cause, vmm::ExitCause::asked);
    co_return captured.has_value() && !testing::Test::HasFailure();
  }

  static int truncate_file(std::string const& path, std::uint64_t bytes) {
    os::Fd const file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    return ::ftruncate(file.get(), static_cast<off_t>(bytes));
  }
};

TEST_F(Snapshot, TwoMachinesGoOnFromOneMomentAndShareItsMemory) {
  auto body = [this]() -> awaitable<void> {
    if (!co_await record()) co_return;
    auto const before = hash_of(path("memory"));
    struct stat memory{};
    EXPECT_EQ(::stat(path("memory").c_str(), &memory), 0);
    std::vector<std::unique_ptr<vmm::Vmm>> clones;
    for (std::uint32_t const slot : {1U, 2U}) {
      auto const begin = std::chrono::steady_clock::now();
      auto vmm =
          co_await start(spec(slot, slot == 1 ? "one.img" : "two.img", vmm::MachineStart::restore));
      if (!vmm) co_return;
      auto const state = open("state", O_RDONLY);
      auto const restored = co_await vmm->restore(state, within(milliseconds(20'000)));
      EXPECT_TRUE(restored) << restored.error().message() << " " << restored.error().detail();
      clones.push_back(std::move(vmm));
      if (!restored) break;
      auto const loaded = std::chrono::steady_clock::now();
      auto const first = co_await time_to_answer(client(), slot);
      fmt::print("clone {}: restored after {} ms, first answer {} ms later, next {} ms\n",
                 slot,
                 std::chrono::duration_cast<milliseconds>(loaded - begin).count(),
                 first,
                 co_await time_to_answer(client(), slot));
      EXPECT_EQ(clones.back()->console(4096), "") << "it went on: a boot would have said something";
    }
    for (auto const& vmm : clones) {
      if (HasFailure()) break;
      auto const paused = co_await vmm->pause(within(milliseconds(5000)));
      auto const resumed = co_await vmm->resume(within(milliseconds(5000)));
      EXPECT_TRUE(paused && resumed);
      auto fields = mapping_of(vmm->pid(), memory.st_ino);
      fmt::print("guest's memory of process {}: {} KiB private, {} KiB shared\n",
                 vmm->pid(),
                 fields["Private_Dirty"],
                 fields["Rss"] - fields["Private_Dirty"]);
      EXPECT_GT(fields["Rss"], 0);
      EXPECT_EQ(modes_of(vmm->pid(), memory.st_ino), std::set<int>{O_RDONLY});
      EXPECT_LT(fields["Private_Dirty"], 8 * 1024);
    }
    for (std::uint32_t slot = 1; slot <= clones.size() && !HasFailure(); ++slot)
      fmt::print(
          "clone {} after stop and cont: {} ms\n", slot, co_await time_to_answer(client(), slot));
    for (auto const& vmm : clones) {
      auto const exit = co_await end(vmm.get());
      EXPECT_EQ(exit.cause, vmm::ExitCause::asked);
    }
    EXPECT_EQ(hash_of(path("memory")), before) << "a clone changed what it shares";
  };
  async::run_test(body, std::chrono::seconds(110));
}

TEST_F(Snapshot, ACapturedMachineCanGoOn) {
  auto body = [this]() -> awaitable<void> {
    auto const recorded = co_await record(true);
    EXPECT_TRUE(recorded);
  };
  async::run_test(body, std::chrono::seconds(110));
}

TEST_F(Snapshot, AStateThatIsNoneEndsTheMachineWithASentence) {
  auto body = [this]() -> awaitable<void> {
    EXPECT_EQ(truncate_file(path("memory"), std::uint64_t{memory_mib} << 20), 0);
    std::uint32_t slot = 3;
    for (std::string const& content :
         {std::string("not a state"), std::string(60'000, '\0'), std::string()}) {
      std::ofstream(path("state")) << content;
      auto const vmm = co_await start(spec(slot, "disk.img", vmm::MachineStart::restore));
      if (!vmm) co_return;
      auto const restored =
          co_await vmm->restore(open("state", O_RDONLY), within(milliseconds(20'000)));
      EXPECT_FALSE(restored);
      if (!restored) EXPECT_THAT(restored.error().message(), testing::HasSubstr("damaged"));
      co_await end(vmm.get());
      ++slot;
    }
  };
  async::run_test(body, std::chrono::seconds(60));
}

TEST_F(Snapshot, RefusesAMemoryFileThatIsNone) {
  ASSERT_TRUE(client().make_slot(0));
  ASSERT_EQ(truncate_file(path("memory"), std::uint64_t{memory_mib} << 20), 0);
  ASSERT_EQ(truncate_file(path("small"), (std::uint64_t{memory_mib} << 20) - 4096), 0);
  auto const tried = [&](hostd::MachineStart start, os::Fd memory, os::Fd disk) {
    hostd::Machine machine;
    machine.start = start;
    machine.memory_mib = memory_mib;
    auto const started = client().start_vmm(0, base::SandboxId::make(), 1, machine, disk, memory);
    return started ? std::string("started") : started.error().detail();
  };
  auto const disk = [&] { return open("disk.img", O_RDWR); };
  using enum hostd::MachineStart;
  for (auto const start : {record, restore}) {
    EXPECT_THAT(tried(start, open("small", O_RDWR), disk()), testing::HasSubstr("not as large"));
    EXPECT_THAT(tried(start, os::Fd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), disk()),
                testing::HasSubstr("memory: not a regular file"));
    EXPECT_THAT(tried(start, open("memory", O_PATH), disk()),
                testing::HasSubstr("memory: not a regular file"));
    EXPECT_THAT(tried(start, open("memory", O_WRONLY), disk()),
                testing::HasSubstr("memory: not a regular file"));
    EXPECT_THAT(tried(start, open("memory", O_RDWR), open("memory", O_RDWR)),
                testing::HasSubstr("the same file"));
    EXPECT_THAT(tried(start, os::Fd(), disk()), testing::HasSubstr("descriptors: "));
  }
  EXPECT_THAT(tried(record, open("memory", O_RDONLY), disk()),
              testing::HasSubstr("memory: not a regular file"));
  EXPECT_THAT(tried(boot, open("memory", O_RDWR), disk()), testing::HasSubstr("descriptors: "));
  // A refused request costs the slot nothing.
  EXPECT_EQ(client().inspect_slot(0)->state, hostd::SlotState::empty);
}

}  // namespace
}  // namespace test
