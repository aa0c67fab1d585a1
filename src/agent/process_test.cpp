#include "agent/testing.hpp"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include <fcntl.h>

namespace agent {
namespace {

using testing::Guest;
using testing::with_guest;
using namespace std::chrono_literals;

TEST(ProcessStart, TheStartEventComesFirstAndTheEndLast) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const events = co_await guest.run("echo out; echo err >&2");
    EXPECT_GT(testing::pid_of(events.messages.front()), 1);
    EXPECT_EQ(events.bytes("stdout"), "out\n");
    EXPECT_EQ(events.bytes("stderr"), "err\n");
    EXPECT_EQ(wire::to_text(events.messages.back()),
              R"({"event":{"end":{"exited":true,"status":"exit status 0"}}})");
    EXPECT_EQ(events.end, "{}");
  });
}

TEST(ProcessStart, ExitCodesAndSignalsHaveTheWordsThatClientsKnow) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const three = co_await guest.run("exit 3");
    EXPECT_EQ(wire::to_text(three.last()),
              R"({"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"})");
    auto const killed = co_await guest.run("kill -9 $$");
    EXPECT_EQ(wire::to_text(killed.last()),
              R"({"exitCode":-1,"status":"signal: killed","error":"signal: killed"})");
    auto const terminated = co_await guest.run("kill -15 $$");
    EXPECT_EQ(terminated.last().at("status").as_string(), "signal: terminated");
  });
}

TEST(ProcessStart, AProgramThatIsMissingIsInvalid) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto stream = co_await guest.stream("Start", R"({"process":{"cmd":"no-such-program"}})");
    EXPECT_EQ(stream->status(), 200);
    auto const events = co_await stream->rest();
    EXPECT_TRUE(events.messages.empty());
    EXPECT_NE(events.end.find(R"("code":"invalid_argument")"), std::string::npos) << events.end;
    EXPECT_NE(events.end.find("executable file not found in $PATH"), std::string::npos)
        << events.end;
    auto const list = co_await guest.call("List", "{}");
    EXPECT_EQ(list.body, R"({"processes":[]})");
  });
}

TEST(ProcessStart, TheWorkingDirectoryIsTheHomeOrTheOneAskedFor) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const home = co_await guest.run("pwd");
    EXPECT_EQ(home.bytes("stdout"), guest.etc.home() + "\n");
    auto const asked =
        co_await guest.stream("Start", R"({"process":{"cmd":"pwd","cwd":"/usr"},"stdin":false})");
    auto const events = co_await asked->rest();
    EXPECT_EQ(events.bytes("stdout"), "/usr\n");
    auto const missing =
        co_await guest.stream("Start", R"({"process":{"cmd":"pwd","cwd":"/no/such"}})");
    auto const failed = co_await missing->rest();
    EXPECT_EQ(failed.end,
              R"({"error":{"code":"invalid_argument","message":"cwd '/no/such' does not exist"}})");
  });
}

TEST(ProcessStart, VariablesOfTheRequestWinOverTheSandboxsAndThoseOverTheUsers) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    guest.agent->context().env = {{"A", "sandbox"}, {"B", "sandbox"}, {"USER", "somebody"}};
    auto const stream = co_await guest.stream(
        "Start", R"({"process":{"cmd":"/usr/bin/env","envs":{"A":"request"}},"stdin":false})");
    auto const events = co_await stream->rest();
    auto const out = events.bytes("stdout");
    EXPECT_NE(out.find("A=request\n"), std::string::npos) << out;
    EXPECT_EQ(out.find("A=sandbox\n"), std::string::npos) << out;
    EXPECT_NE(out.find("B=sandbox\n"), std::string::npos) << out;
    EXPECT_NE(out.find("USER=somebody\n"), std::string::npos) << out;
    EXPECT_NE(out.find("HOME=" + guest.etc.home() + "\n"), std::string::npos) << out;
    EXPECT_NE(out.find("LOGNAME=user\n"), std::string::npos) << out;
    EXPECT_NE(out.find("PATH=/usr/local/sbin:"), std::string::npos) << out;
    auto const next = co_await guest.run("echo ${A}");
    EXPECT_EQ(next.bytes("stdout"), "sandbox\n");
  });
}

TEST(ProcessStart, AnotherUserGetsHisIdsGroupsAndARootDirectoryInsteadOfAMissingHome) {
  if (::getuid() != 0) GTEST_SKIP() << "only root may start processes of others";
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    testing::HeaderList const as_other{{"Authorization", "Basic " + base::base64_of("other:")}};
    auto const events =
        co_await guest.run("id -u; id -g; id -G; pwd", R"(,"stdin":false)", as_other);
    EXPECT_EQ(events.bytes("stdout"), "4242\n4243\n4243 4244\n/\n");
    testing::HeaderList const as_nobody{{"Authorization", "Basic " + base::base64_of("root123:")}};
    auto const unknown = co_await guest.run("id", R"(,"stdin":false)", as_nobody);
    EXPECT_EQ(unknown.end,
              R"({"error":{"code":"unauthenticated","message":"invalid username: 'root123'"}})");
  });
}

TEST(ProcessStart, WhatIsNotValidIsRefusedWithTheFieldsName) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    std::pair<std::string, std::string> const cases[] = {
        {"{}", "process: required"},
        {R"({"process":{}})", "process.cmd: required"},
        {R"({"process":{"cmd":7}})", "cmd: expected a string"},
        {R"({"process":{"cmd":"a\u0000b"}})", "cmd: expected a string without NUL characters"},
        {R"({"process":{"cmd":"a","args":"b"}})", "args: expected an array of strings"},
        {R"({"process":{"cmd":"a","envs":{"a=b":"c"}}})",
         "process.envs: 'a=b' is no name of a variable"},
        {R"({"process":{"cmd":"a","cwd":"~b"}})", "invalid_argument"},
        {R"({"process":{"cmd":"a"},"pty":{"size":{"cols":-1}}})", "cols: expected an integer"},
        {"[]", "the message is not a JSON object"},
        {"{", "not valid JSON"},
    };
    for (auto const& [message, expected] : cases) {
      auto const stream = co_await guest.stream("Start", message);
      auto const events = co_await stream->rest();
      EXPECT_NE(events.end.find("invalid_argument"), std::string::npos)
          << message << " → " << events.end;
      EXPECT_NE(events.end.find(expected), std::string::npos) << message << " → " << events.end;
    }
  });
}

TEST(ProcessStart, NoDescriptorOfOursAndNoBlockedSignalReachesACommand) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    // Two thousand open descriptors do not disturb the spawn.
    std::vector<os::Fd> many;
    for (int i = 0; i < 2000; ++i)
      many.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    auto const events =
        co_await guest.run("ls /proc/self/fd | wc -l; grep -E 'SigBlk|SigIgn' /proc/self/status");
    auto const out = events.bytes("stdout");
    // 0, 1, 2 and the directory that ls reads.
    EXPECT_TRUE(out.starts_with("4\n")) << out;
    EXPECT_NE(out.find("SigBlk:\t0000000000000000"), std::string::npos) << out;
    EXPECT_NE(out.find("SigIgn:\t0000000000000000"), std::string::npos) << out;
  });
}

TEST(ProcessStart, OutputIsComplete) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    // Far more than the log holds: a reader that keeps up misses nothing, and it arrives as raw
    // bytes.
    auto const events = co_await guest.run("head -c 3000000 /dev/zero; printf '\\342'");
    auto const out = events.bytes("stdout");
    EXPECT_EQ(out.size(), 3'000'001U);
    EXPECT_EQ(out.back(), '\xe2');
    for (auto const& message : events.messages) {
      auto const* data = message.at("event").as_object().if_contains("data");
      if (data) EXPECT_LE(data->at("stdout").as_string().size(), 32U * 1024 / 3 * 4 + 4);
    }
  });
}

TEST(ProcessStart, ACharacterIsNotCutInTwoWhileItsRestMayStillCome) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const events = co_await guest.run(
        "printf 'a\\342\\202'; sleep 0.2; printf '\\254b'; sleep 0.2; yes '€€€€€' | head -c "
        "160000; printf '\\342'");
    for (auto const& message : events.messages) {
      auto const* data = message.at("event").as_object().if_contains("data");
      if (!data || &message == &events.messages[events.messages.size() - 2]) continue;
      auto const bytes =
          base::base64_decoded(std::string_view(data->at("stdout").as_string())).value();
      EXPECT_EQ(incomplete_tail(bytes), 0U);
      EXPECT_NE(static_cast<unsigned char>(bytes.front()) & 0xc0, 0x80);
    }
    auto const out = events.bytes("stdout");
    EXPECT_TRUE(out.starts_with("a€b")) << out.substr(0, 10);
    EXPECT_EQ(out.size(), 160'006U);
    EXPECT_EQ(out.back(), '\xe2') << "what was never completed arrives as it is";
  });
}

TEST(ProcessStart, ManyQuickCommandsAreAllReaped) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    for (int i = 0; i < 100; ++i) {
      auto const stream =
          co_await guest.stream("Start", R"({"process":{"cmd":"/bin/true"},"stdin":false})");
      auto const events = co_await stream->rest();
      EXPECT_EQ(events.last().at("status").as_string(), "exit status 0");
      auto const pid = testing::pid_of(events.messages.front());
      EXPECT_FALSE(testing::is_running(pid)) << "still there, perhaps as a zombie";
    }
    auto const list = co_await guest.call("List", "{}");
    EXPECT_EQ(list.body, R"({"processes":[]})");
  });
}

TEST(ProcessStart, ABackgroundProcessThatHoldsThePipeDelaysTheEndOnlyShortlyAndLivesOn) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const begun = base::system_clock().steady_now();
    auto const events = co_await guest.run("sleep 20 & echo $!; exit 4");
    auto const took = base::system_clock().steady_now() - begun;
    EXPECT_LT(took, 5s);
    EXPECT_EQ(events.last().at("exitCode").as_int64(), 4);
    auto const background = std::stoll(events.bytes("stdout"));
    EXPECT_TRUE(testing::is_running(background));
    ::kill(static_cast<pid_t>(background), SIGKILL);
  });
}

TEST(ProcessStart, WhatABackgroundProcessWritesShortlyAfterStillArrives) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const events = co_await guest.run("(sleep 0.1; echo late) & echo early");
    EXPECT_EQ(events.bytes("stdout"), "early\nlate\n");
  });
}

TEST(ProcessList, ShowsWhatRunsWithItsConfigurationAndTag) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const stream = co_await guest.stream(
        "Start",
        R"({"process":{"cmd":"/bin/sleep","args":["20"],"envs":{"K":"v"},"cwd":"/"},"tag":"mine","stdin":false})");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    auto const list = co_await guest.call("List", "{}");
    EXPECT_EQ(list.status, 200);
    EXPECT_EQ(list.body,
              fmt::format(R"({{"processes":[{{"config":{{"cmd":"/bin/sleep","args":["20"],)"
                          R"("envs":{{"K":"v"}},"cwd":"/"}},"pid":{},"tag":"mine"}}]}})",
                          pid));
    auto const by_tag = co_await guest.call(
        "SendSignal", R"({"process":{"tag":"mine"},"signal":"SIGNAL_SIGTERM"})");
    EXPECT_EQ(by_tag.body, "{}");
    auto const events = co_await stream->rest();
    EXPECT_EQ(events.last().at("status").as_string(), "signal: terminated");
  });
}

TEST(ProcessSignal, AfterSigkillIsAnsweredThePidIsGone) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    for (int i = 0; i < 20; ++i) {
      auto const stream = co_await guest.start("exec sleep 20");
      auto const begun = co_await stream->next();
      auto const pid = testing::pid_of(*begun);
      auto const killed = co_await guest.call(
          "SendSignal", "{" + testing::selector(pid) + R"(,"signal":"SIGNAL_SIGKILL"})");
      EXPECT_FALSE(testing::is_running(pid));
      EXPECT_EQ(killed.status, 200);
      auto const again =
          co_await guest.call("SendSignal", "{" + testing::selector(pid) + R"(,"signal":9})");
      EXPECT_EQ(again.status, 404) << again.body;
      EXPECT_EQ(again.json().at("code").as_string(), "not_found");
      auto const events = co_await stream->rest();
      EXPECT_EQ(events.last().at("error").as_string(), "signal: killed");
    }
  });
}

TEST(ProcessSignal, NobodyWithThatPidIsNotFoundAndNonsenseIsInvalid) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    std::pair<std::string, int> const cases[] = {
        {R"({"process":{"pid":999999},"signal":"SIGNAL_SIGKILL"})", 404},
        {R"({"process":{"tag":"x"},"signal":"SIGNAL_SIGKILL"})", 404},
        {R"({"process":{"pid":"1e9"},"signal":"SIGNAL_SIGKILL"})", 400},
        {R"({"process":{"pid":1},"signal":"SIGNAL_SIGHUP"})", 400},
        {R"({"signal":"SIGNAL_SIGKILL"})", 400},
        {R"({"process":{}})", 400},
    };
    for (auto const& [message, status] : cases) {
      auto const answer = co_await guest.call("SendSignal", message);
      EXPECT_EQ(answer.status, status) << message << " → " << answer.body;
    }
  });
}

TEST(ProcessDeadline, KillsTheWholeTreeAndTheFrameIsOnTime) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const pids = guest.etc.path() + "/pids";
    auto const script = fmt::format(
        "(sleep 30 & echo $! >>{0}; setsid sleep 30 & echo $! >>{0}; sleep 30) & sleep 30", pids);
    auto const begun = base::system_clock().steady_now();
    auto const events =
        co_await guest.run(script, R"(,"stdin":false)", {{"connect-timeout-ms", "600"}});
    auto const took = base::system_clock().steady_now() - begun;
    EXPECT_EQ(events.end,
              R"({"error":{"code":"deadline_exceeded","message":"context deadline exceeded"}})");
    EXPECT_TRUE(events.last().empty());
    EXPECT_LT(took, 620ms);
    EXPECT_GT(took, 500ms);
    std::ifstream file(pids);
    int count = 0;
    for (std::int64_t pid = 0; file >> pid; ++count) {
      auto gone = [pid] {
        return !testing::is_running(pid) ||
               std::ifstream("/proc/" + std::to_string(pid) + "/cmdline").peek() == EOF;
      };
      bool const killed = co_await testing::eventually(gone, 2000ms);
      EXPECT_TRUE(killed) << pid;
    }
    EXPECT_EQ(count, 2);
  });
}

TEST(ProcessDeadline, ActsAlsoWhenNobodyListensAnyMore) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto stream =
        co_await guest.start("exec sleep 30", R"(,"stdin":false)", {{"connect-timeout-ms", "400"}});
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    stream->hang_up();
    co_await async::sleep_for(100ms);
    EXPECT_TRUE(testing::is_running(pid)) << "a reader that leaves ends nothing";
    bool const killed =
        co_await testing::eventually([pid] { return !testing::is_running(pid); }, 1500ms);
    EXPECT_TRUE(killed);
  });
}

TEST(ProcessDeadline, OfConnectEndsOnlyThatStream) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto stream = co_await guest.start("exec sleep 30");
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    auto const second = co_await guest.stream(
        "Connect", "{" + testing::selector(pid) + "}", {{"connect-timeout-ms", "200"}});
    auto const events = co_await second->rest();
    EXPECT_EQ(testing::pid_of(events.messages.front()), pid);
    EXPECT_NE(events.end.find("deadline_exceeded"), std::string::npos);
    EXPECT_TRUE(testing::is_running(pid));
    auto const killed = co_await guest.call(
        "SendSignal", "{" + testing::selector(pid) + R"(,"signal":"SIGNAL_SIGKILL"})");
    EXPECT_EQ(killed.status, 200);
  });
}

TEST(ProcessTree, AForkBombDiesWithItsCommand) {
  with_guest([](Guest& guest) -> asio::awaitable<void> {
    auto const mark = "space-bomb-" + std::to_string(::getpid());
    // Keeps forking until it is killed, bounded by its own limit in case the kill fails.
    auto const script = "ulimit -u 200 2>/dev/null; f() { sleep 30 & f2 & }; f2() { exec -a " +
                        mark + " sleep 31; }; i=0; while [ $i -lt 60 ]; do (exec -a " + mark +
                        " sleep 30) & (setsid sh -c 'exec -a " + mark +
                        " sleep 30') & i=$((i+1)); done; wait";
    auto const request =
        fmt::format(R"({{"process":{{"cmd":"/bin/bash","args":["-c",{}]}},"stdin":false}})",
                    wire::to_text(json::value(script)));
    auto const stream = co_await guest.stream("Start", request);
    auto const begun = co_await stream->next();
    auto const pid = testing::pid_of(*begun);
    auto count = [&mark] {
      int found = 0;
      for (auto const& entry : std::filesystem::directory_iterator("/proc")) {
        std::ifstream file(entry.path() / "cmdline");
        std::string name;
        std::getline(file, name, '\0');
        found += name == mark;
      }
      return found;
    };
    bool const grown = co_await testing::eventually([&] { return count() >= 60; }, 8000ms);
    EXPECT_TRUE(grown);
    auto const killed = co_await guest.call(
        "SendSignal", "{" + testing::selector(pid) + R"(,"signal":"SIGNAL_SIGKILL"})");
    EXPECT_EQ(killed.status, 200);
    bool const gone = co_await testing::eventually([&] { return count() == 0; }, 3000ms);
    EXPECT_TRUE(gone) << count() << " left";
  });
}

/// A group of our own in the host's one hierarchy of version 2, which all mounts show (version 1
/// beside it does not prevent that); by our pid, because other tests may run at the same time.
class GroupMount {
 public:
  GroupMount() {
    std::string pattern = std::filesystem::temp_directory_path() / "agent_cgroup.XXXXXX";
    if (!::mkdtemp(pattern.data())) return;
    mount_ = pattern;
    if (::mount("cgroup2", mount_.c_str(), "cgroup2", 0, nullptr) != 0) return;
    path_ = mount_ + "/agent_test." + std::to_string(::getpid());
    mounted_ = ::mkdir(path_.c_str(), 0755) == 0;
  }

  ~GroupMount() {
    if (mounted_) {
      std::ofstream(path_ + "/cgroup.kill") << "1";
      for (auto const& entry : std::filesystem::directory_iterator(path_ + "/commands")) {
        if (entry.is_directory()) ::rmdir(entry.path().c_str());
      }
      ::rmdir((path_ + "/commands").c_str());
      ::rmdir(path_.c_str());
    }
    ::umount2(mount_.c_str(), MNT_DETACH);
    ::rmdir(mount_.c_str());
  }

  GroupMount(GroupMount const&) = delete;
  GroupMount& operator=(GroupMount const&) = delete;

  bool mounted() const { return mounted_; }

  std::string const& path() const { return path_; }

  std::size_t groups() const {
    std::size_t count = 0;
    for (auto const& entry : std::filesystem::directory_iterator(path_ + "/commands"))
      count += entry.is_directory();
    return count;
  }

 private:
  std::string mount_;
  std::string path_;
  bool mounted_ = false;
};

TEST(ProcessTree, InAControlGroupNobodyEscapesAndTheGroupGoesWithItsLastMember) {
  GroupMount const mount;
  if (!mount.mounted()) GTEST_SKIP() << "cgroup2 cannot be mounted here";
  Agent::Options options;
  options.processes.control_group_root = mount.path();
  with_guest(
      [&mount](Guest& guest) -> asio::awaitable<void> {
        auto const file = guest.etc.path() + "/pid";
        // Out of the session and without its parent: only the group still knows whose it is.
        auto const stream = co_await guest.start(
            "cat /proc/self/cgroup; (setsid sh -c 'setsid sleep 30 & echo $! >" + file +
            "' &) ; exec sleep 30");
        auto const begun = co_await stream->next();
        auto const pid = testing::pid_of(*begun);
        std::int64_t escaped = 0;
        bool const written = co_await testing::eventually(
            [&] { return bool(std::ifstream(file) >> escaped); }, 3000ms);
        EXPECT_TRUE(written);
        EXPECT_EQ(mount.groups(), 1U);
        auto const killed = co_await guest.call(
            "SendSignal", "{" + testing::selector(pid) + R"(,"signal":"SIGNAL_SIGKILL"})");
        EXPECT_EQ(killed.status, 200) << killed.body;
        auto gone = [&] {
          return std::ifstream("/proc/" + std::to_string(escaped) + "/cmdline").peek() == EOF;
        };
        bool const dead = co_await testing::eventually(gone, 2000ms);
        EXPECT_TRUE(dead);
        auto const events = co_await stream->rest();
        EXPECT_NE(events.bytes("stdout").find("/commands/c1"), std::string::npos)
            << events.bytes("stdout");
        // Removed with the next command at the latest.
        co_await guest.run("true");
        bool const removed =
            co_await testing::eventually([&] { return mount.groups() == 0; }, 2000ms);
        EXPECT_TRUE(removed);
      },
      options);
}

}  // namespace
}  // namespace agent
