// space-hostd as a running program: requests over its socket, real machines, and its death at every
// step.

#include "integration/hostd_fixture.hpp"
#include "os/packet_socket.hpp"
#include "os/process.hpp"
#include "os/text_file.hpp"
#include "vmm/qemu_command.hpp"

#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

namespace test {
namespace {

namespace fs = std::filesystem;
using hostd::SlotState;
using testing::HasSubstr;
using testing::IsEmpty;

class HostdTest : public testing::Test {
 protected:
  void TearDown() override {
    if (!hostd_) return;
    for (std::uint32_t slot = 0; slot < installation_.config().slots_max; ++slot) {
      auto ended = client().end_vmm(slot);
      auto removed = client().remove_slot(slot);
      static_cast<void>(ended);
      static_cast<void>(removed);
    }
    EXPECT_THAT(installation_.holdings(), IsEmpty());
    if (HasFailure())
      std::puts(os::read_text(installation_.directory() + "/hostd.log").value_or("").c_str());
  }

  void start() { hostd_.emplace(installation_); }

  hostd::Client client() const { return hostd_->client(); }

  os::Fd make_disk(off_t bytes = 8 << 20, int flags = O_RDWR) const {
    auto const path = installation_.directory() + "/disk.img";
    os::Fd const made(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(made.get(), bytes), 0);
    return os::Fd(::open(path.c_str(), flags | O_CLOEXEC));
  }

  static hostd::Machine machine() {
    hostd::Machine small;
    small.memory_mib = 128;
    small.tb_size_mib = 32;
    // What /proc/cpuinfo says is near enough for a guest that lives seconds.
    auto const text = os::read_text("/proc/cpuinfo").value_or("");
    std::smatch found;
    if (std::regex_search(text, found, std::regex("cpu MHz\\s*: ([0-9.]+)"))) {
      small.tsc_khz = static_cast<std::uint64_t>(std::stod(found[1]) * 1000);
    }
    return small;
  }

  base::Result<hostd::Vmm> start_machine(std::uint32_t slot) const {
    return client().start_vmm(slot, sandbox_, 7, machine(), make_disk());
  }

  std::size_t descriptors_of_hostd() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(fmt::format("/proc/{}/fd", hostd_->pid())), {}));
  }

  Installation installation_;
  base::SandboxId sandbox_ = base::SandboxId::make();
  std::optional<Hostd> hostd_;
};

std::string field(pid_t pid, std::string const& name) {
  auto const text = os::read_text(fmt::format("/proc/{}/status", pid)).value_or("");
  std::smatch found;
  return std::regex_search(text, found, std::regex("(?:^|\n)" + name + ":[ \t]*([^\n]*)"))
             ? found[1].str()
             : "";
}

std::string link_of(std::string const& path) {
  std::error_code ignored;
  return fs::read_symlink(path, ignored).string();
}

/// Reads until `wanted` has come or `limit` is over.
std::string read_until(os::Fd const& from, std::string const& wanted, std::chrono::seconds limit) {
  std::string text;
  eventually(
      [&] {
        std::array<char, 4096> part{};
        auto const got = ::recv(from.get(), part.data(), part.size(), MSG_DONTWAIT);
        if (got > 0) text.append(part.data(), static_cast<std::size_t>(got));
        return text.find(wanted) != std::string::npos;
      },
      limit);
  return text;
}

/// GET /health of the agent through the slot; "" when nobody answers in a second.
std::string ask_agent(hostd::Client const& client, std::uint32_t slot) {
  auto const socket = client.dial(slot, 49'983);
  if (!socket) return "";
  pollfd waited{.fd = socket->get(), .events = POLLOUT, .revents = 0};
  int error = -1;
  socklen_t size = sizeof error;
  if (::poll(&waited, 1, 500) != 1 ||
      ::getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
    return "";
  std::string const question =
      "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (::send(socket->get(), question.data(), question.size(), MSG_NOSIGNAL) < 0) return "";
  return read_until(*socket, "\r\n\r\n", std::chrono::seconds(5));
}

TEST_F(HostdTest, MakesASlotOnceAndRemovesItWhole) {
  start();
  EXPECT_EQ(client().inspect_slot(3)->state, SlotState::absent);
  ASSERT_TRUE(client().make_slot(3));
  EXPECT_EQ(client().inspect_slot(3)->state, SlotState::empty);
  EXPECT_EQ(client().make_slot(3).error().code(), base::Code::conflict);
  EXPECT_TRUE(client().dial(3, 1));
  EXPECT_EQ(client().attach_vmm(3).error().code(), base::Code::not_found);
  EXPECT_EQ(client().end_vmm(3).error().code(), base::Code::not_found);
  EXPECT_FALSE(installation_.holdings().empty());
  ASSERT_TRUE(client().remove_slot(3));
  EXPECT_EQ(client().remove_slot(3).error().code(), base::Code::not_found);
  EXPECT_EQ(client().dial(3, 1).error().code(), base::Code::not_found);
  EXPECT_THAT(installation_.holdings(), IsEmpty());
}

TEST_F(HostdTest, StoppedWithNothingLeftItLeavesNoMountEither) {
  start();
  auto const mounted = [&] {
    return os::read_text("/proc/self/mountinfo")
               ->find(" " + installation_.directory() + "/hostd/netns ") != std::string::npos;
  };
  ASSERT_TRUE(client().make_slot(3));
  hostd_->stop(SIGTERM);
  EXPECT_TRUE(mounted()) << "a slot outlives a stop";
  hostd_->start();
  ASSERT_TRUE(client().remove_slot(3));
  hostd_->stop(SIGTERM);
  EXPECT_FALSE(mounted());
  hostd_->start();
}

TEST_F(HostdTest, ARemovedSlotIsGoneFromOtherMountNamespacesToo) {
  start();
  ASSERT_TRUE(client().make_slot(3));
  // A service with mounts of its own that was started meanwhile has a copy of the pin, and would
  // keep the tap alive.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  pid_t const other = ::fork();
  if (other == 0) {
    bool const apart = ::unshare(CLONE_NEWNS) == 0 &&
                       ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    static_cast<void>(::write(ends[1], apart ? "1" : "0", 1));
    for (;;)
      ::pause();
  }
  char apart = '0';
  ASSERT_EQ(::read(ends[0], &apart, 1), 1);
  ASSERT_EQ(apart, '1');
  auto const pinned = [&] {
    auto const text = os::read_text(fmt::format("/proc/{}/mountinfo", other)).value_or("");
    return text.find(installation_.directory() + "/hostd/netns/3 ") != std::string::npos;
  };
  EXPECT_TRUE(pinned());
  EXPECT_TRUE(client().remove_slot(3));
  EXPECT_FALSE(pinned());
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  for (int const end : ends)
    ::close(end);
}

TEST_F(HostdTest, ASlotOutlivesHostd) {
  start();
  ASSERT_TRUE(client().make_slot(3));
  hostd_->stop(SIGKILL);
  hostd_->start();
  EXPECT_EQ(client().inspect_slot(3)->state, SlotState::empty);
  EXPECT_TRUE(client().dial(3, 1));
  ASSERT_TRUE(start_machine(3)) << "the tap is opened again";
}

TEST_F(HostdTest, AnswersNobodyButItsWorkerAndRoot) {
  start();
  // Directory and socket are opened wide, so that only the check of the peer is left.
  auto const socket = installation_.config().hostd_socket();
  ASSERT_EQ(::chmod((installation_.directory() + "/hostd").c_str(), 0755), 0);
  ASSERT_EQ(::chmod(socket.c_str(), 0666), 0);
  auto const answered = [&](uid_t user) {
    pid_t const child = ::fork();
    if (child == 0) {
      bool const changed = ::setgid(user) == 0 && ::setuid(user) == 0;
      ::_exit(changed && hostd::Client(socket).hello() ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  EXPECT_FALSE(answered(installation_.config().slot_uid_base));
  EXPECT_FALSE(answered(12'345));
  EXPECT_TRUE(answered(65'534));  // the worker's user in these tests
}

TEST_F(HostdTest, ASecondOneOfTheSameInstallationGivesUp) {
  start();
  pid_t const second = ::fork();
  if (second == 0) {
    int const nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, 2);
    ::execl(SPACE_HOSTD_PROGRAM,
            SPACE_HOSTD_PROGRAM,
            "--config",
            (installation_.directory() + "/config.json").c_str(),
            nullptr);
    ::_exit(127);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(second, &status, 0), second);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_TRUE(client().hello()) << "the first one goes on";
}

TEST_F(HostdTest, ItsSocketIsClosedToOthers) {
  start();
  struct stat info{};
  ASSERT_EQ(::stat((installation_.directory() + "/hostd").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0750U);
  ASSERT_EQ(::stat(installation_.config().hostd_socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660U);
  ASSERT_EQ(::stat((installation_.directory() + "/hostd/slots").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(HostdTest, WhatIsNoRequestIsNotAnswered) {
  start();
  auto const before = descriptors_of_hostd();
  auto const say = [&](std::size_t bytes, std::vector<int> const& fds) {
    auto const socket =
        os::connect_packets(installation_.config().hostd_socket(), std::chrono::seconds(5));
    std::vector<std::byte> const message(bytes, std::byte{1});
    EXPECT_TRUE(os::send_packet(*socket, message, fds));
    std::array<std::byte, 512> answer{};
    auto const packet = os::receive_packet(*socket, answer);
    return packet ? packet->size : 0;
  };
  os::Fd const some(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (std::size_t const bytes :
       {1UL, sizeof(hostd::Request) - 1, sizeof(hostd::Request) + 1, 100'000UL}) {
    EXPECT_EQ(say(bytes, {}), 0U) << bytes;
  }
  // One descriptor more than any action takes.
  EXPECT_EQ(say(sizeof(hostd::Request), {some.get(), some.get(), some.get(), some.get()}), 0U);
  // Right size, nonsense inside: an answer that refuses.
  EXPECT_EQ(say(sizeof(hostd::Request), {}), sizeof(hostd::Reply));
  EXPECT_EQ(say(sizeof(hostd::Request), {some.get()}), sizeof(hostd::Reply));
  EXPECT_TRUE(client().hello());
  EXPECT_TRUE(eventually([&] { return descriptors_of_hostd() <= before; })) << "descriptors leak";
}

TEST_F(HostdTest, RefusesADiskThatIsNone) {
  start();
  ASSERT_TRUE(client().make_slot(0));
  auto const tried = [&](os::Fd disk) {
    auto const started = client().start_vmm(0, sandbox_, 1, machine(), disk);
    return started ? std::string("started") : started.error().detail();
  };
  EXPECT_THAT(tried(make_disk(8 << 20, O_RDONLY)),
              HasSubstr("disk: not a regular file opened for reading and writing"));
  EXPECT_THAT(tried(make_disk(8 << 20, O_WRONLY)), HasSubstr("disk: not a regular file"));
  EXPECT_THAT(tried(make_disk(8 << 20, O_PATH)), HasSubstr("disk: "));
  EXPECT_THAT(tried(os::Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))),
              HasSubstr("disk: not a regular file"));
  EXPECT_THAT(tried(os::Fd(::open("/tmp", O_RDONLY | O_CLOEXEC))),
              HasSubstr("disk: not a regular file"));
  EXPECT_THAT(tried(make_disk((8 << 20) + 1)),
              HasSubstr("disk: at least 1 MiB, a multiple of 512"));
  EXPECT_THAT(tried(make_disk(0)), HasSubstr("disk: at least 1 MiB"));
  EXPECT_THAT(tried(os::Fd()), HasSubstr("descriptors: one for start_vmm"));
  // A refused request costs the slot nothing.
  EXPECT_EQ(client().inspect_slot(0)->state, SlotState::empty);
  EXPECT_EQ(client().start_vmm(5, sandbox_, 1, machine(), make_disk()).error().code(),
            base::Code::not_found);
}

TEST_F(HostdTest, BootsAGuestThatAnswersAndFindsItAgainAfterEveryDeath) {
  start();
  ASSERT_TRUE(client().make_slot(2));
  // The agent stays in memory and asks no more of a disk than a file system.
  auto const disk = make_disk();
  ASSERT_EQ(::system(("mke2fs -q -F -t ext4 " + installation_.directory() + "/disk.img").c_str()),
            0);  // NOLINT
  auto vmm = client().start_vmm(2, sandbox_, 7, machine(), disk);
  ASSERT_TRUE(vmm) << vmm.error().message() << " " << vmm.error().detail();
  EXPECT_EQ(vmm->sandbox, sandbox_.str());
  EXPECT_EQ(vmm->epoch, 7U);
  EXPECT_EQ(vmm->user_id, installation_.config().slot_uid_base + 2);
  EXPECT_THAT(read_until(vmm->qmp, "\n", std::chrono::seconds(20)), HasSubstr("QMP"));
  EXPECT_TRUE(eventually([&] { return ask_agent(client(), 2).starts_with("HTTP/1.1 2"); },
                         std::chrono::seconds(60)))
      << "console: " << read_until(vmm->console, "\xff", std::chrono::seconds(0)) << " errors: "
      << os::read_text(fmt::format("/proc/self/fd/{}", vmm->errors.get())).value_or("");
  EXPECT_EQ(client().make_slot(2).error().code(), base::Code::conflict);
  EXPECT_EQ(client().remove_slot(2).error().code(), base::Code::conflict);
  EXPECT_EQ(start_machine(2).error().code(), base::Code::conflict);

  for (int const signal : {SIGKILL, SIGTERM}) {
    hostd_->stop(signal);
    EXPECT_FALSE(os::has_ended(vmm->pidfd)) << "a machine outlives hostd";
    hostd_->start();
    auto const found = client().inspect_slot(2);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->state, SlotState::running);
    EXPECT_EQ(found->pid, vmm->pid);
    EXPECT_EQ(found->sandbox, sandbox_.str());
    EXPECT_EQ(found->epoch, 7U);
    // The worker died too: its connections are gone, and the machine takes new ones.
    vmm->qmp.reset();
    vmm->console.reset();
    vmm->errors.reset();
    auto again = client().attach_vmm(2);
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(again->pid, vmm->pid);
    EXPECT_THAT(read_until(again->qmp, "\n", std::chrono::seconds(20)), HasSubstr("QMP"));
    EXPECT_TRUE(eventually([&] { return ask_agent(client(), 2).starts_with("HTTP/1.1 2"); },
                           std::chrono::seconds(20)));
  }

  auto const end = client().end_vmm(2);
  ASSERT_TRUE(end) << end.error().detail();
  EXPECT_EQ(end->wait_status, -1) << "this hostd is not its parent";
  EXPECT_TRUE(os::has_ended(vmm->pidfd));
  ASSERT_TRUE(client().remove_slot(2));
  EXPECT_THAT(installation_.holdings(), IsEmpty());
}

TEST_F(HostdTest, AMachineHasNothingButItsParts) {
  start();
  ASSERT_TRUE(client().make_slot(1));
  auto const vmm = start_machine(1);
  ASSERT_TRUE(vmm) << vmm.error().detail();
  ASSERT_THAT(read_until(vmm->qmp, "\n", std::chrono::seconds(20)), HasSubstr("QMP"));
  auto const user = std::to_string(vmm->user_id);
  for (char const* ids : {"Uid", "Gid"})
    EXPECT_EQ(field(vmm->pid, ids), user + "\t" + user + "\t" + user + "\t" + user);
  for (char const* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})
    EXPECT_EQ(field(vmm->pid, set), "0000000000000000") << set;
  EXPECT_EQ(field(vmm->pid, "NoNewPrivs"), "1");
  EXPECT_EQ(field(vmm->pid, "Seccomp"), "2");
  EXPECT_EQ(field(vmm->pid, "Seccomp_filters"), "2") << "ours and QEMU's own";
  EXPECT_EQ(field(vmm->pid, "Groups"), "");
  for (char const* kind : {"net", "mnt", "pid", "ipc", "uts"}) {
    EXPECT_NE(link_of(fmt::format("/proc/{}/ns/{}", vmm->pid, kind)),
              link_of(std::string("/proc/self/ns/") + kind))
        << kind;
  }
  // Its network is not the slot's either: the tap is a descriptor.
  auto const links = os::read_text(fmt::format("/proc/{}/net/dev", vmm->pid)).value_or("");
  EXPECT_THAT(links, HasSubstr("lo:"));
  EXPECT_THAT(links, testing::Not(HasSubstr("sbx0")));
  std::set<std::string> top;
  for (auto const& entry : fs::directory_iterator(fmt::format("/proc/{}/root", vmm->pid)))
    top.insert(entry.path().filename());
  EXPECT_EQ(top, (std::set<std::string>{"dev", "etc", "guest", "lib", "lib64", "preload", "usr"}));
  std::istringstream mounts(
      os::read_text(fmt::format("/proc/{}/mountinfo", vmm->pid)).value_or(""));
  int count = 0;
  for (std::string line; std::getline(mounts, line); ++count) {
    std::istringstream words(line);
    std::string word, options;
    for (int i = 0; i < 5; ++i)
      words >> word;
    words >> options;
    EXPECT_THAT(options, testing::StartsWith("ro,nosuid")) << line;
    EXPECT_THAT(line, testing::Not(HasSubstr(" - proc "))) << line;
  }
  EXPECT_GT(count, 10);
  auto const ended = client().end_vmm(1);
  ASSERT_TRUE(ended);
  EXPECT_TRUE(WIFSIGNALED(ended->wait_status) && WTERMSIG(ended->wait_status) == SIGKILL)
      << ended->wait_status;
}

TEST_F(HostdTest, AppliesTheLimitsOfAMachine) {
  start();
  ASSERT_TRUE(client().make_slot(6));
  auto limited = machine();
  limited.vcpus = 2;
  limited.disk_bytes_per_s_max = 10'000'000;
  limited.disk_ops_per_s_max = 500;
  limited.net_bytes_per_s_max = 3'000'000;
  auto const vmm = client().start_vmm(6, sandbox_, 7, limited, make_disk());
  ASSERT_TRUE(vmm) << vmm.error().detail();
  // The emulator's own throttle,
  auto words = os::read_text(fmt::format("/proc/{}/cmdline", vmm->pid)).value_or("");
  std::ranges::replace(words, '\0', ' ');
  EXPECT_THAT(words, HasSubstr("throttling.bps-total=10000000,throttling.iops-total=500"));
  EXPECT_THAT(words, HasSubstr("-smp cpus=2"));
  // the slot's rules,
  auto const path = installation_.directory() + "/rules";
  auto const netns = installation_.directory() + "/hostd/netns/6";
  ASSERT_EQ(::system(fmt::format("nsenter --net={} nft list ruleset > {}", netns, path).c_str()),
            0);  // NOLINT
  auto const rules = os::read_text(path).value_or("");
  EXPECT_THAT(rules, testing::ContainsRegex("chain budget_in \\{\n\t\tlimit rate over .*second"));
  EXPECT_THAT(rules, testing::ContainsRegex("chain budget_out \\{\n\t\tlimit rate over .*second"));
  EXPECT_THAT(rules, testing::Not(HasSubstr("64 mbytes/second"))) << "that of its making is gone";
  EXPECT_TRUE(client().check_rules(6, {}));
  auto const inside = fmt::format("nsenter --net={} nft ", netns);
  auto const flush = inside + "flush chain netdev guard budget_in && " + inside +
                     "flush chain inet steer budget_out";
  ASSERT_EQ(::system(flush.c_str()), 0);  // NOLINT(concurrency-mt-unsafe)
  auto const flushed = client().check_rules(6, {});
  EXPECT_FALSE(flushed) << "a budget that is gone";
  ASSERT_EQ(::system(fmt::format("{} list ruleset > {}", inside, path).c_str()), 0);  // NOLINT
  EXPECT_EQ(os::read_text(path).value_or(""), rules) << "it is back, that of the machine";
  EXPECT_TRUE(client().check_rules(6, {})) << "and known to be";
  // and the group.
  auto const groups = os::open_control_groups(installation_.config().instance);
  auto const doors = groups->doors("slot-6");
  auto const value =
      [&](std::string const& controller, std::string const& v1, std::string const& v2) {
        for (auto const& door : doors) {
          auto const group = door.substr(0, door.rfind('/'));
          if (groups->version() == 2) return os::read_text(group + "/" + v2).value_or("");
          if (group.find("/" + controller + "/") != std::string::npos)
            return os::read_text(group + "/" + v1).value_or("");
        }
        return std::string();
      };
  EXPECT_EQ(value("memory", "memory.limit_in_bytes", "memory.max"),
            std::to_string((128ULL + vmm::overhead_mib(false, 32)) << 20U) + "\n");
  EXPECT_THAT(value("cpu", "cpu.cfs_quota_us", "cpu.max"), HasSubstr("225000"));
  EXPECT_EQ(value("pids", "pids.max", "pids.max"), "82\n");
  EXPECT_EQ(groups->members("slot-6"), std::vector<pid_t>{vmm->pid});
}

TEST_F(HostdTest, TellsHowAMachineEndedAlsoTwice) {
  start();
  ASSERT_TRUE(client().make_slot(4));
  auto const vmm = start_machine(4);
  ASSERT_TRUE(vmm) << vmm.error().detail();
  ASSERT_EQ(::kill(vmm->pid, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return os::has_ended(vmm->pidfd); }));
  EXPECT_TRUE(eventually([&] { return client().inspect_slot(4)->state == SlotState::exited; }));
  EXPECT_EQ(client().attach_vmm(4).error().code(), base::Code::not_found);
  for (int i = 0; i < 2; ++i) {
    auto const end = client().end_vmm(4);
    ASSERT_TRUE(end) << end.error().detail();
    EXPECT_TRUE(WIFSIGNALED(end->wait_status) && WTERMSIG(end->wait_status) == SIGKILL)
        << end->wait_status;
    EXPECT_FALSE(end->out_of_memory);
  }
  EXPECT_EQ(client().inspect_slot(4)->state, SlotState::spent);
  EXPECT_EQ(start_machine(4).error().code(), base::Code::invalid_argument)
      << "a slot takes one machine in its life";
  // Also after a restart.
  hostd_->stop(SIGKILL);
  hostd_->start();
  EXPECT_EQ(client().inspect_slot(4)->state, SlotState::spent);
  EXPECT_EQ(start_machine(4).error().code(), base::Code::invalid_argument);
}

TEST_F(HostdTest, ShowsAMachinesMemoryForReadingAndOnlyWhileItLives) {
  start();
  ASSERT_TRUE(client().make_slot(0));
  EXPECT_EQ(client().open_memory(0).error().code(), base::Code::not_found);
  ASSERT_TRUE(start_machine(0));
  auto const memory = client().open_memory(0);
  ASSERT_TRUE(memory) << memory.error().detail();
  for (auto const* file : {&memory->pages, &memory->memory})
    EXPECT_EQ(::fcntl(file->get(), F_GETFL) & O_ACCMODE, O_RDONLY);
  auto const maps = os::read_text(fmt::format("/proc/{}/maps", client().inspect_slot(0)->pid));
  ASSERT_TRUE(maps);
  auto const first = std::stoull(*maps, nullptr, 16);
  std::array<char, 4> bytes{};
  ASSERT_EQ(::pread(memory->memory.get(), bytes.data(), 4, static_cast<off_t>(first)), 4);
  EXPECT_EQ(std::string_view(bytes.data() + 1, 3), "ELF");
  ASSERT_TRUE(client().end_vmm(0));
  EXPECT_LE(::pread(memory->memory.get(), bytes.data(), 4, static_cast<off_t>(first)), 0);
  EXPECT_EQ(client().open_memory(0).error().code(), base::Code::not_found);
}

TEST_F(HostdTest, StaysSmall) {
  start();
  for (std::uint32_t slot = 0; slot < 8; ++slot)
    ASSERT_TRUE(client().make_slot(slot));
  ASSERT_TRUE(start_machine(0));
  ASSERT_TRUE(client().end_vmm(0));
  EXPECT_LE(std::stoi(field(hostd_->pid(), "VmRSS")), 8 * 1024) << "KiB";
}

/// Those that the life of a QEMU machine without an uplink passes. The others have walks of their
/// own: hostd.firecracker.* in firecracker_jail_test.cpp, hostd.uplink.* in uplink_test.cpp.
std::vector<std::string> fault_points() {
  std::set<std::string> points;
  for (auto const& entry : fs::directory_iterator(HOSTD_SOURCES)) {
    auto const text = os::read_text(entry.path()).value_or("");
    std::regex const point("SPACE_FAULT\\(\"([a-z_.]+)\"\\)");
    for (std::sregex_iterator at(text.begin(), text.end(), point), end; at != end; ++at)
      points.insert((*at)[1]);
  }
  std::erase_if(points, [](auto const& point) {
    return point.starts_with("hostd.firecracker.") || point.starts_with("hostd.uplink.");
  });
  return {points.begin(), points.end()};
}

class Death : public HostdTest, public testing::WithParamInterface<std::string> {
 protected:
  /// A whole life; whatever step the fault takes away is skipped.
  void live() const {
    auto made = client().make_slot(0);
    auto gateway = client().start_gateway(0);
    auto started = start_machine(0);
    auto memory = client().open_memory(0);
    auto ended = client().end_vmm(0);
    auto removed = client().remove_slot(0);
    static_cast<void>(made);
    static_cast<void>(gateway);
    static_cast<void>(started);
    static_cast<void>(memory);
    static_cast<void>(ended);
    static_cast<void>(removed);
  }
};

TEST_P(Death, LeavesNothingThatTheNextHostdDoesNotClear) {
  start();
  hostd_->arm(GetParam() + " kill");
  live();
  ASSERT_TRUE(eventually([&] { return hostd_->died(); })) << "the point was not passed";
  EXPECT_FALSE(hostd_->armed());
  hostd_->start();
  auto const state = client().inspect_slot(0)->state;
  if (state == SlotState::running || state == SlotState::exited) {
    EXPECT_EQ(client().inspect_slot(0)->sandbox, sandbox_.str());
    EXPECT_TRUE(client().end_vmm(0));
  }
  if (state != SlotState::absent) EXPECT_TRUE(client().remove_slot(0));
  EXPECT_THAT(installation_.holdings(), IsEmpty());
  // And the slot's number is as good as new.
  ASSERT_TRUE(client().make_slot(0));
  EXPECT_TRUE(start_machine(0));
}

TEST_P(Death, AFailedStepIsUndone) {
  start();
  hostd_->arm(GetParam() + " fail");
  live();
  EXPECT_FALSE(hostd_->armed()) << "the point was not passed";
  EXPECT_FALSE(hostd_->died());
  auto const state = client().inspect_slot(0)->state;
  if (state == SlotState::running || state == SlotState::exited) EXPECT_TRUE(client().end_vmm(0));
  if (state != SlotState::absent) EXPECT_TRUE(client().remove_slot(0));
  EXPECT_THAT(installation_.holdings(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(AtEveryPoint,
                         Death,
                         testing::ValuesIn(fault_points()),
                         [](auto const& point) {
                           return std::regex_replace(point.param, std::regex("\\."), "_");
                         });

TEST(FaultPoints, CoverSlotsAndMachines) {
  auto const points = fault_points();
  EXPECT_GE(
      std::ranges::count_if(points, [](auto const& p) { return p.starts_with("hostd.slot."); }), 4);
  EXPECT_GE(
      std::ranges::count_if(points, [](auto const& p) { return p.starts_with("hostd.vmm."); }), 7);
}

}  // namespace
}  // namespace test
