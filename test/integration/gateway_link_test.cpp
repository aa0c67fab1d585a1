// A sandbox's line to its gateway with a real hostd, a real gateway and a guest that is a namespace
// behind the slot's tap. What policies open and close, and what happens when a part dies, hangs or
// fills up under load: closed, and not one byte more gets out.

#include "worker/gateway_link.hpp"

#include "async/testing.hpp"
#include "base/metric_names.hpp"
#include "base/metrics.hpp"
#include "hostd/guard_drops.hpp"
#include "hostd/nft.hpp"
#include "hostd/slot_network.hpp"
#include "integration/guest_net.hpp"
#include "integration/hostd_fixture.hpp"
#include "os/netns.hpp"
#include "os/packet_socket.hpp"
#include "os/process.hpp"
#include "os/text_file.hpp"

#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

constexpr std::uint32_t slot = 1;

wire::EffectivePolicy policy(std::uint64_t generation, std::string const& json) {
  wire::EffectivePolicy effective;
  effective.generation = generation;
  auto parsed = wire::decode_text<wire::Policy>(json);
  if (!parsed) throw std::runtime_error(parsed.error().message());
  effective.levels.push_back({"sandbox", std::move(*parsed)});
  return effective;
}

constexpr char echo_by_name[] =
    R"({"posture":"allowlist","rules":[{"hosts":["echo.example"],"ports":[7],"protocol":"tcp"}]})";
constexpr char nothing[] = R"({"posture":"allowlist"})";

/// What a test sees while a link lives.
struct Life {
  worker::GatewayLink& link;
  worker::AuditFeed& audit;
  worker::Reflections& reflections;
  std::vector<std::string>& told;  // authorities that the guest was told
};

class Link : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::geteuid(), 0U) << "these tests make network namespaces: run them as root";
    installation_.configure([&](wire::Config& config) {
      config.uplink = uplink();
      config.private_routes = {"203.0.113.0/24"};
      config.resolvers = {"203.0.113.53"};
    });
    auto const here = os::InNetns::enter(host_);
    hostd_.emplace(installation_);
    ASSERT_TRUE(client().make_slot(slot));
    // The hostd that made a slot holds its tap for the machine; a later one does not.
    restart_hostd();
    auto netns = os::open_pinned_netns(installation_.directory() + "/hostd/netns/1");
    ASSERT_TRUE(netns);
    auto tap = hostd::reopen_tap(*netns);
    ASSERT_TRUE(tap) << tap.error().message();
    guest_.emplace(std::move(*tap));
  }

  void TearDown() override {
    guest_.reset();
    if (hostd_->died()) hostd_->start();
    static_cast<void>(client().remove_slot(slot));
  }

  virtual std::string uplink() { return internet_.path(); }

  void restart_hostd() {
    auto const here = os::InNetns::enter(host_);
    hostd_->stop(SIGKILL);
    hostd_->start();
  }

  hostd::Client client() const { return hostd_->client(); }

  pid_t gateway() const {
    auto const& config = installation_.config();
    for (auto const pid : installation_.processes())
      if (os::user_of_process(pid) == config.slot_uid_base + config.slots_max + slot) return pid;
    return 0;
  }

  /// One worker's time with the sandbox.
  void live(std::string const& first_policy,
            std::function<awaitable<void>(Life)> use,
            bool adopt = false,
            bool over = true) {
    auto body = [&]() -> awaitable<void> {
      auto executor = co_await asio::this_coro::executor;
      worker::AuditFeed audit(executor, installation_.directory() + "/audit");
      auto const opened = co_await audit.open();
      EXPECT_TRUE(opened);
      async::TaskGroup tasks(executor);
      tasks.spawn("audit", audit.run());
      auto path = installation_.config().broker_socket();
      http::Client broker(executor, [path] { return net::connect_unix(path); });
      std::vector<std::string> told;
      auto tell = [&told](std::string authority) -> async::Task<void> {
        told.push_back(std::move(authority));
        co_return base::Result<void>();
      };
      worker::Reflections reflections(executor, installation_.directory() + "/reflected.json");
      EXPECT_TRUE(co_await reflections.open());
      worker::GatewayHost const host{
          executor, installation_.config(), client(), audit, broker, reflections};
      worker::GatewayLink link(
          host, {"i0123456789abcdefghij", 1, slot, policy(1, first_policy), {}}, tell);
      link.begin(adopt);
      Life const life{link, audit, reflections, told};
      co_await use(life);
      if (over) {
        co_await link.end();
      } else {
        co_await link.close();
      }
      tasks.cancel();
      co_await tasks.join();
    };
    async::run_test(body, 60s);
  }

  template <class F> static auto aside(F work) { return async::blocking(std::move(work)); }

  /// Sends words without end until the connection ends; on a thread of its own.
  awaitable<std::string> say(std::string name_or_address, std::string text) {
    auto const* guest = &*guest_;
    co_return co_await aside([guest, name_or_address, text] {
      auto const address =
          name_or_address.ends_with("example") ? guest->resolve(name_or_address) : name_or_address;
      if (address.empty()) return std::string("no such name");
      auto const peer = guest->dial(address, 7);
      if (!peer) return std::string("refused");
      return GuestNet::talk(peer, text, text);
    });
  }

  Installation installation_;
  SmallInternet internet_;
  os::Fd host_ = make_netns();  // what hostd believes to be its host's
  std::optional<Hostd> hostd_;
  std::optional<GuestNet> guest_;
};

/// Writes to an open connection all the time, so that whatever lets a byte through shows.
class Load {
 public:
  explicit Load(os::Fd socket) : socket_(std::move(socket)), writer_([this] { write(); }) {}

  ~Load() {
    ending_ = true;
    ::shutdown(socket_.get(), SHUT_RDWR);
    writer_.join();
  }

  Load(Load const&) = delete;
  Load& operator=(Load const&) = delete;

  bool over() const { return over_; }

 private:
  void write() {
    std::array<char, 1024> words{};
    words.fill('x');
    while (!ending_) {
      std::array<char, 4096> back{};
      auto const sent =
          ::send(socket_.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      auto const got = ::recv(socket_.get(), back.data(), back.size(), MSG_DONTWAIT);
      bool const gone = (sent < 0 && errno != EAGAIN) || got == 0;
      if (gone) break;
      ::poll(nullptr, 0, 1);
    }
    over_ = true;
  }

  os::Fd socket_;
  std::atomic<bool> ending_ = false;
  std::atomic<bool> over_ = false;
  std::thread writer_;
};

awaitable<bool> soon(std::function<bool()> condition, std::chrono::milliseconds limit = 10s) {
  auto const end = base::system_clock().in(limit);
  while (!condition()) {
    if (base::system_clock().steady_now() > end) co_return false;
    co_await async::sleep_for(5ms);
  }
  co_return true;
}

/// Of a process: KiB of one line of its summary.
long kib_of(pid_t pid, std::string const& name) {
  std::istringstream lines(os::read_text(fmt::format("/proc/{}/smaps_rollup", pid)).value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + ":")) return std::stol(line.substr(name.size() + 1));
  return -1;
}

TEST_F(Link, AnIdleGatewayHasLittleMemoryOfItsOwn) {
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "the sanitizer's own memory is many times the gateway's";
#endif
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "x"), "x");
    auto const own = [this] { return kib_of(gateway(), "Anonymous"); };
    auto const little = co_await soon([&] { return own() <= 4096; });
    EXPECT_TRUE(little) << own() << " KiB";
    EXPECT_GT(own(), 0);
    RecordProperty("own_kib", static_cast<int>(own()));
    std::printf("%ld KiB\n", own());
  };
  live(echo_by_name, use);
}

TEST_F(Link, APolicyOpensTheNetworksThatItNamesAndTakesThemAwayFromLiveConnections) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "by name"), "by name");
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "refused") << "an address that nothing names";

    auto applied = co_await life.link.apply(
        policy(2, R"({"posture":"allowlist","cidr":{"allow":["203.0.113.16/28"]}})"), {});
    EXPECT_TRUE(applied);
    EXPECT_EQ(co_await say("203.0.113.20", "by address"), "by address");
    EXPECT_EQ(co_await say("203.0.113.10", "x"), "refused") << "beside the network";

    auto peer = co_await aside([&] { return guest_->dial("203.0.113.20", 7); });
    EXPECT_TRUE(static_cast<bool>(peer));
    EXPECT_EQ(GuestNet::talk(peer, "x", "x"), "x");
    Load const load(std::move(peer));
    applied = co_await life.link.apply(policy(3, nothing), {});
    EXPECT_TRUE(applied);
    auto const arrived = internet_.arrived();
    EXPECT_TRUE(co_await soon([&] { return load.over(); }));
    EXPECT_EQ(internet_.arrived(), arrived) << "a byte got out after the policy was in force";
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "refused");
  };
  live(echo_by_name, use);
}

TEST_F(Link, AConnectionThatSaysItsNameIsJudgedByIt) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const ask = [this](std::string host) {
      return aside([this, host = std::move(host)] {
        auto const peer = guest_->dial("203.0.113.20", 80);
        return GuestNet::talk(peer, "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "\r\n\r\n");
      });
    };
    auto const refused = co_await ask("other.example");
    EXPECT_THAT(refused, testing::Not(HasSubstr("502")));
    EXPECT_EQ(internet_.arrived(), 0U);
    EXPECT_EQ(internet_.questions(), 0U) << "nobody is asked for a name that is not allowed";
    // The control. The echo is no answer in HTTP, hence 502; but it arrived.
    EXPECT_THAT(co_await ask("web.example"), StartsWith("HTTP/1.1 502"));
    EXPECT_GT(internet_.arrived(), 0U);
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "refused") << "another port says no name";
  };
  live(R"({"posture":"allowlist","binding":"name","rules":[{"hosts":["web.example"]}]})", use);
}

TEST_F(Link, APolicyThatCannotBeReadChangesNothing) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    for (char const* bad : {R"({"posture":"open","cidr":{"allow":["203.0.113.0/33"]}})",
                            R"({"posture":"open","rules":[{"hosts":["*.*"]}]})"}) {
      auto const applied = co_await life.link.apply(policy(2, bad), {});
      EXPECT_FALSE(applied);
      if (!applied) EXPECT_EQ(applied.error().code(), base::Code::invalid_argument);
    }
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "refused");
    EXPECT_EQ(co_await say("echo.example", "still"), "still");
  };
  live(echo_by_name, use);
}

TEST_F(Link, AKilledGatewayIsReplacedAndItsNamesKeepTheirAddresses) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const address = co_await aside([&] { return guest_->resolve("echo.example"); });
    EXPECT_THAT(address, StartsWith("198.18."));
    auto peer = co_await aside([&] { return guest_->dial(address, 7); });
    EXPECT_EQ(GuestNet::talk(peer, "x", "x"), "x");
    Load const load(std::move(peer));
    auto const first = gateway();
    ::kill(first, SIGSTOP);
    ::kill(first, SIGKILL);
    EXPECT_TRUE(co_await soon([&] { return load.over(); })) << "the guest is told at once";
    auto const arrived = internet_.arrived();
    EXPECT_TRUE(co_await soon([&] { return !life.told.empty(); })) << "a new authority";
    EXPECT_EQ(internet_.arrived(), arrived);
    EXPECT_NE(gateway(), first);
    EXPECT_EQ(co_await say(address, "again"), "again") << "an address that the guest remembers";
  };
  auto const restarts = [] {
    double sum = 0;
    for (auto const& sample : base::metrics().all())
      if (sample.name == base::metric::gateway_restarts.name) sum += sample.value;
    return sum;
  };
  auto const before = restarts();
  live(echo_by_name, use);
  EXPECT_EQ(restarts() - before, 1) << "the gateway that ended with its sandbox did not die";
}

TEST_F(Link, ASpareGatewayIsTakenAndNoneIsStarted) {
  async::run_test(
      [&]() -> awaitable<void> { co_await worker::start_spare_gateway(client(), slot); });
  auto const spare = gateway();
  ASSERT_NE(spare, 0);
  EXPECT_EQ(guest_->resolve("echo.example"), "") << "it is closed";
  auto const use = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(gateway(), spare);
    EXPECT_EQ(co_await say("echo.example", "x"), "x");
    EXPECT_THAT(life.link.authority_pem(), HasSubstr("BEGIN CERTIFICATE"));
  };
  live(echo_by_name, use);
}

TEST_F(Link, ASpareGatewayThatDiedIsMadeUpFor) {
  async::run_test(
      [&]() -> awaitable<void> { co_await worker::start_spare_gateway(client(), slot); });
  ::kill(gateway(), SIGKILL);
  ASSERT_TRUE(eventually([&] { return gateway() == 0; }));
  auto const use = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "x"), "x");
  };
  live(echo_by_name, use);
}

/// Of a process's control group: the file with its limit of memory, and what it uses now.
struct MemoryGroup {
  explicit MemoryGroup(pid_t pid) {
    std::istringstream lines(os::read_text(fmt::format("/proc/{}/cgroup", pid)).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      auto const path = line.substr(line.rfind(':') + 1);
      if (line.find(":memory:") != std::string::npos) {
        limit = "/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes";
        used = "/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes";
      } else if (line.starts_with("0::") && limit.empty()) {
        limit = "/sys/fs/cgroup" + path + "/memory.max";
        used = "/sys/fs/cgroup" + path + "/memory.current";
      }
    }
  }

  std::string limit, used;
};

TEST_F(Link, AGatewayThatRunsOutOfMemoryDiesAloneAndIsReplaced) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const address = co_await aside([&] { return guest_->resolve("echo.example"); });
    auto const first = gateway();
    MemoryGroup const group(first);
    auto const limit = std::stoull(os::read_text(group.limit).value_or("0"));
    EXPECT_EQ(limit, 128ULL << 20U) << group.limit;
    // As if a flood had brought it to its limit.
    auto const used = std::stoull(os::read_text(group.used).value_or("0"));
    std::ofstream(group.limit) << used + (256U << 10U);
    std::vector<os::Fd> peers;
    for (int i = 0; i < 200 && gateway() == first; ++i) {
      peers.push_back(co_await aside([&] { return guest_->dial(address, 7); }));
      if (peers.back()) GuestNet::talk(peers.back(), std::string(1000, 'x'), "x");
    }
    EXPECT_TRUE(co_await soon([&] { return gateway() != 0 && gateway() != first; }));
    EXPECT_TRUE(co_await soon([&] { return !life.told.empty(); }));
    EXPECT_EQ(co_await say(address, "again"), "again");
    EXPECT_FALSE(hostd_->died());
  };
  live(echo_by_name, use);
}

TEST_F(Link, ThreeCrashesSwitchTheNetworkOffAndSayWhy) {
  auto const use = [this](Life life) -> awaitable<void> {
    for (int i = 0; i < 3; ++i) {
      auto const open = co_await life.link.wait_open();
      EXPECT_TRUE(open);
      auto const before = life.told.size();
      ::kill(gateway(), SIGKILL);
      if (i < 2) EXPECT_TRUE(co_await soon([&] { return life.told.size() > before; }));
    }
    EXPECT_TRUE(co_await soon([&] { return gateway() == 0; }));
    EXPECT_TRUE(co_await soon([&] {
      auto const seen = life.audit.after(0, "i0123456789abcdefghij");
      return !seen.empty() && seen.back().record.find("failed three times") != std::string::npos;
    }));
    auto const open = co_await life.link.wait_open();
    EXPECT_FALSE(open);
    if (!open) EXPECT_THAT(open.error().message(), HasSubstr("its gateway failed three times"));
    auto const applied = co_await life.link.apply(policy(2, echo_by_name), {});
    EXPECT_FALSE(applied);
    if (!applied) EXPECT_THAT(applied.error().message(), HasSubstr("failed three times"));
    EXPECT_EQ(co_await say("198.18.0.1", "x"), "refused");
    EXPECT_EQ(internet_.arrived(), 0U);
  };
  live(echo_by_name, use);
}

TEST_F(Link, APolicyThatIsNotAcknowledgedSwitchesTheNetworkOff) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const address = co_await aside([&] { return guest_->resolve("echo.example"); });
    auto peer = co_await aside([&] { return guest_->dial(address, 7); });
    EXPECT_EQ(GuestNet::talk(peer, "x", "x"), "x");
    Load const load(std::move(peer));
    ::kill(gateway(), SIGSTOP);
    auto const applied = co_await life.link.apply(policy(2, nothing), {});
    EXPECT_FALSE(applied);
    if (!applied) EXPECT_THAT(applied.error().message(), HasSubstr("not acknowledged in time"));
    EXPECT_EQ(gateway(), 0);
    auto const arrived = internet_.arrived();
    EXPECT_TRUE(co_await soon([&] { return load.over(); }));
    EXPECT_EQ(co_await say(address, "x"), "refused");
    EXPECT_EQ(internet_.arrived(), arrived);
  };
  live(echo_by_name, use);
}

TEST_F(Link, AFullDiskOfTheAuditLogClosesTheNetwork) {
  auto const directory = installation_.directory() + "/audit";
  std::filesystem::create_directory(directory);
  ASSERT_EQ(::mount("audit", directory.c_str(), "tmpfs", 0, "size=64k"), 0);
  auto const use = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "while there is room"), "while there is room");
    auto busy = co_await aside([&] { return guest_->dial(guest_->resolve("echo.example"), 7); });
    EXPECT_EQ(GuestNet::talk(busy, "x", "x"), "x");
    Load const load(std::move(busy));
    std::ofstream(directory + "/filler") << std::string(200'000, 'x');
    // The page that the log's end lies in has room for a few records more.
    for (int i = 0; i < 60 && gateway() != 0; ++i) {
      co_await aside([&] { return guest_->dial(guest_->resolve("echo.example"), 7); });
      co_await async::sleep_for(50ms);
    }
    EXPECT_TRUE(co_await soon([&] { return gateway() == 0; }));
    EXPECT_TRUE(co_await soon([&] { return load.over(); }));
    auto const arrived = internet_.arrived();
    EXPECT_EQ(co_await say("echo.example", "x"), "no such name");
    EXPECT_EQ(internet_.arrived(), arrived);
    auto const after = co_await life.link.wait_open();
    EXPECT_FALSE(after);
    if (!after) EXPECT_THAT(after.error().message(), HasSubstr("cannot be recorded"));
  };
  live(echo_by_name, use);
  ::umount2(directory.c_str(), MNT_DETACH);
}

/// Where the process's fault points look, from before the first of them is passed.
std::string const fault_file = [] {
  auto path = fmt::format("/tmp/space-gateway-link-{}.faults", ::getpid());
  ::setenv("SPACE_FAULT_FILE", path.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no thread yet
  return path;
}();

TEST_F(Link, ASlotWhoseRulesCannotBeToldIsClosed) {
  auto const fail_next = [] { std::ofstream(fault_file) << "worker.gateway.let_through fail\n"; };
  fail_next();
  auto const use = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open) << "it is tried again";
    EXPECT_EQ(os::read_text(fault_file).value_or("?"), "") << "the point was passed";
    EXPECT_EQ(co_await say("echo.example", "x"), "x");
    auto const arrived = internet_.arrived();
    fail_next();
    auto const applied = co_await life.link.apply(
        policy(2, R"({"posture":"allowlist","cidr":{"allow":["203.0.113.20"]}})"), {});
    EXPECT_FALSE(applied);
    if (!applied) EXPECT_THAT(applied.error().message(), HasSubstr("could not be changed"));
    EXPECT_EQ(gateway(), 0);
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "refused");
    EXPECT_EQ(internet_.arrived(), arrived);
  };
  live(echo_by_name, use);
  std::filesystem::remove(fault_file);
}

TEST_F(Link, FlushedRulesOfASlotSwitchTheNetworkOff) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    co_await life.link.check_rules();
    auto const address = co_await aside([&] { return guest_->resolve("echo.example"); });
    auto peer = co_await aside([&] { return guest_->dial(address, 7); });
    EXPECT_EQ(GuestNet::talk(peer, "x", "x"), "x") << "the control: what is ours stays open";
    Load const load(std::move(peer));
    auto const flushed = co_await aside([&] {
      auto const netns = os::open_pinned_netns(installation_.directory() + "/hostd/netns/1");
      auto const inside = os::InNetns::enter(*netns);
      return hostd::load_rules("flush ruleset\n").has_value();
    });
    EXPECT_TRUE(flushed);
    co_await life.link.check_rules();
    EXPECT_EQ(gateway(), 0);
    auto const arrived = internet_.arrived();
    EXPECT_TRUE(co_await soon([&] { return load.over(); }));
    EXPECT_EQ(co_await say(address, "x"), "refused") << "at once, by the slot's own rules";
    EXPECT_EQ(internet_.arrived(), arrived);
    EXPECT_TRUE(client().check_rules(slot, {})) << "which are ours again";
    auto const after = co_await life.link.wait_open();
    EXPECT_FALSE(after);
    if (!after) EXPECT_THAT(after.error().message(), HasSubstr("changed the packet rules"));
    auto const seen = life.audit.after(0, "i0123456789abcdefghij");
    EXPECT_THAT(seen.back().record, HasSubstr("changed the packet rules of its slot"));
  };
  live(echo_by_name, use);
}

TEST_F(Link, HostdTellsWhatTheGuardDropped) {
  auto const dropped = [this] {
    auto const drops = client().count_drops(slot);
    EXPECT_TRUE(drops);
    auto const rule = static_cast<std::size_t>(hostd::GuardRule::connection_rate);
    return drops ? drops->at(rule) : 0;
  };
  EXPECT_EQ(dropped(), 0U);
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 1000; ++i)
      guest_->begin_dial("198.18.0.1", 7);
    return dropped() > 0;
  }));
  auto const nowhere = client().count_drops(slot + 1);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code(), base::Code::not_found);
}

TEST_F(Link, RulesThatAPolicyMadeAreKnownAlsoAfterHostdWasKilled) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const applied = co_await life.link.apply(
        policy(2, R"({"posture":"allowlist","cidr":{"allow":["203.0.113.20"]}})"), {});
    EXPECT_TRUE(applied);
    co_await life.link.check_rules();
    restart_hostd();
    co_await life.link.check_rules();
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "x");
    // Wider than the policy says, by somebody else.
    auto const widened = co_await aside([&] {
      auto const netns = os::open_pinned_netns(installation_.directory() + "/hostd/netns/1");
      auto const inside = os::InNetns::enter(*netns);
      return hostd::load_rules("add element netdev guard dst_policy { 203.0.113.0/24 }\n")
          .has_value();
    });
    EXPECT_TRUE(widened);
    co_await life.link.check_rules();
    EXPECT_EQ(gateway(), 0);
    auto const after = co_await life.link.wait_open();
    EXPECT_FALSE(after);
  };
  live(echo_by_name, use);
}

TEST_F(Link, RulesThatNobodyCanLookAtSwitchTheNetworkOffTheThirdTime) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const address = co_await aside([&] { return guest_->resolve("echo.example"); });
    EXPECT_EQ(co_await say(address, "x"), "x");
    // A hostd that does not find the slot any more.
    auto const files = installation_.directory() + "/hostd/slots/1";
    std::filesystem::rename(files, files + ".away");
    for (int i = 0; i < 2; ++i)
      co_await life.link.check_rules();
    EXPECT_NE(gateway(), 0) << "once or twice is not enough";
    EXPECT_EQ(co_await say(address, "x"), "x");
    co_await life.link.check_rules();
    EXPECT_EQ(gateway(), 0);
    EXPECT_EQ(co_await say(address, "x"), "refused");
    auto const seen = life.audit.after(0, "i0123456789abcdefghij");
    EXPECT_THAT(seen.back().record, HasSubstr("nobody can say any more"));
    auto const after = co_await life.link.wait_open();
    EXPECT_FALSE(after);
    std::filesystem::rename(files + ".away", files);
  };
  live(echo_by_name, use);
}

TEST_F(Link, ANewWorkerOpensASlotOnlyWithRulesThatAreOurs) {
  auto const alter = [this] {
    return aside([this] {
      auto const netns = os::open_pinned_netns(installation_.directory() + "/hostd/netns/1");
      auto const inside = os::InNetns::enter(*netns);
      return hostd::load_rules("insert rule netdev guard from_guest accept\n").has_value();
    });
  };
  auto const first = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "x"), "x");
    EXPECT_TRUE(co_await alter());
    co_await life.link.check_rules();
    EXPECT_EQ(gateway(), 0);
    EXPECT_TRUE(co_await alter()) << "and once more, when nobody looks";
  };
  live(echo_by_name, first, false, false);
  auto const arrived = internet_.arrived();
  auto const second = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_FALSE(open);
    if (!open) EXPECT_THAT(open.error().message(), HasSubstr("changed the packet rules"));
    EXPECT_EQ(gateway(), 0);
    auto const seen = life.audit.after(0, "i0123456789abcdefghij");
    EXPECT_THAT(seen.back().record, HasSubstr("changed the packet rules of its slot"));
    EXPECT_EQ(internet_.arrived(), arrived);
  };
  live(echo_by_name, second, true, false);
  // What hostd has made anew since is ours.
  auto const third = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "x"), "x");
    co_await life.link.check_rules();
    EXPECT_NE(gateway(), 0);
  };
  live(echo_by_name, third, true);
}

TEST_F(Link, WithoutHostdTheNetworkGoesOnAndWhatNeedsItIsRefused) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const address = co_await aside([&] { return guest_->resolve("echo.example"); });
    auto const peer = co_await aside([&] { return guest_->dial(address, 7); });
    hostd_->stop(SIGKILL);
    EXPECT_EQ(GuestNet::talk(peer, "goes on", "goes on"), "goes on");
    EXPECT_EQ(co_await say(address, "new ones too"), "new ones too");
    // The slot's rules cannot be told, so the network closes rather than stay as it was.
    auto const applied = co_await life.link.apply(
        policy(2, R"({"posture":"allowlist","cidr":{"allow":["203.0.113.20"]}})"), {});
    EXPECT_FALSE(applied);
    hostd_->start();
    auto const again = co_await life.link.wait_open();
    EXPECT_FALSE(again);
    EXPECT_EQ(co_await say("203.0.113.20", "x"), "refused");
  };
  live(echo_by_name, use);
}

TEST_F(Link, ANewWorkerFindsTheGatewayWithItsConnectionsAndNames) {
  std::string address;
  os::Fd peer;
  auto const first = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    address = co_await aside([&] { return guest_->resolve("echo.example"); });
    peer = co_await aside([&] { return guest_->dial(address, 7); });
    EXPECT_EQ(GuestNet::talk(peer, "one", "one"), "one");
  };
  live(echo_by_name, first, false, false);
  auto const second = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(GuestNet::talk(peer, "two", "two"), "two");
    // Its names were told to the new worker, which hands them to the next gateway.
    co_await async::sleep_for(200ms);
    ::kill(gateway(), SIGKILL);
    EXPECT_TRUE(co_await soon([&] { return !life.told.empty(); }));
    EXPECT_EQ(co_await say(address, "three"), "three");
  };
  live(echo_by_name, second, true);
}

/// Accepts gateways' connections, as the broker does.
class PlayedBroker {
 public:
  explicit PlayedBroker(std::string const& path) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    auto made = os::listen_stream(path);
    if (!made) throw std::runtime_error(made.error().message());
    listener_ = std::move(*made);
    // As in the broker's directory: root's group opens the door.
    if (::chmod(path.c_str(), 0660) != 0) throw std::runtime_error("no broker");
  }

  /// The user of a gateway that has connected; 0 when none did.
  uid_t gateway() {
    os::Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer) return 0;
    auto const user = os::peer_user(peer);
    peers_.push_back(std::move(peer));
    return user ? *user : 0;
  }

 private:
  os::Fd listener_;
  std::vector<os::Fd> peers_;
};

TEST_F(Link, ARestartedBrokerIsConnectedToALivingGatewayAgain) {
  auto const path = installation_.config().use_socket();
  auto const user = installation_.config().slot_uid_base + installation_.config().slots_max + slot;
  auto broker = std::make_optional<PlayedBroker>(path);
  auto const use = [&](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    auto const pid = gateway();
    EXPECT_EQ(broker->gateway(), user);
    broker.reset();
    co_await async::sleep_for(1500ms);  // it notices, and finds nobody for a while
    broker.emplace(path);
    EXPECT_TRUE(co_await soon([&] { return broker->gateway() == user; }));
    EXPECT_EQ(gateway(), pid);
    EXPECT_EQ(co_await say("echo.example", "others go on"), "others go on");
  };
  live(echo_by_name, use);
}

/// The same with the host's own network in between.
class ThroughTheHost : public Link {
 protected:
  std::string uplink() override {
    auto internet = os::open_pinned_netns(internet_.path());
    if (!internet) throw std::runtime_error(internet.error().message());
    run_in(host_,
           fmt::format("ip link set lo up && ip link add eth0 type veth peer name eth0 netns "
                       "/proc/{}/fd/{} && ip addr add 5.6.7.1/24 dev eth0 && ip link set eth0 up "
                       "&& ip route add default via 5.6.7.2",
                       ::getpid(),
                       internet->get()));
    run_in(*internet, "ip addr add 5.6.7.2/24 dev eth0 && ip link set eth0 up");
    return "host";
  }
};

TEST_F(ThroughTheHost, AGuestReachesWhatItsPolicyAllowsAndNothingElse) {
  auto const use = [this](Life life) -> awaitable<void> {
    auto const open = co_await life.link.wait_open();
    EXPECT_TRUE(open);
    EXPECT_EQ(co_await say("echo.example", "by name"), "by name");
    EXPECT_EQ(co_await say("5.6.7.2", "a public address"), "a public address");
    EXPECT_GT(internet_.questions(), 0U);
    auto const arrived = internet_.arrived();
    // The host itself: a public address of its own, where something listens.
    auto const trap = [&] {
      auto const here = os::InNetns::enter(host_);
      os::Fd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      sockaddr_in any{};
      any.sin_family = AF_INET;
      any.sin_port = htons(7);
      EXPECT_EQ(::bind(made.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
      EXPECT_EQ(::listen(made.get(), 4), 0);
      return made;
    }();
    for (char const* address : {"5.6.7.1", "10.1.2.3", "169.254.169.254", "198.51.100.1"})
      EXPECT_NE(co_await say(address, "x"), "x") << address;
    EXPECT_EQ(::accept4(trap.get(), nullptr, nullptr, SOCK_CLOEXEC), -1);
    EXPECT_EQ(internet_.arrived(), arrived);
  };
  live(R"({"posture":"allowlist","cidr":{"allow":["0.0.0.0/0"]},
           "rules":[{"hosts":["echo.example"],"ports":[7],"protocol":"tcp"}]})",
       use);
}

}  // namespace
}  // namespace test
