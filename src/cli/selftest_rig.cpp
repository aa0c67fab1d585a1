#include "cli/selftest_rig.hpp"

#include "cli/process.hpp"
#include "cli/selftest_servers.hpp"
#include "os/fd.hpp"
#include "os/netns.hpp"
#include "os/text_file.hpp"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace cli::selftest {
namespace {

/// A child that does `work` and dies with us; true once it wrote its byte.
base::Result<pid_t> start_child(std::function<int(int ready)> const& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno("make a pipe");
  os::Fd const said(ends[0]);
  os::Fd saying(ends[1]);
  auto const child = ::fork();
  if (child < 0) return base::fail_errno("start a process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(work(saying.get()));
  }
  saying.reset();
  pollfd waiting{said.get(), POLLIN, 0};
  char word = 0;
  if (::poll(&waiting, 1, 20'000) == 1 && ::read(said.get(), &word, 1) == 1) return child;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return base::fail(base::Code::unavailable, "it did not start");
}

void end_child(pid_t child) {
  if (child <= 0) return;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

base::Result<void> ip(std::vector<std::string> words) {
  words.insert(words.begin(), find_program("ip"));
  auto done = run_checked(std::move(words));
  if (!done) return base::passing(done);
  return {};
}

std::size_t times_in(std::string const& path, std::string const& token) {
  auto const text = os::read_text(path).value_or("");
  std::size_t count = 0;
  for (auto at = text.find(token); at != std::string::npos;
       at = text.find(token, at + token.size()))
    ++count;
  return count;
}

constexpr char witness_rules[] =
    "table netdev space_witness {\n  chain behind_the_guard {\n"
    "    type filter hook ingress device \"sbx0\" priority -440; policy accept;\n"
    "    dup to \"wit0\"\n  }\n}\n";

/// In the slot's namespace, for ever: the tokens of all frames that arrive at the copy.
int watch_frames(std::string const& slot_netns, std::string const& output, int ready) {
  os::Fd const netns(::open(slot_netns.c_str(), O_RDONLY | O_CLOEXEC));
  auto entered = os::InNetns::enter(os::FdRef(netns));
  if (!netns || !entered) return 1;
  std::ofstream(output + ".nft") << witness_rules;
  bool const made = ip({"link", "add", "wit0", "type", "veth", "peer", "name", "wit1"}) &&
                    ip({"link", "set", "wit0", "up"}) && ip({"link", "set", "wit1", "up"}) &&
                    run_checked({find_program("nft"), "-f", output + ".nft"});
  os::Fd const wire(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(::if_nametoindex("wit1"));
  // SAFETY: how the socket calls want it.
  if (!made || !wire ||
      ::bind(wire.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
    return 1;
  int const room = 8 << 20;
  ::setsockopt(wire.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  static_cast<void>(::write(ready, "y", 1));
  std::ofstream seen(output, std::ios::app);
  std::vector<char> frame(64 * 1024);
  while (true) {
    auto const got = ::recv(wire.get(), frame.data(), frame.size(), 0);
    if (got <= 0) continue;
    std::string_view const text(frame.data(), static_cast<std::size_t>(got));
    for (auto at = text.find("tk"); at != std::string_view::npos; at = text.find("tk", at + 2))
      if (text.size() >= at + 12) seen << text.substr(at, 12) << '\n';
    seen.flush();
  }
}

}  // namespace

base::Result<EgressRig> EgressRig::start(std::string directory) {
  EgressRig rig(std::move(directory), fmt::format("space-selftest-{}", ::getpid()));
  auto step = ip({"netns", "add", rig.name_});
  if (step) step = ip({"-n", rig.name_, "link", "set", "lo", "up"});
  for (auto const& address : addresses_of_servers())
    if (step) step = ip({"-n", rig.name_, "addr", "add", address + "/32", "dev", "lo"});
  if (!step) return base::passing(step, "make the namespace");
  auto child = start_child([&](int ready) {
    os::Fd const netns(::open(rig.uplink().c_str(), O_RDONLY | O_CLOEXEC));
    auto entered = os::InNetns::enter(os::FdRef(netns));
    if (!entered) return 1;
    return run_servers(rig.directory_, ready);
  });
  if (!child)
    return base::passing(
        child, "start the servers: " + os::read_text(rig.directory_ + "/failed").value_or(""));
  rig.servers_ = *child;
  return rig;
}

EgressRig::EgressRig(EgressRig&& from) noexcept
    : directory_(std::move(from.directory_)),
      name_(std::exchange(from.name_, {})),
      servers_(std::exchange(from.servers_, 0)) {}

EgressRig::~EgressRig() {
  end_child(servers_);
  if (!name_.empty()) static_cast<void>(ip({"netns", "del", name_}));
}

std::vector<Arrival> EgressRig::arrived() const {
  std::vector<Arrival> out;
  std::error_code failed;
  for (auto const& file : std::filesystem::directory_iterator(directory_ + "/arrived", failed)) {
    auto const name = file.path().filename().string();
    auto const where = name.substr(name.find('@') + 1);
    auto text = os::read_text(file.path().string()).value_or("");
    if (!name.starts_with("names@")) {
      out.push_back({where, std::move(text)});
      continue;
    }
    for (std::string_view rest = text; !rest.empty();) {
      auto const end = std::min(rest.find('\n'), rest.size() - 1);
      out.push_back({where, std::string(rest.substr(0, end))});
      rest.remove_prefix(end + 1);
    }
  }
  return out;
}

base::Result<GuardWitness> GuardWitness::start(std::string const& slot_netns, std::string output) {
  GuardWitness witness(slot_netns, std::move(output));
  auto child =
      start_child([&](int ready) { return watch_frames(slot_netns, witness.output_, ready); });
  if (!child) return base::passing(child, "look behind the slot's rules");
  witness.reader_ = *child;
  return witness;
}

GuardWitness::GuardWitness(GuardWitness&& from) noexcept
    : slot_netns_(std::move(from.slot_netns_)),
      output_(std::move(from.output_)),
      reader_(std::exchange(from.reader_, 0)) {}

GuardWitness::~GuardWitness() {
  end_child(reader_);
}

std::size_t GuardWitness::passed(std::string const& token) const {
  return times_in(output_, token);
}

std::int64_t GuardWitness::tracked() const {
  auto const count = run_checked({find_program("nsenter"),
                                  "--net=" + slot_netns_,
                                  find_program("cat"),
                                  "/proc/sys/net/netfilter/nf_conntrack_count"});
  // Where the kernel has no such table, nothing is in it.
  return count ? std::strtoll(count->c_str(), nullptr, 10) : 0;
}

}  // namespace cli::selftest
