#include "cli/selftest_rig.hpp"

#include "cli/process.hpp"
#include "os/fd.hpp"
#include "os/netns.hpp"
#include "os/text_file.hpp"
#include "tls/minter.hpp"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <map>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace cli::selftest {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr char web[] = "203.0.113.10";
constexpr char bad_certificates[] = "203.0.113.12";
constexpr char echo_server[] = "203.0.113.20";
constexpr char attacker[] = "203.0.113.66";
constexpr char inside[] = "10.1.2.3";
constexpr char metadata[] = "169.254.169.254";

/// Names below .example, in the order in which a hello is searched for them.
std::map<std::string, std::vector<std::string>> const& hosts() {
  static std::map<std::string, std::vector<std::string>> const table = {
      {"allowed.example", {web}},
      {"second.example", {web}},
      {"neighbour.example", {web}},
      {"paths.example", {web}},
      {"sockets.example", {web}},
      {"pass.example", {web}},
      {"redirect.example", {web}},
      {"selfsigned.example", {bad_certificates}},
      {"wrongname.example", {bad_certificates}},
      {"echo.example", {echo_server}},
      {"evil.example", {attacker}},
      {"inside.example", {inside}},
      {"metadata.example", {metadata}},
      {"loopback.example", {"127.0.0.1"}},
      {"mixed.example", {inside, web}}};
  return table;
}

class Servers {
 public:
  Servers(asio::any_io_executor executor, std::string journal)
      : executor_(std::move(executor)), journal_(journal, std::ios::app), tasks_(executor_) {}

  base::Result<void> open(std::string const& ca_file) {
    auto good = tls::Minter::make("the rig of space selftest egress");
    auto bad = tls::Minter::make("an authority that nobody trusts");
    if (!good || !bad) return base::passing(good ? bad : good);
    good_ = std::move(*good);
    bad_ = std::move(*bad);
    std::ofstream(ca_file) << good_->authority_pem();
    for (auto const* address : {web, attacker, inside, metadata, bad_certificates}) {
      auto step = listen(address, 443, true);
      if (step) step = listen(address, 80, false);
      if (!step) return step;
    }
    for (std::uint16_t const port : std::initializer_list<std::uint16_t>{7, 22, 853, 8080, 9418}) {
      for (auto const* address : {echo_server, attacker, web}) {
        auto step = listen(address, port, false);
        if (!step) return step;
      }
    }
    return open_names();
  }

 private:
  base::Result<void> listen(std::string const& address, std::uint16_t port, bool secured) {
    auto listener = net::listen_tcp(executor_, address, port);
    if (!listener) return base::passing(listener, "listen at " + address);
    tasks_.spawn("accept", accept(std::move(*listener), secured, address == bad_certificates));
    return {};
  }

  base::Result<void> open_names() {
    os::Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(53);
    inet_pton(AF_INET, EgressRig::resolver, &address.sin_addr);
    // SAFETY: how the socket calls want it.
    if (!socket ||
        ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
      return base::fail_errno("listen for names");
    tasks_.spawn("names", answer_names(std::move(socket)));
    return {};
  }

  void note(std::string_view bytes) {
    journal_ << bytes << '\n';
    journal_.flush();
  }

  asio::awaitable<void> accept(std::unique_ptr<net::Listener> listener, bool secured, bool bad) {
    while (true) {
      auto peer = co_await listener->accept();
      if (!peer) continue;
      tasks_.spawn("serve", serve(std::move(*peer), secured, bad));
    }
  }

  /// Whose certificate the client wants: the name that its hello has in it.
  asio::awaitable<std::string> name_in_hello(int socket) {
    std::array<char, 2048> bytes{};
    for (int i = 0; i < 200; ++i) {
      auto const got = ::recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
      std::string_view const text(bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
      for (auto const& [name, addresses] : hosts())
        if (text.find(name) != std::string_view::npos) co_return name;
      co_await async::sleep_for(10ms);
    }
    co_return std::string("unknown.example");
  }

  asio::awaitable<void> serve(net::Stream peer, bool secured, bool bad) {
    if (secured) {
      auto name = co_await name_in_hello(peer->native_handle());
      auto& minter = bad && name != "wrongname.example" ? *bad_ : *good_;
      if (bad) name = "other.example";
      auto opened =
          co_await minter.accept(std::move(name), std::move(peer), base::system_clock().in(5s));
      if (!opened) co_return;
      peer = std::move(*opened);
    }
    std::string received;
    std::vector<char> buffer(16 * 1024);
    while (true) {
      auto const got = co_await peer->read_some(buffer);
      if (!got || *got == 0) co_return;
      std::string_view const text(buffer.data(), *got);
      note(text);
      received += text;
      // Whatever looks like a whole head has an answer; anything else is sent back.
      bool const web_like = received.find(" HTTP/1") != std::string::npos;
      auto end = received.find("\r\n\r\n");
      std::string answer = web_like ? std::string() : std::string(text);
      for (; web_like && end != std::string::npos; end = received.find("\r\n\r\n")) {
        bool const upgrade = received.substr(0, end).find("websocket") != std::string::npos;
        answer +=
            upgrade ? "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "
                      "websocket\r\n\r\n"
                    : "HTTP/1.1 200 OK\r\nAlt-Svc: h3=\":443\"\r\nContent-Length: 6\r\n\r\nhello\n";
        received.erase(0, end + 4);
      }
      auto const sent = co_await peer->write_text(answer);
      if (!sent) co_return;
    }
  }

  asio::awaitable<void> answer_names(os::Fd socket) {
    asio::posix::stream_descriptor descriptor(executor_, socket.release());
    while (true) {
      auto const [error] = co_await descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                                          asio::as_tuple(asio::use_awaitable));
      if (error) co_return;
      std::array<char, 1024> query{};
      sockaddr_in from{};
      socklen_t size = sizeof from;
      // SAFETY: how the socket calls want it.
      auto* const where = reinterpret_cast<sockaddr*>(&from);
      auto const got = ::recvfrom(
          descriptor.native_handle(), query.data(), query.size(), MSG_DONTWAIT, where, &size);
      if (got < 17) continue;
      auto const answer = answer_to(std::string_view(query.data(), static_cast<std::size_t>(got)));
      static_cast<void>(
          ::sendto(descriptor.native_handle(), answer.data(), answer.size(), 0, where, size));
    }
  }

  std::string answer_to(std::string_view query) {
    std::string name;
    std::size_t at = 12;
    while (at < query.size() && query[at] != '\0') {
      auto const length = static_cast<std::size_t>(static_cast<unsigned char>(query[at]));
      if (!name.empty()) name += '.';
      name += query.substr(std::min(at + 1, query.size()), length);
      at += length + 1;
    }
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    note(name);
    auto const question_end = std::min(at + 5, query.size());
    bool const for_ipv4 =
        question_end >= 4 && query.substr(question_end - 4, 2) == std::string_view("\0\1", 2);
    auto const known = hosts().find(name);
    std::string records;
    char count = 0;
    if (known != hosts().end() && for_ipv4) {
      for (auto const& address : known->second) {
        std::array<char, 4> bytes{};
        inet_pton(AF_INET, address.c_str(), bytes.data());
        records += std::string("\xc0\x0c\0\1\0\1\0\0\0\0\0\4", 12) + std::string(bytes.data(), 4);
        ++count;
      }
    }
    std::string out(query.substr(0, 2));
    out += known == hosts().end() ? "\x81\x83" : "\x81\x80";
    out += std::string("\0\1\0", 3) + count + std::string(4, '\0');
    out += query.substr(12, question_end - 12);
    return out + records;
  }

  asio::any_io_executor executor_;
  std::ofstream journal_;
  std::shared_ptr<tls::Minter> good_, bad_;
  async::TaskGroup tasks_;
};

asio::awaitable<int> run_servers(std::string directory, int ready) {
  auto executor = co_await asio::this_coro::executor;
  Servers servers(executor, directory + "/arrived");
  auto const opened = servers.open(directory + "/ca.pem");
  if (!opened) {
    std::ofstream(directory + "/failed") << opened.error().message();
    co_return 1;
  }
  static_cast<void>(::write(ready, "y", 1));
  async::Signal forever(executor);
  co_await forever.wait();
  co_return 0;
}

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
  for (auto const* address :
       {web, bad_certificates, echo_server, attacker, inside, metadata, resolver})
    if (step)
      step = ip({"-n", rig.name_, "addr", "add", std::string(address) + "/32", "dev", "lo"});
  if (!step) return base::passing(step, "make the namespace");
  auto child = start_child([&](int ready) {
    os::Fd const netns(::open(rig.uplink().c_str(), O_RDONLY | O_CLOEXEC));
    auto entered = os::InNetns::enter(os::FdRef(netns));
    if (!entered) return 1;
    return async::run_main([&] { return run_servers(rig.directory_, ready); });
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

bool EgressRig::arrived(std::string const& token) const {
  return times_in(directory_ + "/arrived", token) > 0;
}

base::Result<GuardWitness> GuardWitness::start(std::string const& slot_netns, std::string output) {
  GuardWitness witness(std::move(output));
  auto child =
      start_child([&](int ready) { return watch_frames(slot_netns, witness.output_, ready); });
  if (!child) return base::passing(child, "look behind the slot's rules");
  witness.reader_ = *child;
  return witness;
}

GuardWitness::GuardWitness(GuardWitness&& from) noexcept
    : output_(std::move(from.output_)), reader_(std::exchange(from.reader_, 0)) {}

GuardWitness::~GuardWitness() {
  end_child(reader_);
}

std::size_t GuardWitness::passed(std::string const& token) const {
  return times_in(output_, token);
}

}  // namespace cli::selftest
