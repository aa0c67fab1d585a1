// Suspend and restore on a real space-hostd with a real guest: only what has changed is kept, and
// the machine goes on from it, any number of times.

#include "async/testing.hpp"
#include "integration/guest_fixture.hpp"
#include "worker/memory_pages.hpp"

#include <fstream>

#include <fcntl.h>
#include <unistd.h>

namespace test {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using std::chrono::milliseconds;

base::Deadline within(milliseconds limit) {
  return base::system_clock().in(limit);
}

class Suspended : public WithMachines {
 protected:
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
    auto machine = boot_spec(slot, "disk.img");
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
    auto const answered = co_await agent_answers(client(), slot);
    EXPECT_TRUE(answered);
    EXPECT_EQ(vmm->console(4096), "") << "it went on: a boot would have said something";
    fmt::print(
        "restore to first answer: {} ms\n",
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count());
    co_return restored&& answered ? std::move(vmm) : nullptr;
  }
};

TEST_F(Suspended, ABootedMachineGoesOnFromWhatWasKeptAgainAndAgain) {
  auto body = [this]() -> awaitable<void> {
    auto vmm = co_await start(boot_spec(0, "disk.img"));
    if (!vmm) co_return;
    auto const booted = co_await agent_answers(client(), 0);
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
