// Suspend and restore on a real space-hostd with a real guest: only what has changed is kept, and
// the machine goes on from it, any number of times.

#include "async/testing.hpp"
#include "base/id.hpp"
#include "integration/hostd_fixture.hpp"
#include "vmm/qemu.hpp"
#include "vmm/tsc.hpp"
#include "worker/hostd_launcher.hpp"
#include "worker/memory_pages.hpp"

#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using std::chrono::milliseconds;

constexpr std::uint32_t memory_mib = 256;

base::Deadline within(milliseconds limit) {
  return base::system_clock().in(limit);
}

/// GET /health through the slot's network; "" when there is no answer yet.
std::string ask_agent(hostd::Client const& client, std::uint32_t slot, int limit_ms) {
  auto const socket = client.dial(slot, 49983);
  if (!socket) return {};
  pollfd wait{.fd = socket->get(), .events = POLLOUT, .revents = 0};
  if (::poll(&wait, 1, limit_ms) != 1) return {};
  constexpr std::string_view request = "GET /health HTTP/1.1\r\nHost: guest\r\n\r\n";
  if (::send(socket->get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return {};
  wait.events = POLLIN;
  if (::poll(&wait, 1, limit_ms) != 1) return {};
  std::array<char, 512> bytes{};
  auto const got = ::recv(socket->get(), bytes.data(), bytes.size(), 0);
  return got > 0 ? std::string(bytes.data(), static_cast<std::size_t>(got)) : std::string();
}

awaitable<bool> answers(hostd::Client client, std::uint32_t slot) {
  co_return co_await async::blocking([client, slot] {
    return eventually([&] { return ask_agent(client, slot, 2000).starts_with("HTTP/1.1 2"); },
                      std::chrono::seconds(60));
  });
}

class Suspended : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0)
      GTEST_SKIP() << "needs root: space-hostd makes namespaces and users' processes";
    if (!fs::exists(installation_.config().guest() + "/vmlinux")) {
      GTEST_SKIP() << "no guest kernel at " << installation_.config().guest()
                   << ": images/build_guest.sh failed or did not run";
    }
    std::ofstream(path("disk.img")) << "";
    fs::resize_file(path("disk.img"), 16 << 20);
    ASSERT_EQ(::system(("mke2fs -q -F -t ext4 " + path("disk.img")).c_str()), 0);  // NOLINT
    auto const rate = vmm::measure_tsc_khz();
    ASSERT_TRUE(rate) << rate.error().message();
    tsc_khz_ = *rate;
    hostd_.emplace(installation_);
  }

  std::string path(std::string const& name) const { return installation_.directory() + "/" + name; }

  hostd::Client client() const { return hostd_->client(); }

  os::Fd open(std::string const& name, int flags) const {
    return os::Fd(::open(path(name).c_str(), flags | O_CLOEXEC, 0600));
  }

  vmm::BootSpec spec(std::uint32_t slot) const {
    vmm::BootSpec spec;
    spec.slot = slot;
    spec.sandbox = base::SandboxId::make().str();
    spec.epoch = 1;
    spec.memory_mib = memory_mib;
    spec.tsc_khz = tsc_khz_;
    spec.disk = open("disk.img", O_RDWR);
    return spec;
  }

  awaitable<std::unique_ptr<vmm::Vmm>> start(vmm::BootSpec spec) {
    launchers_.push_back(std::make_unique<worker::HostdLauncher>(client(), worker::Rates()));
    vmm::QemuDriver driver(co_await asio::this_coro::executor, *launchers_.back());
    auto const made = client().make_slot(spec.slot);
    EXPECT_TRUE(made);
    auto vmm = co_await driver.boot(std::move(spec));
    EXPECT_TRUE(vmm) << vmm.error().message() << " " << vmm.error().detail();
    co_return vmm ? std::move(*vmm) : nullptr;
  }

  /// Stops it, keeps `state` and `pages`, ends it.
  awaitable<bool> suspend(std::uint32_t slot, vmm::Vmm* vmm, bool on_file) {
    auto const begin = std::chrono::steady_clock::now();
    auto const paused = co_await vmm->pause(within(milliseconds(5000)));
    EXPECT_TRUE(paused);
    auto const state = co_await vmm->save_devices(within(milliseconds(10'000)));
    EXPECT_TRUE(state) << state.error().message() << " " << state.error().detail();
    auto const address = co_await vmm->memory_address(within(milliseconds(5000)));
    EXPECT_TRUE(address) << address.error().message() << " " << address.error().detail();
    if (!state || !address) co_return false;
    std::ofstream(path("state"), std::ios::binary | std::ios::trunc) << *state;
    auto const memory = client().open_memory(slot);
    EXPECT_TRUE(memory) << memory.error().detail();
    if (!memory) co_return false;
    auto const saved = worker::save_changed_pages(
        *memory, *address, memory_mib, on_file, open("pages", O_RDWR | O_CREAT | O_TRUNC));
    EXPECT_TRUE(saved) << saved.error().message();
    if (!saved) co_return false;
    fmt::print(
        "suspend: {} ms, {} KiB of pages, state {} bytes\n",
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count(),
        saved->bytes / 1024,
        state->size());
    auto const good = worker::check_changed_pages(open("pages", O_RDONLY), memory_mib);
    EXPECT_TRUE(good) << good.error().message();
    auto const exit = co_await vmm->kill();
    EXPECT_EQ(exit->cause, vmm::ExitCause::asked);
    co_await vmm->close();
    co_return good.has_value();
  }

  awaitable<std::unique_ptr<vmm::Vmm>> restore(std::uint32_t slot) {
    auto const begin = std::chrono::steady_clock::now();
    auto machine = spec(slot);
    machine.start = vmm::MachineStart::restore;
    machine.memory = open("memory", O_RDWR | O_CREAT);
    EXPECT_EQ(::ftruncate(machine.memory.get(), off_t{memory_mib} << 20), 0);
    machine.changes = open("pages", O_RDONLY);
    auto vmm = co_await start(std::move(machine));
    if (!vmm) co_return nullptr;
    auto const state = open("state", O_RDONLY);
    auto const restored = co_await vmm->restore(state, within(milliseconds(20'000)));
    EXPECT_TRUE(restored) << restored.error().message() << " " << restored.error().detail();
    if (!restored) {
      auto const exit = co_await vmm->kill();  // logs what the VMM said
      co_await vmm->close();
      EXPECT_EQ(exit->detail, "");
      co_return nullptr;
    }
    auto const answered = co_await answers(client(), slot);
    EXPECT_TRUE(answered);
    EXPECT_EQ(vmm->console(4096), "") << "it went on: a boot would have said something";
    fmt::print(
        "restore to first answer: {} ms\n",
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count());
    co_return restored&& answered ? std::move(vmm) : nullptr;
  }

  test::Installation installation_;
  std::optional<test::Hostd> hostd_;
  std::vector<std::unique_ptr<worker::HostdLauncher>> launchers_;
  std::uint64_t tsc_khz_ = 0;
};

TEST_F(Suspended, ABootedMachineGoesOnFromWhatWasKeptAgainAndAgain) {
  auto body = [this]() -> awaitable<void> {
    auto vmm = co_await start(spec(0));
    if (!vmm) co_return;
    auto const booted = co_await answers(client(), 0);
    EXPECT_TRUE(booted);
    for (std::uint32_t slot = 0; slot < 3; ++slot) {
      auto const kept = co_await suspend(slot, vmm.get(), false);
      if (!kept) co_return;
      vmm = co_await restore(slot + 1);
      if (!vmm) co_return;
    }
    auto const exit = co_await vmm->kill();
    EXPECT_EQ(exit->cause, vmm::ExitCause::asked);
    co_await vmm->close();
  };
  async::run_test(body, std::chrono::seconds(110));
}

}  // namespace
}  // namespace test
