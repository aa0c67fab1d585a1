#include "integration/guest_fixture.hpp"

#include "async/task.hpp"
#include "base/id.hpp"
#include "vmm/qemu.hpp"
#include "vmm/tsc.hpp"
#include "wire/agent.hpp"
#include "worker/hostd_launcher.hpp"

#include <sys/socket.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace test {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;

std::string why_no_guest(Installation const& installation) {
  if (::geteuid() != 0) return "needs root: space-hostd makes namespaces and users' processes";
  auto const guest = installation.config().guest();
  if (fs::exists(guest + "/vmlinux")) return {};
  return "no guest kernel at " + guest + ": images/build_guest.sh failed or did not run";
}

bool make_empty_disk(std::string const& image) {
  fs::create_directories(fs::path(image).parent_path());
  std::ofstream(image) << "";
  fs::resize_file(image, 16 << 20);
  return ::system(("mke2fs -q -F -t ext4 " + image).c_str()) == 0;  // NOLINT: our own words
}

std::string ask_agent(hostd::Client const& client,
                      std::uint32_t slot,
                      std::chrono::milliseconds limit) {
  auto const socket = client.dial(slot, wire::agent_port);
  if (!socket) return {};
  auto const limit_ms = static_cast<int>(limit.count());
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

awaitable<bool> agent_answers(hostd::Client client,
                              std::uint32_t slot,
                              std::chrono::seconds limit) {
  co_return co_await async::blocking([client, slot, limit] {
    return eventually([&] { return ask_agent(client, slot).starts_with("HTTP/1.1 2"); }, limit);
  });
}

void WithMachines::SetUp() {
  auto const missing = why_no_guest(installation_);
  if (!missing.empty()) GTEST_SKIP() << missing;
  ASSERT_TRUE(make_empty_disk(path("disk.img"))) << "mke2fs (e2fsprogs) failed";
  auto const rate = vmm::measure_tsc_khz();
  ASSERT_TRUE(rate) << rate.error().message();
  tsc_khz_ = *rate;
  hostd_.emplace(installation_);
}

os::Fd WithMachines::open(std::string const& name, int flags) const {
  return os::Fd(::open(path(name).c_str(), flags | O_CLOEXEC, 0600));
}

vmm::BootSpec WithMachines::boot_spec(std::uint32_t slot, std::string const& disk) const {
  vmm::BootSpec spec;
  spec.slot = slot;
  spec.sandbox = base::SandboxId::make().str();
  spec.epoch = 1;
  spec.memory_mib = memory_mib;
  spec.tsc_khz = tsc_khz_;
  spec.disk = open(disk, O_RDWR);
  return spec;
}

awaitable<std::unique_ptr<vmm::Vmm>> WithMachines::start(vmm::BootSpec spec) {
  launchers_.push_back(std::make_unique<worker::HostdLauncher>(client(), worker::Rates()));
  vmm::QemuDriver driver(co_await asio::this_coro::executor, *launchers_.back());
  auto const made = client().make_slot(spec.slot);
  EXPECT_TRUE(made);
  auto vmm = co_await driver.boot(std::move(spec));
  EXPECT_TRUE(vmm) << vmm.error().message() << " " << vmm.error().detail();
  co_return vmm ? std::move(*vmm) : nullptr;
}

}  // namespace test
