#include "cli/supervisor.hpp"

#include "cli/layout.hpp"
#include "wire/codec.hpp"

#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

/// The supervisor with programs that are played by a script: order, restarts, death, stop.
namespace cli {
namespace {

namespace fs = std::filesystem;

// Opens the socket that its name stands for, notes that it started and ended, and waits to be told
// to stop.
constexpr std::string_view played_program = R"(#!/usr/bin/python3
import json, os, signal, socket, sys, time
name = os.path.basename(sys.argv[0])
config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
def note(word):
    with open(config["data_dir"] + "/story", "a") as story:
        story.write(f"{word} {sys.argv[1] if sys.argv[1][0] != '-' else name}\n")
if sys.argv[1] in ("migrate", "end-sandboxes", "clear-slots"):
    note("ran")
    sys.exit(0)
if name == "space-proxy" and os.path.exists(config["data_dir"] + "/proxy-fails"):
    sys.exit(3)
paths = {"space-broker": ("broker/broker.sock", socket.SOCK_STREAM),
         "space-hostd": ("hostd/hostd.sock", socket.SOCK_SEQPACKET), "space-worker": ("worker/worker.sock", socket.SOCK_STREAM),
         "space-api": ("api/api.sock", socket.SOCK_STREAM), "space-proxy": ("proxy/proxy.sock", socket.SOCK_STREAM)}
if name in paths:
    path = config["run_dir"] + "/" + paths[name][0]
    if os.path.exists(path):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, paths[name][1])
    server.bind(path)
    server.listen()
def end(*_):
    note("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note("started")
print(json.dumps({"event": "hello", "uid": os.getuid()}), file=sys.stderr, flush=True)
while True:
    signal.pause()
)";

/// An installation below /tmp whose programs are the script; the supervisor runs in a child of the
/// test.
class Installation : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: programs run as other users";
    std::string name = "/tmp/space-supervisor-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    chmod(name.c_str(), 0755);
    config_.data_dir = name + "/data";
    config_.run_dir = name + "/run";
    config_.program_dir = name + "/programs";
    config_.database_url = "postgresql:///elsewhere";  // no cluster of our own here
    ASSERT_TRUE(ensure_users(config_));
    ASSERT_TRUE(ensure_directories(config_));
    fs::create_directories(config_.program_dir);
    for (char const* program : {"space",
                                "space-api",
                                "space-broker",
                                "space-controller",
                                "space-worker",
                                "space-hostd",
                                "space-proxy"}) {
      ASSERT_TRUE(write_file(config_.program_dir + "/" + program, played_program, 0755));
    }
    for (auto const& path : {service_config_path(config_), database_config_path(config_)}) {
      ASSERT_TRUE(write_file(path, wire::encode_text(config_), 0644));
    }
    ASSERT_TRUE(write_file(config_.data_dir + "/story", "", 0666));
    chmod((config_.data_dir + "/story").c_str(), 0666);
    start();
  }

  void TearDown() override {
    if (supervisor_ > 0) {
      kill(supervisor_, SIGKILL);
      waitpid(supervisor_, nullptr, 0);
    }
    if (!config_.run_dir.empty() && config_.run_dir.starts_with("/tmp/"))
      fs::remove_all(fs::path(config_.run_dir).parent_path());
  }

  void start() {
    supervisor_ = fork();
    if (supervisor_ == 0) {
      auto code = supervise(config_);
      _exit(code ? *code : 1);
    }
  }

  /// Polls: other processes have no other way to tell.
  bool eventually(std::function<bool()> const& holds) const {
    for (int i = 0; i < 2000; ++i) {
      if (holds()) return true;
      (void)poll(nullptr, 0, 10);
    }
    return false;
  }

  bool has_state(std::string_view wanted) const {
    auto state = read_supervisor(config_);
    return state && state->state == wanted;
  }

  int pid_of(std::string_view name) const {
    auto state = read_supervisor(config_);
    if (!state) return 0;
    for (auto const& one : state->services) {
      if (one.name == name) return one.pid;
    }
    return 0;
  }

  std::vector<std::string> story() const {
    std::ifstream file(config_.data_dir + "/story");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);)
      lines.push_back(line);
    return lines;
  }

  wire::Config config_;
  pid_t supervisor_ = 0;
};

using Supervisor = Installation;

TEST_F(Supervisor, StartsInOrderAndStopsInReverseWithTheFarewellStepsBetween) {
  ASSERT_TRUE(eventually([&] { return has_state("running"); }));
  EXPECT_TRUE(eventually([&] { return story().size() == 7; }));
  ASSERT_TRUE(stop_supervisor(config_, std::chrono::seconds(20)));
  int status = 0;
  ASSERT_EQ(waitpid(std::exchange(supervisor_, 0), &status, 0) > 0, true);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  auto const told = story();
  auto const place = [&](std::string_view line) {
    return std::ranges::find(told, line) - told.begin();
  };
  EXPECT_LT(place("ran migrate"), place("started space-hostd"));
  EXPECT_LT(place("started space-hostd"), place("started space-worker"));
  EXPECT_LT(place("started space-worker"), place("started space-api"));
  EXPECT_LT(place("started space-api"), place("started space-proxy"));
  EXPECT_LT(place("ended space-proxy"), place("ran end-sandboxes"));
  EXPECT_LT(place("ran end-sandboxes"), place("ended space-controller"));
  EXPECT_LT(place("ended space-worker"), place("ran clear-slots"));
  EXPECT_LT(place("ran clear-slots"), place("ended space-hostd"));
  EXPECT_LT(place("ended space-hostd"), place("ended space-broker"));
  EXPECT_EQ(told.back(), "ended space-broker");
  EXPECT_FALSE(read_supervisor(config_));
}

TEST_F(Supervisor, AProgramThatIsKilledComesBackAndTheOthersStay) {
  ASSERT_TRUE(eventually([&] { return has_state("running"); }));
  auto const worker = pid_of("space-worker");
  auto const api = pid_of("space-api");
  ASSERT_GT(worker, 0);
  kill(worker, SIGKILL);
  EXPECT_TRUE(
      eventually([&] { return pid_of("space-worker") > 0 && pid_of("space-worker") != worker; }));
  EXPECT_EQ(pid_of("space-api"), api);
}

TEST_F(Supervisor, ASecondOneForTheSameDirectoryIsRefused) {
  ASSERT_TRUE(eventually([&] { return has_state("running"); }));
  auto second = supervise(config_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), base::Code::conflict);
}

TEST_F(Supervisor, ProgramsRunAsTheirOwnUsersAndDieWithIt) {
  ASSERT_TRUE(eventually([&] { return has_state("running"); }));
  auto const worker = pid_of("space-worker");
  struct stat status{};
  ASSERT_EQ(stat(fmt::format("/proc/{}", worker).c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, find_user(config_.worker_user)->uid);
  kill(supervisor_, SIGKILL);
  ASSERT_GT(waitpid(std::exchange(supervisor_, 0), nullptr, 0), 0);
  EXPECT_TRUE(eventually([&] {
    std::ifstream file(fmt::format("/proc/{}/stat", worker));
    std::string number, name, state;
    return !(file >> number >> name >> state) || state == "Z";
  }));
  // The next one is not confused by what the killed one left.
  start();
  EXPECT_TRUE(eventually([&] { return has_state("running") && pid_of("space-worker") != worker; }));
}

TEST_F(Supervisor, OneThatDoesNotComeUpIsNamedAndTriedAgain) {
  ASSERT_TRUE(eventually([&] { return has_state("running"); }));
  ASSERT_TRUE(write_file(config_.data_dir + "/proxy-fails", "", 0644));
  kill(pid_of("space-proxy"), SIGKILL);
  auto const last_exit = [&] {
    auto state = read_supervisor(config_);
    return state && !state->services.empty() ? state->services.back().last_exit : std::string();
  };
  EXPECT_TRUE(eventually([&] { return last_exit() == "exit 3"; }));
  fs::remove(config_.data_dir + "/proxy-fails");
  EXPECT_TRUE(eventually([&] { return pid_of("space-proxy") > 0; }));
  auto log = read_file(config_.data_dir + "/log/space-proxy.jsonl");
  ASSERT_TRUE(log);
  EXPECT_NE(log->find("\"event\": \"hello\""), std::string::npos);
}

}  // namespace
}  // namespace cli
