// `uplink: host` with a namespace in the host's place and another one in the internet's: what
// gateways reach through it and what not, side by side with a second installation, across a killed
// hostd, and what `space doctor` says. The real host's rules stay as they are, and no packet leaves
// this machine.

#include "hostd/uplink.hpp"

#include "cli/doctor.hpp"
#include "hostd/nft.hpp"
#include "hostd/uplink_rules.hpp"
#include "integration/guest_net.hpp"
#include "integration/hostd_fixture.hpp"
#include "os/netns.hpp"
#include "os/text_file.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <unistd.h>

namespace test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Public by every list, and ours in these namespaces.
constexpr char public_server[] = "5.6.7.2";
constexpr char host_address[] = "5.6.7.1";
constexpr char private_server[] = "10.9.9.9";
constexpr char admitted_server[] = "10.20.0.1";
constexpr char resolver[] = "10.9.9.53";
constexpr char metadata[] = "169.254.169.254";

enum class Tried { connected, refused, silent };

sockaddr_in address_of(char const* address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  ::inet_pton(AF_INET, address, &out.sin_addr);
  return out;
}

os::Fd make_socket(int type) {
  return os::Fd(::socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Tried connect_from_here(char const* address, std::uint16_t port) {
  auto const socket = make_socket(SOCK_STREAM);
  auto const where = address_of(address, port);
  // SAFETY: how connect() wants it.
  if (::connect(socket.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0 &&
      errno != EINPROGRESS)
    return Tried::refused;
  pollfd wait{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&wait, 1, 300) != 1) return Tried::silent;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Tried::connected : Tried::refused;
}

/// A listener on every address of a namespace.
class Server {
 public:
  Server(os::FdRef netns, int type, std::uint16_t port) : type_(type) {
    auto const inside = os::InNetns::enter(netns);
    if (!inside) throw std::runtime_error(inside.error().message());
    socket_ = make_socket(type);
    int const yes = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    auto const where = address_of("0.0.0.0", port);
    // SAFETY: how bind() wants it.
    if (::bind(socket_.get(), reinterpret_cast<sockaddr const*>(&where), sizeof where) != 0 ||
        (type == SOCK_STREAM && ::listen(socket_.get(), 16) != 0))
      throw std::runtime_error("no server");
  }

  /// Who came (or sent) since the last question; "" when nobody did.
  std::string visitor() const {
    pollfd wait{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, 0) != 1) return "";
    sockaddr_in from{};
    socklen_t size = sizeof from;
    char byte = 0;
    // SAFETY: how these calls want it.
    auto* const out = reinterpret_cast<sockaddr*>(&from);
    if (type_ == SOCK_STREAM) {
      os::Fd const peer(::accept4(socket_.get(), out, &size, SOCK_CLOEXEC));
    } else if (::recvfrom(socket_.get(), &byte, 1, 0, out, &size) < 0) {
      return "error";
    }
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &from.sin_addr, text.data(), text.size());
    return text.data();
  }

 private:
  int type_;
  os::Fd socket_;
};

/// An installation whose hostd believes that the namespace is its host.
struct Platform {
  Platform(os::FdRef host, std::function<void(wire::Config&)> const& change = {}) {
    installation.configure([&](wire::Config& config) {
      config.uplink = "host";
      config.resolvers = {resolver};
      config.private_routes = {"10.20.0.0/16"};
      if (change) change(config);
    });
    auto const inside = os::InNetns::enter(host);
    hostd.emplace(installation);
  }

  uid_t gateway() const {
    return installation.config().slot_uid_base + installation.config().slots_max;
  }

  os::Fd netns() const {
    auto opened = os::open_pinned_netns(hostd::uplink_path(installation.config()));
    return opened ? std::move(*opened) : os::Fd();
  }

  std::string link() const { return "spup-" + installation.config().instance; }

  /// In the uplink's namespace, as `user`, in a process of its own.
  pid_t begin_as(uid_t user, std::function<int()> const& work) const {
    auto const where = netns();
    auto const child = ::fork();
    // Whoever ends it by this number would end everything.
    if (child < 0) throw std::runtime_error("no process");
    if (child > 0) return child;
    if (::setns(where.get(), CLONE_NEWNET) != 0 || ::setresgid(user, user, user) != 0 ||
        ::setresuid(user, user, user) != 0)
      ::_exit(99);
    ::_exit(work());
  }

  int as(uid_t user, std::function<int()> const& work) const {
    auto const child = begin_as(user, work);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  Tried dial(char const* address, std::uint16_t port, uid_t user = 0) const {
    return static_cast<Tried>(as(user != 0 ? user : gateway(), [&] {
      return static_cast<int>(connect_from_here(address, port));
    }));
  }

  void send(char const* address, std::uint16_t port) const {
    as(gateway(), [&] {
      auto const socket = make_socket(SOCK_DGRAM);
      auto const where = address_of(address, port);
      // SAFETY: how sendto() wants it.
      ::sendto(socket.get(), "x", 1, 0, reinterpret_cast<sockaddr const*>(&where), sizeof where);
      return 0;
    });
  }

  Installation installation;
  std::optional<Hostd> hostd;
};

/// A gateway that was taken over: tries without end what no rule lets out, until this goes.
class Pressure {
 public:
  explicit Pressure(Platform const& platform) {
    void* const shared =
        ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::runtime_error("no memory");
    counts_ = new (shared) Counts;
    auto const parent = ::getpid();
    child_ = platform.begin_as(platform.gateway(), [this, parent] {
      // A change of the user takes this back, hence now; the test may have ended before.
      if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) return 1;
      while (true)
        try_all();
    });
  }

  ~Pressure() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::munmap(counts_, sizeof(Counts));
  }

  Pressure(Pressure const&) = delete;
  Pressure& operator=(Pressure const&) = delete;

  /// So many rounds more were begun and ended.
  bool goes_on() const {
    auto const enough = counts_->rounds + 3;
    return eventually([&] { return counts_->rounds >= enough; });
  }

  std::uint64_t connected() const { return counts_->connected; }

 private:
  struct Counts {
    std::atomic<std::uint64_t> rounds = 0, connected = 0;
  };

  void try_all() {
    for (char const* address : {private_server, metadata, "198.51.100.1"}) {
      if (connect_from_here(address, 80) == Tried::connected) ++counts_->connected;
      auto const socket = make_socket(SOCK_DGRAM);
      auto const where = address_of(address, 53);
      // SAFETY: how sendto() wants it.
      ::sendto(socket.get(), "x", 1, 0, reinterpret_cast<sockaddr const*>(&where), sizeof where);
    }
    ++counts_->rounds;
  }

  Counts* counts_ = nullptr;
  pid_t child_ = 0;
};

class Uplink : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::geteuid(), 0U) << "these tests make network namespaces: run them as root";
    run_in(host_, "ip link set lo up");
    auto const pair = fmt::format("ip link add eth0 type veth peer name eth0 netns /proc/{}/fd/{}",
                                  ::getpid(),
                                  internet_.get());
    run_in(host_, pair);
    run_in(host_, "ip addr add 5.6.7.1/24 dev eth0 && ip link set eth0 up");
    run_in(internet_,
           "ip link set lo up && ip addr add 5.6.7.2/24 dev eth0 && ip link set eth0 up");
    for (char const* address : {private_server, admitted_server, resolver, metadata})
      run_in(internet_, fmt::format("ip addr add {}/32 dev lo", address));
    run_in(internet_, "ip route add 198.51.100.0/24 via 5.6.7.1");
    run_in(host_, "ip route add default via 5.6.7.2");
    web_.emplace(internet_, SOCK_STREAM, 80);
    names_.emplace(internet_, SOCK_STREAM, 53);
    datagrams_.emplace(internet_, SOCK_DGRAM, 53);
    quic_.emplace(internet_, SOCK_DGRAM, 443);
    host_web_.emplace(host_, SOCK_STREAM, 80);
  }

  std::string on_host(std::string const& path) {
    auto const inside = os::InNetns::enter(host_);
    return os::read_text(path).value_or("");
  }

  bool host_has_table(std::string const& table) {
    auto const inside = os::InNetns::enter(host_);
    return hostd::load_rules("list table inet " + table + "\n").has_value();
  }

  cli::Finding doctor(Platform const& platform) {
    auto const inside = os::InNetns::enter(host_);
    return cli::probe_uplink(platform.installation.config());
  }

  void expect_open(Platform const& platform) {
    EXPECT_EQ(platform.dial(public_server, 80), Tried::connected);
    EXPECT_EQ(web_->visitor(), host_address) << "the world sees the host's address";
  }

  /// Everything that must not pass, and that nothing of it arrived; then the control.
  void expect_closed(Platform const& platform, bool at_once) {
    for (char const* address : {private_server, metadata, host_address, "198.51.100.1", resolver}) {
      auto const tried = platform.dial(address, 80);
      EXPECT_NE(tried, Tried::connected) << address;
      bool const by_host_only = std::string_view(address) == host_address;
      if (at_once && !by_host_only) EXPECT_EQ(tried, Tried::refused) << address;
    }
    platform.send(public_server, 53);
    platform.send(public_server, 443);
    platform.send(private_server, 53);
    platform.send("224.0.0.1", 53);
    EXPECT_EQ(web_->visitor(), "");
    EXPECT_EQ(host_web_->visitor(), "");
    EXPECT_EQ(datagrams_->visitor(), "");
    EXPECT_EQ(quic_->visitor(), "");
    platform.send(resolver, 53);
    EXPECT_TRUE(eventually([&] { return datagrams_->visitor() == host_address; }))
        << "the control: the resolver is asked";
    expect_open(platform);
  }

  os::Fd host_ = make_netns();
  os::Fd internet_ = make_netns();
  std::optional<Server> web_, names_, datagrams_, quic_, host_web_;
};

TEST_F(Uplink, GatewaysReachTheWorldAndWhatIsAdmittedAndNothingElse) {
  Platform const platform(host_);
  expect_open(platform);
  EXPECT_EQ(platform.dial(admitted_server, 80), Tried::connected);
  EXPECT_EQ(web_->visitor(), host_address);
  EXPECT_EQ(platform.dial(resolver, 53), Tried::connected);
  EXPECT_EQ(names_->visitor(), host_address);
  EXPECT_NE(platform.dial(public_server, 80, platform.gateway() - 1), Tried::connected)
      << "a machine's user";
  EXPECT_NE(platform.dial(public_server, 80, 65534), Tried::connected) << "some user";
  expect_closed(platform, true);
}

TEST_F(Uplink, TheHostRefusesByItselfWhenTheNamespaceHasNoRules) {
  Platform const platform(host_);
  {
    auto const inside = os::InNetns::enter(platform.netns());
    ASSERT_TRUE(hostd::load_rules("delete table inet uplink\n"));
  }
  expect_closed(platform, false);
}

TEST_F(Uplink, TheNamespaceRefusesByItselfWhenTheHostForwardsEverything) {
  Platform const platform(host_);
  {
    auto const inside = os::InNetns::enter(host_);
    auto const table = "inet space_" + platform.installation.config().instance;
    for (char const* chain : {"arriving", "input", "outward", "inward", "forward"})
      ASSERT_TRUE(hostd::load_rules(fmt::format("flush chain {} {}\n", table, chain)));
  }
  for (char const* address : {private_server, metadata, "198.51.100.1", resolver})
    EXPECT_EQ(platform.dial(address, 80), Tried::refused) << address;
  platform.send(public_server, 443);
  EXPECT_EQ(quic_->visitor(), "");
  EXPECT_EQ(web_->visitor(), "");
  expect_open(platform);
}

TEST_F(Uplink, NobodyOutsideReachesIn) {
  Platform const platform(host_);
  Server const inside(platform.netns(), SOCK_STREAM, 8080);
  auto const number = [&] {
    auto const in = os::InNetns::enter(host_);
    return hostd::standing_uplink(platform.installation.config());
  }();
  ASSERT_TRUE(number);
  auto const plan = hostd::plan_uplink(platform.installation.config(), {}, *number);
  auto const target = hostd::text_of(plan->inner_end);
  for (auto const* netns : {&internet_, &host_}) {
    auto const in = os::InNetns::enter(*netns);
    EXPECT_NE(connect_from_here(target.c_str(), 8080), Tried::connected);
  }
  EXPECT_EQ(inside.visitor(), "");
  EXPECT_NE(platform.dial("127.0.0.1", 8080), Tried::connected) << "gateways among themselves";
  EXPECT_EQ(inside.visitor(), "");
  expect_open(platform);
}

TEST_F(Uplink, TwoInstallationsStandSideBySideAndLeaveNothing) {
  EXPECT_EQ(on_host("/proc/sys/net/ipv4/ip_forward"), "0\n");
  auto first = std::make_optional<Platform>(host_);
  auto second = std::make_optional<Platform>(host_);
  auto const second_table = "space_" + second->installation.config().instance;
  expect_open(*first);
  expect_open(*second);
  {
    // Forwarding is on for ours only.
    EXPECT_TRUE(host_has_table("space_guard"));
    Server const neighbour(second->netns(), SOCK_STREAM, 8080);
    auto const in = [&] {
      auto const inside = os::InNetns::enter(host_);
      return hostd::plan_uplink(second->installation.config(),
                                {},
                                *hostd::standing_uplink(second->installation.config()));
    }();
    EXPECT_NE(first->dial(hostd::text_of(in->inner_end).c_str(), 8080), Tried::connected);
    EXPECT_EQ(neighbour.visitor(), "");
  }
  auto const first_table = "space_" + first->installation.config().instance;
  first.reset();
  EXPECT_FALSE(host_has_table(first_table));
  EXPECT_EQ(on_host("/proc/sys/net/ipv4/ip_forward"), "1\n");
  expect_open(*second);
  second.reset();
  EXPECT_FALSE(host_has_table(second_table));
  EXPECT_FALSE(host_has_table("space_guard"));
  EXPECT_EQ(on_host("/proc/sys/net/ipv4/ip_forward"), "0\n") << "as it was before us";
  EXPECT_THAT(on_host("/proc/thread-self/net/dev"), Not(HasSubstr("spup-")));
}

TEST_F(Uplink, AHostThatForwardedBeforeGoesOnDoingSo) {
  {
    auto const inside = os::InNetns::enter(host_);
    ASSERT_EQ(::system("echo 1 > /proc/sys/net/ipv4/ip_forward"), 0);  // NOLINT: fixed words
  }
  {
    Platform const platform(host_);
    EXPECT_FALSE(host_has_table("space_guard"));
    expect_open(platform);
  }
  EXPECT_EQ(on_host("/proc/sys/net/ipv4/ip_forward"), "1\n");
}

TEST_F(Uplink, AKilledHostdFindsItAgainAndGivesItItsRules) {
  Platform platform(host_);
  struct stat before{}, after{};
  auto const path = hostd::uplink_path(platform.installation.config());
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  platform.hostd->stop(SIGKILL);
  platform.installation.configure([](wire::Config& config) { config.private_routes.clear(); });
  {
    auto const inside = os::InNetns::enter(host_);
    platform.hostd->start();
  }
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  expect_open(platform);
  EXPECT_EQ(platform.dial(admitted_server, 80), Tried::refused) << "the new configuration's rules";
  EXPECT_EQ(web_->visitor(), "");
}

TEST_F(Uplink, DyingAtAnyStepLeavesNothingThatTheNextDoesNotClear) {
  for (char const* point : {"hostd.uplink.linked", "hostd.uplink.pinned"}) {
    {
      Platform platform(host_);
      platform.hostd->stop(SIGKILL);
      run_in(host_, "ip link del " + platform.link());
      platform.hostd->arm(std::string(point) + " kill");
      auto const inside = os::InNetns::enter(host_);
      EXPECT_THROW(platform.hostd->start(), std::runtime_error) << point;
      EXPECT_FALSE(platform.hostd->armed()) << point;
      platform.hostd->start();
      expect_open(platform);
    }
    EXPECT_THAT(on_host("/proc/thread-self/net/dev"), Not(HasSubstr("spup-"))) << point;
  }
}

TEST_F(Uplink, TheDoctorSeesThatItStandsAndWhatStandsInItsWay) {
  Platform const platform(host_);
  auto const ok = doctor(platform);
  EXPECT_EQ(ok.health, cli::Health::ok) << ok.proof;
  EXPECT_THAT(ok.proof, HasSubstr(platform.link()));

  run_in(
      host_,
      "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority "
      "0; policy drop; }'");
  EXPECT_NE(platform.dial(public_server, 80), Tried::connected);
  auto const refused = doctor(platform);
  EXPECT_EQ(refused.health, cli::Health::broken);
  EXPECT_THAT(refused.proof, HasSubstr("ip filter FORWARD"));
  if (refused.fix.starts_with("nft ")) {
    run_in(host_, refused.fix);  // what it says helps
    expect_open(platform);
    EXPECT_EQ(doctor(platform).health, cli::Health::ok);
  }
  run_in(host_, "nft delete table ip filter");

  run_in(host_, "echo 0 > /proc/sys/net/ipv4/ip_forward");
  EXPECT_NE(platform.dial(public_server, 80), Tried::connected);
  EXPECT_THAT(doctor(platform).proof, HasSubstr("ip_forward"));
  EXPECT_EQ(doctor(platform).health, cli::Health::broken);
  run_in(host_, doctor(platform).fix + " > /dev/null");
  expect_open(platform);
}

TEST_F(Uplink, TheDoctorSeesChangedRulesOnBothSides) {
  Platform const platform(host_);
  auto const table = "space_" + platform.installation.config().instance;
  run_in(host_, fmt::format("nft flush chain inet {} outward", table));
  EXPECT_EQ(doctor(platform).health, cli::Health::broken);
  EXPECT_THAT(doctor(platform).proof, HasSubstr(table));
  {
    auto const inside = os::InNetns::enter(host_);
    ASSERT_TRUE(hostd::ensure_uplink(platform.installation.config()));
  }
  EXPECT_EQ(doctor(platform).health, cli::Health::ok);
  run_in(platform.netns(), "nft insert rule inet uplink output accept");
  EXPECT_EQ(doctor(platform).health, cli::Health::broken);
  EXPECT_THAT(doctor(platform).proof, HasSubstr("changed the rules"));
}

TEST_F(Uplink, CarriesNoIpv6AndFailsAtOnce) {
  Platform const platform(host_);
  EXPECT_EQ(platform.as(platform.gateway(),
                        [] {
                          auto const text = os::read_text("/proc/thread-self/net/if_inet6");
                          return text.value_or("").empty() ? 0 : 1;
                        }),
            0);
  EXPECT_EQ(platform.as(platform.gateway(),
                        [] {
                          os::Fd const socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
                          if (!socket) return 0;  // a kernel without it
                          sockaddr_in6 to{};
                          to.sin6_family = AF_INET6;
                          to.sin6_port = htons(80);
                          ::inet_pton(AF_INET6, "2001:db8::1", &to.sin6_addr);
                          // SAFETY: how connect() wants it. It would wait, were there a way.
                          auto const* where = reinterpret_cast<sockaddr const*>(&to);
                          return ::connect(socket.get(), where, sizeof to) == 0 ? 1 : 0;
                        }),
            0);
  EXPECT_THAT(doctor(platform).proof, HasSubstr("IPv4 alone"));
}

TEST_F(Uplink, ChangedRulesAreFoundAndMadeOursAgain) {
  Platform const platform(host_);
  auto const client = platform.hostd->client();
  auto const table = "space_" + platform.installation.config().instance;
  auto const inner =
      fmt::format("nsenter --net={} ", hostd::uplink_path(platform.installation.config()));
  ASSERT_TRUE(client.check_uplink());
  run_in(host_, "nft add table ip somebody_elses");  // as any program on a host may
  EXPECT_TRUE(client.check_uplink());
  for (auto const& change : {std::string("nft flush ruleset"),
                             fmt::format("nft flush chain inet {} outward", table),
                             std::string("nft delete table inet space_guard"),
                             inner + "nft flush ruleset",
                             inner + "nft insert rule inet uplink output accept"}) {
    run_in(host_, change);
    auto const found = client.check_uplink();
    ASSERT_FALSE(found) << change;
    EXPECT_EQ(found.error().code(), base::Code::denied) << change;
    EXPECT_TRUE(client.check_uplink()) << change;
    EXPECT_EQ(doctor(platform).health, cli::Health::ok) << change << doctor(platform).proof;
    EXPECT_TRUE(host_has_table("space_guard")) << change;
  }
  expect_closed(platform, true);
}

TEST_F(Uplink, RootMaySayThatNobodyShallLook) {
  Platform const platform(host_);
  auto const client = platform.hostd->client();
  auto const file = platform.installation.directory() + "/hostd/rules-unwatched";
  std::ofstream(file).flush();
  run_in(host_, "nft flush ruleset");
  EXPECT_TRUE(client.check_uplink());
  EXPECT_EQ(doctor(platform).health, cli::Health::degraded);
  EXPECT_THAT(doctor(platform).fix, HasSubstr("rm " + file));
  ASSERT_EQ(::unlink(file.c_str()), 0);
  EXPECT_FALSE(client.check_uplink());
  EXPECT_TRUE(client.check_uplink());
}

TEST_F(Uplink, FlushedRulesLetNothingOutThatTheyRefused) {
  Platform const platform(host_);
  auto const inner =
      fmt::format("nsenter --net={} ", hostd::uplink_path(platform.installation.config()));
  {
    Pressure const pressure(platform);
    EXPECT_TRUE(pressure.goes_on());
    // One side is flushed, the other side refuses by itself, until both stand again. The host's own
    // public address is known to its side alone; gateways are told it (GatewayStart).
    for (auto const& side : {std::string(), inner}) {
      run_in(host_, side + "nft flush ruleset");
      EXPECT_TRUE(pressure.goes_on());
      EXPECT_FALSE(platform.hostd->client().check_uplink()) << side;
      EXPECT_TRUE(pressure.goes_on());
    }
    EXPECT_EQ(pressure.connected(), 0U);
  }
  EXPECT_EQ(web_->visitor(), "");
  EXPECT_EQ(host_web_->visitor(), "");
  EXPECT_EQ(datagrams_->visitor(), "");
  expect_closed(platform, true);
}

}  // namespace
}  // namespace test
