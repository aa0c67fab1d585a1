#include "vmm/firecracker.hpp"

#include "async/testing.hpp"
#include "vmm/firecracker_api.hpp"
#include "vmm/firecracker_command.hpp"
#include "vmm/firecracker_fake.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>

#include <gmock/gmock.h>
#include <unistd.h>

namespace vmm {
namespace {

using asio::awaitable;
using firecracker::Fake;
using firecracker::ResponseReader;
using std::chrono::milliseconds;
using testing::ElementsAre;
using Names = std::vector<std::string>;

base::Deadline soon() {
  return base::system_clock().in(milliseconds(5000));
}

constexpr std::string_view no_content =
    "HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n";

TEST(FirecrackerReader, ReadsAnswersHoweverTheyAreCut) {
  auto const text = std::string(no_content) +
                    "HTTP/1.1 400 \r\nServer: Firecracker API\r\nContent-Type: application/json\r\n"
                    "content-length: 22\r\n\r\n{\"fault_message\":\"no\"}" +
                    std::string(no_content);
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    ResponseReader reader;
    std::vector<int> statuses;
    std::string body;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      ASSERT_TRUE(reader.feed(std::string_view(text).substr(at, piece))) << piece;
      while (auto response = reader.next()) {
        statuses.push_back(response->status);
        body += response->body;
      }
    }
    ASSERT_THAT(statuses, ElementsAre(204, 400, 204)) << piece;
    ASSERT_EQ(firecracker::fault_in(body), "no");
  }
}

TEST(FirecrackerReader, ReadsTheUnaskedRefusalOfTooManyConnections) {
  ResponseReader reader;
  ASSERT_TRUE(
      reader.feed("HTTP/1.1 503\r\nServer: Firecracker API\r\nContent-Length: 39\r\n\r\n"
                  "{ \"error\": \"Too many open connections\" }"));
  EXPECT_EQ(reader.next()->status, 503);
}

TEST(FirecrackerReader, IsOverForGoodAfterWhatIsNoAnswer) {
  for (std::string const hostile :
       {"hello\r\n\r\n",
        "HTTP/1.0 204 \r\n\r\n",
        "HTTP/1.1 20x \r\n\r\n",
        "HTTP/1.1 2040 \r\n\r\n",
        "HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 \r\nContent-Length: 99999999\r\n\r\n",
        "HTTP/1.1 200 \r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 \r\nno colon\r\n\r\n"}) {
    ResponseReader reader;
    EXPECT_FALSE(reader.feed(hostile)) << hostile;
    EXPECT_FALSE(reader.feed(no_content)) << hostile;
  }
  ResponseReader endless;
  base::Result<void> fed;
  for (int i = 0; i < 100 && fed; ++i)
    fed = endless.feed(std::string(1024, 'x'));
  EXPECT_EQ(fed.error().code(), base::Code::too_large);
  ResponseReader flood;
  fed = {};
  for (int i = 0; i < 10'000 && fed; ++i)
    fed = flood.feed(no_content);
  EXPECT_EQ(fed.error().code(), base::Code::exhausted);
}

TEST(FirecrackerReader, TakesVersionsApart) {
  using firecracker::parse_version;
  using firecracker::Version;
  EXPECT_EQ(parse_version("1.17.0-dev"), (Version{1, 17}));
  EXPECT_EQ(parse_version("2.0"), (Version{2, 0}));
  EXPECT_LT(*parse_version("1.9.1"), (Version{1, 12}));
  for (auto const* bad : {"", "1", "v1.2", ".", "1.x", "-1.2"})
    EXPECT_FALSE(parse_version(bad)) << bad;
}

ExitEvidence exited(int status, std::string_view console = {}) {
  ExitEvidence evidence;
  evidence.process.wait_status = status << 8;
  evidence.console_tail = console;
  return evidence;
}

TEST(FirecrackerExit, TellsItsStatusesApart) {
  using firecracker::exit_of;
  EXPECT_EQ(exit_of(exited(0)).cause, ExitCause::guest_reboot);
  EXPECT_EQ(exit_of(exited(0, "reboot: Power down\n")).cause, ExitCause::guest_shutdown);
  EXPECT_EQ(exit_of(exited(0, "Kernel panic - not syncing: x\n")).cause, ExitCause::guest_panic);
  EXPECT_THAT(exit_of(exited(148)).detail, testing::HasSubstr("forbidden system call"));
  EXPECT_THAT(exit_of(exited(149)).detail, testing::HasSubstr("memory file"));
  EXPECT_THAT(exit_of(exited(151)).detail, testing::HasSubstr("size limit"));
  for (int const status : {1, 2, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157})
    EXPECT_EQ(exit_of(exited(status)).cause, ExitCause::crashed) << status;
  auto asked = exited(148);
  asked.asked = true;
  EXPECT_EQ(exit_of(asked).cause, ExitCause::asked);
  ExitEvidence killed;
  killed.process.wait_status = SIGKILL;
  EXPECT_EQ(exit_of(killed).cause, ExitCause::killed);
}

os::Fd file_with(std::string_view content) {
  os::Fd file(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(file.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return file;
}

std::string content_of(os::FdRef file) {
  std::string text(100, '\0');
  auto const got = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::pair<os::Fd, os::Fd> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  return {os::Fd(ends[0]), os::Fd(ends[1])};
}

/// Real processes that wait for the status to exit with, and the fake on their sockets.
class FakeLauncher final : public Launcher {
 public:
  explicit FakeLauncher(asio::any_io_executor executor) : executor_(executor), tasks_(executor) {}

  ~FakeLauncher() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
  }

  async::Task<Process> start(BootSpec spec) override {
    started = std::move(spec);
    co_return take();
  }

  async::Task<Process> attach(std::uint32_t) override { co_return take(); }

  async::Task<ProcessEnd> end(std::uint32_t) override {
    ++ends;
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, &status_, 0);
      child_ = 0;
    }
    co_return ProcessEnd{status_, false};
  }

  /// The process ends by itself.
  void exit(int status) {
    auto const byte = static_cast<unsigned char>(status);
    ASSERT_EQ(::write(order_.get(), &byte, 1), 1);
    ::waitpid(child_, &status_, 0);
    child_ = 0;
  }

  awaitable<void> close() {
    tasks_.cancel();
    co_await tasks_.join();
  }

  std::optional<BootSpec> started;
  Fake fake;
  std::function<std::string(std::string)> answer;  // instead of the fake
  os::Fd exchange = file_with("device state");
  os::Fd console;
  int ends = 0;

 private:
  Process take() {
    std::array<int, 2> order{};
    if (::pipe(order.data()) != 0) throw std::runtime_error("pipe");
    child_ = ::fork();
    if (child_ == 0) {
      ::close(order[1]);
      unsigned char status = 0;
      if (::read(order[0], &status, 1) == 1) ::_exit(status);
      ::_exit(99);
    }
    ::close(order[0]);
    order_ = os::Fd(order[1]);
    Process process;
    process.pid = child_;
    process.pidfd = os::Fd(static_cast<int>(::syscall(SYS_pidfd_open, child_, 0)));
    os::Fd server;
    std::tie(server, process.control) = socket_pair();
    std::tie(console, process.console) = socket_pair();
    process.exchange = std::move(*exchange.duplicate());
    tasks_.spawn("play Firecracker",
                 play(std::move(*Descriptor::adopt(executor_, std::move(server)))));
    return process;
  }

  awaitable<void> play(Descriptor connection) {
    std::array<char, 4096> buffer{};
    while (fake.state() != Fake::State::gone) {
      auto const got = co_await connection.read_some(buffer);
      if (!got || *got == 0) co_return;
      std::string bytes(buffer.data(), *got);
      auto const said =
          co_await connection.write_all(answer ? answer(std::move(bytes)) : fake.take(bytes));
      if (!said) co_return;
    }
    // As the real one after a load that failed.
    exit(1);
  }

  asio::any_io_executor executor_;
  os::Fd order_;
  pid_t child_ = 0;
  int status_ = -1;
  async::TaskGroup tasks_;
};

BootSpec kvm_spec(MachineStart start = MachineStart::boot) {
  BootSpec spec;
  spec.accelerator = Accelerator::kvm;
  spec.vcpus = 2;
  spec.memory_mib = 300;
  spec.start = start;
  return spec;
}

/// A launcher, a driver, and a machine that was booted unless the test does it.
struct Machine {
  explicit Machine(asio::any_io_executor executor)
      : launcher(executor), driver(executor, launcher, {.bytes_per_s = 1000, .ops_per_s = 7}) {}

  FakeLauncher launcher;
  FirecrackerDriver driver;
  std::unique_ptr<Vmm> vmm;
};

void with_launcher(std::function<awaitable<void>(Machine*)> test) {
  async::run_test([test = std::move(test)]() -> awaitable<void> {
    Machine machine(co_await asio::this_coro::executor);
    co_await test(&machine);
    if (machine.vmm) co_await machine.vmm->close();
    co_await machine.launcher.close();
  });
}

void with_machine(std::function<awaitable<void>(Machine*)> test,
                  MachineStart start = MachineStart::boot) {
  with_launcher([test = std::move(test), start](Machine* machine) -> awaitable<void> {
    auto made = co_await machine->driver.boot(kvm_spec(start));
    EXPECT_TRUE(made) << made.error().message() << made.error().detail();
    if (!made) co_return;
    machine->vmm = std::move(*made);
    machine->launcher.fake.accepted.clear();
    co_await test(machine);
  });
}

TEST(FirecrackerVmm, BootsByTheCallsThatTheRealOneTakes) {
  with_launcher([](Machine* machine) -> awaitable<void> {
    auto made = co_await machine->driver.boot(kvm_spec());
    EXPECT_TRUE(made) << made.error().detail();
    if (!made) co_return;
    machine->vmm = std::move(*made);
    auto& fake = machine->launcher.fake;
    EXPECT_THAT(fake.accepted,
                ElementsAre("GET /version",
                            "PUT /machine-config",
                            "PUT /boot-source",
                            "PUT /drives/d0",
                            "PUT /network-interfaces/n0",
                            "PUT /entropy",
                            "PUT /actions"));
    EXPECT_EQ(fake.state(), Fake::State::running);
    EXPECT_EQ(machine->launcher.started->engine, Engine::firecracker);
    EXPECT_EQ(fake.bodies["PUT /machine-config"].at("vcpu_count"), 2);
    EXPECT_EQ(fake.bodies["PUT /machine-config"].at("mem_size_mib"), 300);
    auto const& drive = fake.bodies["PUT /drives/d0"];
    EXPECT_EQ(drive.at("is_root_device"), false);
    EXPECT_EQ(drive.at("cache_type"), "Writeback");
    EXPECT_EQ(drive.at("rate_limiter").at("ops").at("size"), 7);
  });
}

TEST(FirecrackerVmm, AMachineThatCannotBeMadeLeavesNoProcess) {
  with_launcher([](Machine* machine) -> awaitable<void> {
    machine->launcher.fake.fail_next(400, "{\"fault_message\":\"Start microvm error: Kvm error\"}");
    auto const made = co_await machine->driver.boot(kvm_spec());
    EXPECT_FALSE(made);
    EXPECT_EQ(made.error().code(), base::Code::internal);
    EXPECT_THAT(made.error().detail(), testing::HasSubstr("Kvm error"));
    EXPECT_EQ(machine->launcher.ends, 1);
  });
}

TEST(FirecrackerVmm, RefusesSoftwareEmulationAndOldVersions) {
  with_launcher([](Machine* machine) -> awaitable<void> {
    auto spec = kvm_spec();
    spec.accelerator = Accelerator::tcg;
    auto made = co_await machine->driver.boot(std::move(spec));
    EXPECT_EQ(made.error().code(), base::Code::invalid_argument);
    EXPECT_FALSE(machine->launcher.started);
    machine->launcher.fake.version = "1.11.2";
    made = co_await machine->driver.boot(kvm_spec());
    EXPECT_EQ(made.error().code(), base::Code::unavailable);
    EXPECT_THAT(made.error().message(), testing::HasSubstr("1.11 is too old"));
    EXPECT_EQ(machine->launcher.ends, 1);
  });
}

TEST(FirecrackerVmm, PausesAndResumesAsOftenAsOneLikes) {
  with_machine([](Machine* machine) -> awaitable<void> {
    auto& fake = machine->launcher.fake;
    for (int i = 0; i < 2; ++i) {
      auto const paused = co_await machine->vmm->pause(soon());
      EXPECT_TRUE(paused);
      EXPECT_EQ(fake.state(), Fake::State::paused);
      auto const stopped = co_await machine->vmm->stopped(soon());
      EXPECT_TRUE(stopped && *stopped);
    }
    for (int i = 0; i < 2; ++i) {
      auto const resumed = co_await machine->vmm->resume(soon());
      EXPECT_TRUE(resumed);
      EXPECT_EQ(fake.state(), Fake::State::running);
    }
    EXPECT_FALSE(machine->vmm->stalled());
  });
}

TEST(FirecrackerVmm, CapturesWhatIsStoppedAndHandsTheStateOver) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto& fake = machine->launcher.fake;
        auto const state = file_with("");
        auto const captured = co_await machine->vmm->capture(state, soon());
        EXPECT_TRUE(captured);
        EXPECT_THAT(fake.accepted, ElementsAre("PATCH /vm", "PUT /snapshot/create"));
        EXPECT_EQ(fake.state(), Fake::State::paused);
        EXPECT_EQ(content_of(state), "device state");
        auto const& body = fake.bodies["PUT /snapshot/create"];
        EXPECT_EQ(body.at("snapshot_type"), "Full");
        EXPECT_EQ(body.at("mem_file_path"), firecracker::memory);
      },
      MachineStart::record);
}

TEST(FirecrackerVmm, AfterACaptureOnAFullPoolItIsStoppedAndCanBeTriedAgain) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto& fake = machine->launcher.fake;
        auto const paused = co_await machine->vmm->pause(soon());
        EXPECT_TRUE(paused);
        auto const state = file_with("");
        fake.answer("PATCH", "/vm", "{\"state\":\"Paused\"}");
        // The pause of the capture passes; the host's word is for the call after it.
        machine->launcher.answer = [&fake](std::string const& bytes) {
          if (bytes.contains("/snapshot/create"))
            fake.fail_next(400, "{\"fault_message\":\"No space left on device (os error 28)\"}");
          return fake.take(bytes);
        };
        auto captured = co_await machine->vmm->capture(state, soon());
        EXPECT_EQ(captured.error().code(), base::Code::internal);
        EXPECT_THAT(captured.error().detail(), testing::HasSubstr("No space left"));
        EXPECT_EQ(fake.state(), Fake::State::paused);
        EXPECT_EQ(content_of(state), "");
        machine->launcher.answer = nullptr;
        captured = co_await machine->vmm->capture(state, soon());
        EXPECT_TRUE(captured);
      },
      MachineStart::record);
}

TEST(FirecrackerVmm, RestoresOnTheTapOfItsSlotAndGoesOn) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto& fake = machine->launcher.fake;
        EXPECT_EQ(fake.state(), Fake::State::not_started);
        auto const state = file_with("another state");
        auto const restored = co_await machine->vmm->restore(state, soon());
        EXPECT_TRUE(restored) << restored.error().detail();
        EXPECT_THAT(fake.accepted, ElementsAre("PUT /snapshot/load", "PATCH /vm"));
        EXPECT_EQ(fake.state(), Fake::State::running);
        EXPECT_EQ(content_of(machine->launcher.exchange), "another state");
        auto const& body = fake.bodies["PUT /snapshot/load"];
        EXPECT_EQ(body.at("mem_backend").at("backend_type"), "File");
        EXPECT_EQ(body.at("network_overrides").at(0).at("iface_id"), "n0");
        auto const again = co_await machine->vmm->restore(state, soon());
        EXPECT_FALSE(again);
      },
      MachineStart::restore);
}

TEST(FirecrackerVmm, AStateThatDoesNotFitEndsTheProcessAndSaysSo) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        machine->launcher.fake.fail_next(
            400, "{\"fault_message\":\"Load snapshot error: CRC64 validation failed\"}");
        auto const state = file_with("damaged");
        auto const restored = co_await machine->vmm->restore(state, soon());
        EXPECT_EQ(restored.error().code(), base::Code::unavailable);
        EXPECT_THAT(restored.error().detail(), testing::HasSubstr("CRC64"));
        co_await machine->vmm->wait_gone();
        auto const exit = co_await machine->vmm->kill();
        EXPECT_EQ(exit->cause, ExitCause::crashed);
      },
      MachineStart::restore);
}

TEST(FirecrackerVmm, AnEmptyOrEndlessStateNeverReachesTheProcess) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto const empty = file_with("");
        auto const endless = file_with("x");
        EXPECT_EQ(::ftruncate(endless.get(), 1L << 30), 0);
        for (auto const* state : {&empty, &endless}) {
          auto const restored = co_await machine->vmm->restore(*state, soon());
          EXPECT_EQ(restored.error().code(), base::Code::unavailable);
        }
        EXPECT_TRUE(machine->launcher.fake.accepted.empty());
      },
      MachineStart::restore);
}

TEST(FirecrackerVmm, ALateAnswerIsNotTakenForTheNextOne) {
  with_machine([](Machine* machine) -> awaitable<void> {
    auto held = std::make_shared<std::string>();
    auto& launcher = machine->launcher;
    launcher.answer = [&launcher, held](std::string const& bytes) {
      *held += launcher.fake.take(bytes);
      return std::string();
    };
    launcher.fake.fail_next(400, "{\"fault_message\":\"late\"}");
    auto const late = co_await machine->vmm->pause(base::system_clock().in(milliseconds(20)));
    EXPECT_EQ(late.error().code(), base::Code::deadline_exceeded);
    launcher.answer = [&launcher, held](std::string const& bytes) {
      return std::exchange(*held, {}) + launcher.fake.take(bytes);
    };
    auto const paused = co_await machine->vmm->pause(soon());
    EXPECT_TRUE(paused) << paused.error().detail();
  });
}

TEST(FirecrackerVmm, ALyingOneIsCutOffAndCanStillBeKilled) {
  with_machine([](Machine* machine) -> awaitable<void> {
    machine->launcher.answer = [](std::string const&) { return std::string(200'000, 'x'); };
    for (int i = 0; i < 2; ++i) {
      auto const paused = co_await machine->vmm->pause(soon());
      EXPECT_EQ(paused.error().code(), base::Code::unavailable);
    }
    auto const exit = co_await machine->vmm->kill();
    EXPECT_EQ(exit->cause, ExitCause::asked);
    auto const again = co_await machine->vmm->kill();
    EXPECT_EQ(again->cause, ExitCause::asked);
    EXPECT_EQ(machine->launcher.ends, 1);
  });
}

TEST(FirecrackerVmm, TellsAPanicFromAReboot) {
  for (bool const panic : {false, true}) {
    with_machine([panic](Machine* machine) -> awaitable<void> {
      std::string_view const words = panic ? "Kernel panic - not syncing: boom\n" : "restarting\n";
      EXPECT_EQ(::write(machine->launcher.console.get(), words.data(), words.size()),
                static_cast<ssize_t>(words.size()));
      machine->launcher.exit(0);
      co_await machine->vmm->wait_gone();
      auto const exit = co_await machine->vmm->kill();
      EXPECT_EQ(exit->cause, panic ? ExitCause::guest_panic : ExitCause::guest_reboot);
      EXPECT_EQ(machine->vmm->console(100), words);
    });
  }
}

TEST(FirecrackerVmm, AdoptsAMachineAndSeesItDie) {
  with_launcher([](Machine* machine) -> awaitable<void> {
    auto vmm = co_await machine->driver.adopt(3);
    EXPECT_TRUE(vmm);
    machine->vmm = std::move(*vmm);
    EXPECT_THAT(machine->launcher.fake.accepted, ElementsAre("GET /version"));
    machine->launcher.exit(149);
    co_await machine->vmm->wait_gone();
    auto const exit = co_await machine->vmm->kill();
    EXPECT_EQ(exit->cause, ExitCause::crashed);
    EXPECT_THAT(exit->detail, testing::HasSubstr("memory file"));
  });
}

}  // namespace
}  // namespace vmm
