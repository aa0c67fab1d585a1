#include "vmm/qemu.hpp"

#include "async/testing.hpp"
#include "vmm/qmp.hpp"
#include "wire/codec.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>

#include <gtest/gtest.h>
#include <unistd.h>

namespace vmm {
namespace {

using asio::awaitable;
using std::chrono::milliseconds;

base::Deadline soon() {
  return base::system_clock().in(milliseconds(5000));
}

std::pair<os::Fd, os::Fd> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::runtime_error("socketpair");
  return {os::Fd(ends[0]), os::Fd(ends[1])};
}

TEST(QmpReader, TellsGreetingsEventsAndRepliesApart) {
  qmp::Reader reader;
  ASSERT_TRUE(reader.feed(
      "{\"QMP\": {\"version\": {}}}\r\n{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, "));
  ASSERT_TRUE(reader.feed(
      "\"reason\": \"guest-reset\"}}\n{\"return\": {\"status\": \"running\"}, \"id\": 7}\n"
      "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 8}\n"));
  EXPECT_TRUE(std::holds_alternative<qmp::Greeting>(*reader.next()));
  auto const event = reader.next();
  EXPECT_EQ(std::get<qmp::Event>(*event).name, "SHUTDOWN");
  auto const answer = reader.next();
  EXPECT_EQ(std::get<qmp::Reply>(*answer).id, 7U);
  auto const refusal = reader.next();
  EXPECT_EQ(std::get<qmp::Reply>(*refusal).error, "no");
  EXPECT_FALSE(reader.next());
}

TEST(QmpReader, IsOverForGoodAfterWhatIsNoQmp) {
  for (std::string const hostile :
       {"hello\n", "[]\n", "{}\n", "{\"error\": 3}\n", "{\"return\": {}\n", "\x01\x02\n"}) {
    qmp::Reader reader;
    EXPECT_FALSE(reader.feed(hostile)) << hostile;
    EXPECT_FALSE(reader.feed("{\"QMP\": {}}\n")) << hostile;
  }
}

TEST(QmpReader, BoundsLinesNestingAndQueue) {
  qmp::Reader endless;
  base::Result<void> fed;
  for (int i = 0; i < 100 && fed; ++i)
    fed = endless.feed(std::string(1024, 'x'));
  EXPECT_EQ(fed.error().code(), base::Code::too_large);

  qmp::Reader deep;
  EXPECT_FALSE(
      deep.feed("{\"return\": " + std::string(1000, '[') + std::string(1000, ']') + "}\n"));

  qmp::Reader flood;
  fed = {};
  for (int i = 0; i < 1000 && fed; ++i)
    fed = flood.feed("{\"event\": \"X\"}\n");
  EXPECT_EQ(fed.error().code(), base::Code::exhausted);
}

TEST(QmpReader, IgnoresIdsThatAreNotOurs) {
  auto const reply = qmp::parse_line("{\"return\": {}, \"id\": \"seven\"}");
  ASSERT_TRUE(reply);
  EXPECT_EQ(std::get<qmp::Reply>(*reply).id, 0U);
}

/// Starts real processes (that only wait) and plays QEMU on their sockets.
class FakeLauncher final : public Launcher {
 public:
  ~FakeLauncher() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
  }

  async::Task<Process> start(BootSpec) override { co_return take(true); }

  async::Task<Process> attach(std::uint32_t) override { co_return take(false); }

  async::Task<ProcessEnd> end(std::uint32_t) override {
    ++ends;
    if (refuse_ends > 0) {
      --refuse_ends;
      co_return base::fail(base::Code::unavailable, "hostd is away");
    }
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, &status_, 0);
      child_ = 0;
    }
    co_return ProcessEnd{status_, false};
  }

  Process take(bool with_errors) {
    child_ = ::fork();
    if (child_ == 0) {
      for (;;)
        ::pause();
    }
    Process process;
    process.pid = child_;
    process.pidfd = os::Fd(static_cast<int>(::syscall(SYS_pidfd_open, child_, 0)));
    std::tie(control, process.control) = socket_pair();
    std::tie(console, process.console) = socket_pair();
    if (with_errors) std::tie(errors, process.errors) = socket_pair();
    return process;
  }

  void die(int signal) {
    ::kill(child_, signal);
    ::waitpid(child_, &status_, 0);
    child_ = 0;
    control.reset();
    console.reset();
    errors.reset();
  }

  void say(os::Fd const& to, std::string_view text) {
    ASSERT_EQ(::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  /// Answers each command with what `answer` makes of its name and id, until the socket ends.
  awaitable<void> play(Descriptor qemu_end,
                       std::function<std::string(std::string, std::uint64_t)> answer) {
    std::string partial;
    std::array<char, 1024> buffer{};
    for (;;) {
      auto const got = co_await qemu_end.read_some(buffer);
      if (!got || *got == 0) co_return;
      partial.append(buffer.data(), *got);
      for (std::size_t end = 0; (end = partial.find('\n')) != std::string::npos;
           partial.erase(0, end + 1)) {
        auto const command = wire::parse_json(partial.substr(0, end)).value().as_object();
        auto const id = command.at("id").to_number<std::uint64_t>();
        auto const said =
            co_await qemu_end.write_all(answer(std::string(command.at("execute").as_string()), id));
        if (!said) co_return;
      }
    }
  }

  os::Fd control, console, errors;
  int ends = 0;
  int refuse_ends = 0;

 private:
  pid_t child_ = 0;
  int status_ = -1;
};

std::string ok(std::uint64_t id) {
  return fmt::format("{{\"return\": {{}}, \"id\": {}}}\n", id);
}

/// A booted fake machine with somebody who answers its control socket.
struct Machine {
  explicit Machine(asio::any_io_executor executor) : driver(executor, launcher), tasks(executor) {}

  FakeLauncher launcher;
  QemuDriver driver;
  std::unique_ptr<Vmm> vmm;
  async::TaskGroup tasks;

  awaitable<void> boot(std::function<std::string(std::string, std::uint64_t)> answer) {
    auto made = co_await driver.boot({});
    vmm = std::move(made.value());
    auto copy = launcher.control.duplicate();
    auto qemu_end = Descriptor::adopt(co_await asio::this_coro::executor, std::move(*copy));
    tasks.spawn("play QEMU", launcher.play(std::move(*qemu_end), std::move(answer)));
  }

  awaitable<void> close() {
    co_await vmm->close();
    tasks.cancel();
    co_await tasks.join();
  }
};

void with_machine(
    std::function<awaitable<void>(Machine*)> test,
    std::function<std::string(std::string, std::uint64_t)> answer =
        [](std::string, std::uint64_t id) { return ok(id); }) {
  async::run_test([test = std::move(test), answer = std::move(answer)]() -> awaitable<void> {
    Machine machine(co_await asio::this_coro::executor);
    co_await machine.boot(answer);
    co_await test(&machine);
    co_await machine.close();
  });
}

TEST(QemuVmm, PausesAndResumesThroughQmp) {
  auto commands = std::make_shared<std::vector<std::string>>();
  with_machine(
      [commands](Machine* machine) -> awaitable<void> {
        auto const paused = co_await machine->vmm->pause(soon());
        EXPECT_TRUE(paused);
        auto const resumed = co_await machine->vmm->resume(soon());
        EXPECT_TRUE(resumed);
        EXPECT_EQ(*commands, (std::vector<std::string>{"qmp_capabilities", "stop", "cont"}));
      },
      [commands](std::string name, std::uint64_t id) {
        commands->push_back(name);
        return ok(id);
      });
}

TEST(QemuVmm, AConnectionThatWasNegotiatedBeforeIsAsGoodAsAFreshOne) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto const paused = co_await machine->vmm->pause(soon());
        EXPECT_TRUE(paused);
      },
      [](std::string name, std::uint64_t id) {
        if (name != "qmp_capabilities") return ok(id);
        return fmt::format(
            "{{\"error\": {{\"class\": \"CommandNotFound\", \"desc\": \"already\"}}, \"id\": "
            "{}}}\n",
            id);
      });
}

/// Plays a QEMU that answers queries with these states in turn, the last one for ever.
std::function<std::string(std::string, std::uint64_t)> with_states(
    std::vector<std::string> states, std::shared_ptr<std::vector<std::string>> commands) {
  auto const at = std::make_shared<std::size_t>(0);
  return [states, commands, at](std::string name, std::uint64_t id) {
    if (commands->empty() || commands->back() != name) commands->push_back(name);
    if (!name.starts_with("query-")) return ok(id);
    auto const& state = states[std::min(*at, states.size() - 1)];
    ++*at;
    auto const value =
        state.empty() ? std::string("{}") : fmt::format("{{\"status\": \"{}\"}}", state);
    return fmt::format("{{\"return\": {}, \"id\": {}}}\n", value, id);
  };
}

using Names = std::vector<std::string>;

TEST(QemuVmm, CapturesWhatIsStoppedAndWaitsUntilItIsWritten) {
  auto commands = std::make_shared<Names>();
  with_machine(
      [commands](Machine* machine) -> awaitable<void> {
        auto [state, other] = socket_pair();
        auto const captured = co_await machine->vmm->capture(state, soon());
        EXPECT_TRUE(captured);
        EXPECT_EQ(*commands,
                  (Names{"qmp_capabilities",
                         "stop",
                         "migrate-set-capabilities",
                         "getfd",
                         "migrate",
                         "query-migrate"}));
      },
      with_states({"", "setup", "active", "completed"}, commands));
}

TEST(QemuVmm, ACaptureThatFailsOrIsTooSlowIsCancelled) {
  for (std::string const state : {"failed", "active"}) {
    auto commands = std::make_shared<Names>();
    with_machine(
        [commands, state](Machine* machine) -> awaitable<void> {
          auto [file, other] = socket_pair();
          auto const captured =
              co_await machine->vmm->capture(file, base::system_clock().in(milliseconds(100)));
          EXPECT_FALSE(captured);
          auto const wanted =
              state == "failed" ? base::Code::internal : base::Code::deadline_exceeded;
          EXPECT_EQ(captured.error().code(), wanted);
          EXPECT_EQ(commands->back(), "migrate_cancel");
        },
        with_states({state}, commands));
  }
}

TEST(QemuVmm, RestoresAndGoesOnOnceTheStateIsLoaded) {
  auto commands = std::make_shared<Names>();
  with_machine(
      [commands](Machine* machine) -> awaitable<void> {
        auto [state, other] = socket_pair();
        auto const restored = co_await machine->vmm->restore(state, soon());
        EXPECT_TRUE(restored);
        EXPECT_EQ(*commands,
                  (Names{"qmp_capabilities",
                         "migrate-set-capabilities",
                         "getfd",
                         "migrate-incoming",
                         "query-status",
                         "cont"}));
      },
      with_states({"inmigrate", "inmigrate", "paused"}, commands));
}

TEST(QemuVmm, ARestoreThatNeverLoadsEndsAtItsDeadlineAndDoesNotGoOn) {
  auto commands = std::make_shared<Names>();
  with_machine(
      [commands](Machine* machine) -> awaitable<void> {
        auto [state, other] = socket_pair();
        auto const restored =
            co_await machine->vmm->restore(state, base::system_clock().in(milliseconds(100)));
        EXPECT_FALSE(restored);
        EXPECT_EQ(restored.error().code(), base::Code::deadline_exceeded);
        EXPECT_EQ(commands->back(), "query-status");
      },
      with_states({"inmigrate"}, commands));
}

TEST(QemuVmm, ASilentQemuCostsTheCallerItsDeadlineAndNothingElse) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto const paused = co_await machine->vmm->pause(base::system_clock().in(milliseconds(20)));
        EXPECT_EQ(paused.error().code(), base::Code::deadline_exceeded);
        auto const exit = co_await machine->vmm->kill();
        EXPECT_EQ(exit->cause, ExitCause::asked);
      },
      [](std::string, std::uint64_t) { return std::string(); });
}

TEST(QemuVmm, ALyingQemuIsCutOffAndCanStillBeKilled) {
  with_machine(
      [](Machine* machine) -> awaitable<void> {
        auto const paused = co_await machine->vmm->pause(soon());
        EXPECT_EQ(paused.error().code(), base::Code::unavailable);
        auto const exit = co_await machine->vmm->kill();
        EXPECT_EQ(exit->cause, ExitCause::asked);
      },
      [](std::string, std::uint64_t) { return std::string(100'000, '{') + "\n"; });
}

TEST(QemuVmm, TellsWhyAGuestThatShutItselfDownIsGone) {
  with_machine([](Machine* machine) -> awaitable<void> {
    auto& launcher = machine->launcher;
    launcher.say(launcher.console, "reboot: Power down\n");
    launcher.say(
        launcher.control,
        "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": \"guest-shutdown\"}}\n");
    co_await async::sleep_for(milliseconds(20));
    // The end of a process by exit(0); the fake can only be killed, so its status is unknown here.
    launcher.die(SIGKILL);
    co_await machine->vmm->wait_gone();
    EXPECT_EQ(machine->vmm->console(100), "reboot: Power down\n");
    auto const exit = co_await machine->vmm->kill();
    EXPECT_EQ(exit->cause, ExitCause::killed);  // the kernel's word goes first
    EXPECT_EQ(exit->console_tail, "reboot: Power down");
  });
}

TEST(QemuVmm, AKillIsTriedAgainUntilTheLauncherAnswersAndThenStaysTheSame) {
  with_machine([](Machine* machine) -> awaitable<void> {
    machine->launcher.refuse_ends = 1;
    auto const refused = co_await machine->vmm->kill();
    EXPECT_EQ(refused.error().code(), base::Code::unavailable);
    auto const exit = co_await machine->vmm->kill();
    EXPECT_EQ(exit->cause, ExitCause::asked);
    auto const again = co_await machine->vmm->kill();
    EXPECT_EQ(again->cause, ExitCause::asked);
    EXPECT_EQ(machine->launcher.ends, 2);
  });
}

TEST(QemuVmm, KnowsWhenAFullPoolStoppedItsMachine) {
  with_machine([](Machine* machine) -> awaitable<void> {
    auto& launcher = machine->launcher;
    auto settled = [&](bool stalled) -> awaitable<bool> {
      for (int i = 0; i < 200 && machine->vmm->stalled() != stalled; ++i)
        co_await async::sleep_for(milliseconds(5));
      co_return machine->vmm->stalled() == stalled;
    };
    launcher.say(
        launcher.control,
        "{\"event\": \"BLOCK_IO_ERROR\", \"data\": {\"action\": \"report\", \"nospace\": true}}\n");
    launcher.say(
        launcher.control,
        "{\"event\": \"BLOCK_IO_ERROR\", \"data\": {\"action\": \"stop\", \"nospace\": true}}\n");
    EXPECT_TRUE(co_await settled(true));
    launcher.say(launcher.control, "{\"event\": \"RESUME\"}\n");
    EXPECT_TRUE(co_await settled(false));
  });
}

TEST(QemuVmm, AFloodedConsoleKeepsItsNewestPart) {
  with_machine([](Machine* machine) -> awaitable<void> {
    std::string const block(64 * 1024, 'x');
    auto out =
        Descriptor::adopt(co_await asio::this_coro::executor, std::move(machine->launcher.console));
    for (int i = 0; i < 4; ++i) {
      auto const said = co_await out->write_all(block);
      EXPECT_TRUE(said);
    }
    auto const said = co_await out->write_all("the last words\n");
    EXPECT_TRUE(said);
    for (int i = 0; i < 500 && !machine->vmm->console(100).ends_with("words\n"); ++i)
      co_await async::sleep_for(milliseconds(5));
    EXPECT_TRUE(machine->vmm->console(100).ends_with("the last words\n"));
  });
}

TEST(QemuVmm, AdoptsAMachineAndSeesItDie) {
  async::run_test([]() -> awaitable<void> {
    FakeLauncher launcher;
    QemuDriver driver(co_await asio::this_coro::executor, launcher);
    auto vmm = co_await driver.adopt(3);
    EXPECT_TRUE(vmm);
    launcher.die(SIGKILL);
    co_await (*vmm)->wait_gone();
    auto const exit = co_await (*vmm)->kill();
    EXPECT_EQ(exit->cause, ExitCause::killed);
    co_await (*vmm)->close();
  });
}

}  // namespace
}  // namespace vmm
