// What vmm.hpp promises, asked of every driver with a real guest. A driver is tried where it is
// proven: where a boot of the guest to its agent's first answer succeeds. Where it does not, the
// tests say so and are skipped; software emulation must work everywhere.

#include "async/testing.hpp"
#include "integration/guest_fixture.hpp"
#include "vmm/firecracker.hpp"
#include "vmm/qemu.hpp"
#include "worker/hostd_launcher.hpp"

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
using std::chrono::seconds;

base::Deadline soon() {
  return base::system_clock().in(seconds(20));
}

struct Runner {
  char const* name;
  vmm::Engine engine;
  vmm::Accelerator accelerator;
};

std::string_view name_of(testing::TestParamInfo<Runner> const& info) {
  return info.param.name;
}

class Conformance : public WithMachines, public testing::WithParamInterface<Runner> {
 protected:
  void SetUp() override {
    WithMachines::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto const missing = what_is_missing();
    if (!missing.empty()) {
      GTEST_SKIP() << "NOT TRIED: driver " << GetParam().name << " is not proven here: " << missing;
    }
  }

  void TearDown() override {
    if (!hostd_) return;
    for (std::uint32_t slot = 0; slot < 4; ++slot) {
      auto ended = client().end_vmm(slot);
      auto removed = client().remove_slot(slot);
      static_cast<void>(ended);
      static_cast<void>(removed);
    }
    EXPECT_THAT(installation_.holdings(), testing::IsEmpty());
  }

  /// "" when the driver can be tried. The answer of the one boot that it takes is kept.
  std::string what_is_missing() {
    auto const features = client().hello()->features;
    auto const& runner = GetParam();
    if (runner.accelerator == vmm::Accelerator::tcg) return {};
    if ((features & hostd::kvm_device) == 0) return "there is no /dev/kvm";
    if (runner.engine == vmm::Engine::firecracker && (features & hostd::firecracker_found) == 0)
      return "there is no firecracker binary";
    static std::map<std::string, bool> proven;
    if (!proven.contains(runner.name)) {
      bool answered = false;
      async::run_test([&]() -> awaitable<void> {
        auto vmm = co_await start(3, vmm::MachineStart::boot);
        if (!vmm) co_return;
        answered = co_await agent_answers(client(), 3, seconds(8));
        auto const exit = co_await (*vmm)->kill();
        EXPECT_TRUE(exit);
        co_await (*vmm)->close();
      });
      proven[runner.name] = answered;
    }
    return proven[runner.name] ? "" : "the guest does not boot to its agent's first answer";
  }

  os::Fd make_file(std::string const& name, off_t bytes) const {
    os::Fd file(::open(path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(file.get(), bytes), 0);
    return file;
  }

  awaitable<vmm::Driver*> driver() {
    if (!driver_) {
      auto const executor = co_await asio::this_coro::executor;
      launcher_ = std::make_unique<worker::HostdLauncher>(client(), worker::Rates());
      if (GetParam().engine == vmm::Engine::firecracker) {
        driver_ = std::make_unique<vmm::FirecrackerDriver>(executor, *launcher_);
      } else {
        driver_ = std::make_unique<vmm::QemuDriver>(executor, *launcher_);
      }
    }
    co_return driver_.get();
  }

  async::Task<std::unique_ptr<vmm::Vmm>> start(std::uint32_t slot, vmm::MachineStart start) {
    auto made = client().make_slot(slot);
    if (!made) co_return base::passing(made, "make a slot");
    auto const disk = fmt::format("disk{}.img", slot);
    fs::copy_file(path("disk.img"), path(disk), fs::copy_options::overwrite_existing);
    auto spec = boot_spec(slot, disk);
    spec.accelerator = GetParam().accelerator;
    spec.start = start;
    if (start != vmm::MachineStart::boot) spec.memory = make_file("memory", memory_mib << 20U);
    auto* const chosen = co_await driver();
    co_return co_await chosen->boot(std::move(spec));
  }

  /// Every test runs in here, so that a driver never outlives its loop.
  void run(std::function<awaitable<void>()> test) {
    async::run_test(
        [this, test = std::move(test)]() -> awaitable<void> {
          driver_.reset();
          co_await test();
          driver_.reset();
        },
        seconds(110));
    driver_.reset();
  }

  std::unique_ptr<worker::HostdLauncher> launcher_;
  std::unique_ptr<vmm::Driver> driver_;
};

TEST_P(Conformance, StopsGoesOnIsFoundAgainAndTellsHowItEnded) {
  run([this]() -> awaitable<void> {
    auto made = co_await start(0, vmm::MachineStart::boot);
    EXPECT_TRUE(made) << made.error().message() << " " << made.error().detail();
    if (!made) co_return;
    EXPECT_TRUE(co_await agent_answers(client(), 0, seconds(60)));
    EXPECT_FALSE((*made)->stalled());
    auto step = co_await (*made)->pause(soon());
    EXPECT_TRUE(step);
    auto stopped = co_await (*made)->stopped(soon());
    EXPECT_TRUE(stopped && *stopped);
    EXPECT_EQ(ask_agent(client(), 0, milliseconds(500)), "");
    co_await (*made)->close();

    auto* const chosen = co_await driver();
    auto found = co_await chosen->adopt(0);
    EXPECT_TRUE(found) << found.error().message();
    if (!found) co_return;
    auto& vmm = **found;
    stopped = co_await vmm.stopped(soon());
    EXPECT_TRUE(stopped && *stopped);
    step = co_await vmm.resume(soon());
    EXPECT_TRUE(step);
    EXPECT_TRUE(co_await agent_answers(client(), 0, seconds(20)));
    ::kill(vmm.pid(), SIGKILL);
    co_await vmm.wait_gone();
    auto const exit = co_await vmm.kill();
    EXPECT_EQ(exit->cause, vmm::ExitCause::killed);
    auto const again = co_await vmm.kill();
    EXPECT_EQ(again->cause, vmm::ExitCause::killed);
    co_await vmm.close();
  });
}

TEST_P(Conformance, GoesOnElsewhereFromACapture) {
  run([this]() -> awaitable<void> {
    auto made = co_await start(0, vmm::MachineStart::record);
    EXPECT_TRUE(made) << made.error().message() << " " << made.error().detail();
    if (!made) co_return;
    EXPECT_TRUE(co_await agent_answers(client(), 0, seconds(60)));
    auto const state = make_file("state", 0);
    auto const captured = co_await (*made)->capture(state, soon());
    EXPECT_TRUE(captured) << captured.error().message() << " " << captured.error().detail();
    fs::copy_file(path("disk0.img"), path("disk.img"), fs::copy_options::overwrite_existing);
    auto const exit = co_await (*made)->kill();
    EXPECT_EQ(exit->cause, vmm::ExitCause::asked);
    co_await (*made)->close();
    if (!captured) co_return;

    auto clone = co_await start(1, vmm::MachineStart::restore);
    EXPECT_TRUE(clone) << clone.error().message() << " " << clone.error().detail();
    if (!clone) co_return;
    auto const restored = co_await (*clone)->restore(state, soon());
    EXPECT_TRUE(restored) << restored.error().message() << " " << restored.error().detail();
    EXPECT_TRUE(co_await agent_answers(client(), 1, seconds(20)));
    auto const ended = co_await (*clone)->kill();
    EXPECT_EQ(ended->cause, vmm::ExitCause::asked);
    co_await (*clone)->close();
  });
}

TEST_P(Conformance, AStateOfNothingIsRefusedAndTheMachineCanBeEnded) {
  run([this]() -> awaitable<void> {
    auto made = co_await start(0, vmm::MachineStart::restore);
    EXPECT_TRUE(made) << made.error().message() << " " << made.error().detail();
    if (!made) co_return;
    auto const state = make_file("state", 4096);
    auto const restored = co_await (*made)->restore(state, soon());
    EXPECT_FALSE(restored);
    auto const exit = co_await (*made)->kill();
    EXPECT_TRUE(exit);
    co_await (*made)->close();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Driver,
    Conformance,
    testing::Values(Runner{"qemu_in_software", vmm::Engine::qemu, vmm::Accelerator::tcg},
                    Runner{"qemu_with_kvm", vmm::Engine::qemu, vmm::Accelerator::kvm},
                    Runner{
                        "firecracker_with_kvm", vmm::Engine::firecracker, vmm::Accelerator::kvm}),
    [](auto const& info) { return std::string(name_of(info)); });

}  // namespace
}  // namespace test
