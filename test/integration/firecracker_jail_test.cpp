// Firecracker's driver and hostd's jail for it, with a program that does to the host what the real
// one does. What the real one does beside that: docs/decisions/0010-firecracker.md tells what has
// been tried with it and what has not.

#include "async/testing.hpp"
#include "base/id.hpp"
#include "integration/hostd_fixture.hpp"
#include "vmm/firecracker.hpp"
#include "worker/hostd_launcher.hpp"

#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

namespace test {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::IsEmpty;

base::Deadline soon() {
  return base::system_clock().in(milliseconds(10'000));
}

os::Fd make_file(std::string const& path, off_t bytes) {
  os::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(::ftruncate(file.get(), bytes), 0);
  // Its owner is not the slot's user, and nobody else may open it.
  EXPECT_EQ(::fchown(file.get(), 65'534, 65'534), 0);
  return file;
}

std::string head_of(os::Fd const& file) {
  std::string text(64, '\0');
  auto const got = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text.substr(0, text.find('\0'));
}

awaitable<bool> console_says(vmm::Vmm& vmm, std::string words) {
  for (int i = 0; i < 400 && !vmm.console(4096).contains(words); ++i)
    co_await async::sleep_for(milliseconds(5));
  EXPECT_THAT(vmm.console(4096), HasSubstr(words));
  co_return vmm.console(4096).contains(words);
}

class FirecrackerJail : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/kvm", F_OK) != 0)
      GTEST_SKIP() << "NOT TRIED: this host has no /dev/kvm, which hostd puts into the jail";
    auto const guest = installation_.directory() + "/guest";
    fs::create_directory(guest);
    for (char const* part : {"/vmlinux", "/initrd.gz"})
      fs::create_symlink(std::string(GUEST_DIR) + part, guest + part);
    fs::copy_file(FAKE_FIRECRACKER, guest + "/firecracker");
    fs::permissions(guest + "/firecracker", fs::perms(0755));
    installation_.configure([&](wire::Config& config) { config.guest_dir = guest; });
    hostd_.emplace(installation_);
  }

  void TearDown() override {
    if (!hostd_) return;
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      auto ended = client().end_vmm(slot);
      auto removed = client().remove_slot(slot);
      static_cast<void>(ended);
      static_cast<void>(removed);
    }
    EXPECT_THAT(installation_.holdings(), IsEmpty());
    if (HasFailure()) std::puts(log().c_str());
  }

  std::string log() const {
    os::Fd const file(::open((installation_.directory() + "/hostd.log").c_str(), O_RDONLY));
    return read_to_end(file);
  }

  hostd::Client client() const { return hostd_->client(); }

  vmm::BootSpec spec(std::uint32_t slot, vmm::MachineStart start = vmm::MachineStart::boot) {
    vmm::BootSpec spec;
    spec.slot = slot;
    spec.sandbox = base::SandboxId::make().str();
    spec.epoch = 1;
    spec.accelerator = vmm::Accelerator::kvm;
    spec.memory_mib = 64;
    spec.start = start;
    spec.disk = make_file(fmt::format("{}/disk{}", installation_.directory(), slot), 8 << 20);
    return spec;
  }

  void with_driver(std::function<awaitable<void>(vmm::FirecrackerDriver*)> test) {
    async::run_test([this, test = std::move(test)]() -> awaitable<void> {
      worker::HostdLauncher launcher(client(), {});
      vmm::FirecrackerDriver driver(co_await asio::this_coro::executor, launcher);
      co_await test(&driver);
    });
  }

  Installation installation_;
  std::optional<Hostd> hostd_;
};

TEST_F(FirecrackerJail, TheHostSaysThatTheBinaryIsThere) {
  EXPECT_NE(client().hello()->features & hostd::firecracker_found, 0U);
  // Not what anybody but root could exchange.
  fs::permissions(installation_.config().guest() + "/firecracker", fs::perms(0775));
  EXPECT_EQ(client().hello()->features & hostd::firecracker_found, 0U);
}

TEST_F(FirecrackerJail, RunsAsTheSlotsUserOnFilesThatItDoesNotOwn) {
  ASSERT_TRUE(client().make_slot(0));
  with_driver([this](vmm::FirecrackerDriver* driver) -> awaitable<void> {
    auto wanted = spec(0);
    auto const disk = wanted.disk.duplicate();
    auto made = co_await driver->boot(std::move(wanted));
    EXPECT_TRUE(made) << made.error().message() << made.error().detail();
    if (!made) co_return;
    auto& vmm = **made;
    auto const user = installation_.config().slot_uid_base;
    co_await console_says(vmm, fmt::format("the fake guest runs as {}\n", user));
    EXPECT_EQ(head_of(*disk), "the guest was here");
    struct stat info{};
    EXPECT_EQ(::fstat(disk->get(), &info), 0);
    EXPECT_EQ(info.st_uid, 65'534U);
    auto const paused = co_await vmm.pause(soon());
    EXPECT_TRUE(paused);
    auto const stopped = co_await vmm.stopped(soon());
    EXPECT_TRUE(stopped && *stopped);
    auto const exit = co_await vmm.kill();
    EXPECT_EQ(exit->cause, vmm::ExitCause::asked);
    co_await vmm.close();
  });
}

TEST_F(FirecrackerJail, AnotherWorkerAndAnotherHostdFindItAgain) {
  ASSERT_TRUE(client().make_slot(0));
  with_driver([this](vmm::FirecrackerDriver* driver) -> awaitable<void> {
    auto made = co_await driver->boot(spec(0));
    EXPECT_TRUE(made);
    co_await (*made)->close();
    hostd_->stop(SIGKILL);
    hostd_->start();
    auto found = co_await driver->adopt(0);
    EXPECT_TRUE(found) << found.error().message() << found.error().detail();
    auto const resumed = co_await (*found)->resume(soon());
    EXPECT_TRUE(resumed);
    ::kill((*found)->pid(), SIGKILL);
    co_await (*found)->wait_gone();
    auto const exit = co_await (*found)->kill();
    EXPECT_NE(exit->cause, vmm::ExitCause::asked);
    co_await (*found)->close();
  });
}

TEST_F(FirecrackerJail, ACaptureIsGoneOnFromElsewhereOnMemoryThatNobodyCanWrite) {
  ASSERT_TRUE(client().make_slot(0));
  ASSERT_TRUE(client().make_slot(1));
  with_driver([this](vmm::FirecrackerDriver* driver) -> awaitable<void> {
    auto const memory = make_file(installation_.directory() + "/memory", 64 << 20);
    auto const state = make_file(installation_.directory() + "/state", 0);
    auto recorded = spec(0, vmm::MachineStart::record);
    recorded.memory = std::move(*memory.duplicate());
    auto made = co_await driver->boot(std::move(recorded));
    EXPECT_TRUE(made) << made.error().message() << made.error().detail();
    if (!made) co_return;
    auto const captured = co_await (*made)->capture(state, soon());
    EXPECT_TRUE(captured) << captured.error().message() << captured.error().detail();
    EXPECT_EQ(head_of(state), "a state");
    EXPECT_EQ(head_of(memory), "a memory");
    auto const exit = co_await (*made)->kill();
    EXPECT_TRUE(exit);
    co_await (*made)->close();

    auto restored = spec(1, vmm::MachineStart::restore);
    restored.memory = std::move(*memory.duplicate());
    auto clone = co_await driver->boot(std::move(restored));
    EXPECT_TRUE(clone) << clone.error().message() << clone.error().detail();
    if (!clone) co_return;
    auto const gone_on = co_await (*clone)->restore(state, soon());
    EXPECT_TRUE(gone_on) << gone_on.error().message() << gone_on.error().detail();
    co_await console_says(**clone, "state: a state\nmemory: a memory\nmemory is read-only\n");
    auto const ended = co_await (*clone)->kill();
    EXPECT_TRUE(ended);
    co_await (*clone)->close();
  });
}

TEST_F(FirecrackerJail, AKillAtEveryStepOfItsStartLeavesNothing) {
  for (char const* point : {"hostd.vmm.group_made",
                            "hostd.vmm.recorded",
                            "hostd.firecracker.files_made",
                            "hostd.vmm.started"}) {
    for (bool const kill : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", point, kill));
      hostd_->stop(SIGTERM);
      hostd_->arm(fmt::format("{} {}", point, kill ? "kill" : "fail"));
      hostd_->start();
      ASSERT_TRUE(client().make_slot(2));
      with_driver([this](vmm::FirecrackerDriver* driver) -> awaitable<void> {
        auto const made = co_await driver->boot(spec(2));
        EXPECT_FALSE(made);
      });
      EXPECT_FALSE(hostd_->armed());
      if (kill) {
        EXPECT_TRUE(eventually([&] { return hostd_->died(); }));
        hostd_->start();
      }
      auto ended = client().end_vmm(2);
      static_cast<void>(ended);
      EXPECT_TRUE(client().remove_slot(2));
      EXPECT_THAT(installation_.holdings(), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace test
