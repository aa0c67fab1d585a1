#include "cli/selftest_servers.hpp"

#include "cli/selftest_answers.hpp"
#include "cli/selftest_certificates.hpp"
#include "os/fd.hpp"
#include "tls/minter.hpp"
#include "tls/tls.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <unistd.h>

namespace cli::selftest {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr char web[] = "203.0.113.10";
constexpr char bad_certificates[] = "203.0.113.12";
constexpr char hostile[] = "203.0.113.13";
constexpr char api[] = "203.0.113.14";
constexpr char echo_server[] = "203.0.113.20";
constexpr char attacker[] = "203.0.113.66";
constexpr char inside[] = "10.1.2.3";
constexpr char metadata[] = "169.254.169.254";

/// What one connection may send before it is closed.
constexpr std::size_t bytes_max = 2 << 20;

using Hosts = std::map<std::string, std::vector<std::string>>;

/// In the order in which a hello is searched for them. A name without addresses has no answer at
/// all; api.github.com is this internet's own: gateways know that name's API.
Hosts const& hosts() {
  static Hosts const table = {{"allowed.example", {web}},
                              {"second.example", {web}},
                              {"neighbour.example", {web}},
                              {"paths.example", {web}},
                              {"sockets.example", {web}},
                              {"pass.example", {web}},
                              {"redirect.example", {web}},
                              {"selfsigned.example", {bad_certificates}},
                              {"expired.example", {bad_certificates}},
                              {"wrongname.example", {bad_certificates}},
                              {"cnonly.example", {bad_certificates}},
                              {"deep.wild.example", {bad_certificates}},
                              {"hostile.example", {hostile}},
                              {"api.example", {api}},
                              {"bound.example", {api}},
                              {"api.github.com", {api}},
                              {"echo.example", {echo_server}},
                              {"evil.example", {attacker}},
                              {"inside.example", {inside}},
                              {"metadata.example", {metadata}},
                              {"loopback.example", {"127.0.0.1"}},
                              {"mixed.example", {inside, web}},
                              {"silent.example", {}}};
  return table;
}

Hosts const& aliases() {
  static Hosts const table = {{"alias.example", {"inside.example"}},
                              {"loop.example", {"loop.example"}}};
  return table;
}

/// As it goes into a message.
std::string labels_of(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    auto const label = name.substr(0, name.find('.'));
    out += static_cast<char>(label.size());
    out += label;
    name.remove_prefix(std::min(label.size() + 1, name.size()));
  }
  return out + '\0';
}

class Servers {
 public:
  Servers(asio::any_io_executor executor, std::string directory)
      : executor_(std::move(executor)), directory_(std::move(directory)), tasks_(executor_) {}

  base::Result<void> open() {
    std::error_code failed;
    std::filesystem::create_directory(directory_ + "/arrived", failed);
    names_.open(fmt::format("{}/arrived/names@{}:53", directory_, server_of_names));
    auto certified = make_certificates();
    if (!certified) return certified;
    for (auto const* address : {web, attacker, inside, metadata, bad_certificates, hostile, api}) {
      auto step = listen(address, 443);
      if (step) step = listen(address, 80);
      if (!step) return step;
    }
    for (std::uint16_t const port : std::initializer_list<std::uint16_t>{7, 22, 853, 8080, 9418}) {
      for (auto const* address : {echo_server, attacker, web}) {
        auto step = listen(address, port);
        if (!step) return step;
      }
    }
    return open_names();
  }

 private:
  base::Result<void> make_certificates() {
    auto good = tls::Minter::make("the rig of space selftest egress");
    if (!good) return base::passing(good);
    good_ = std::move(*good);
    auto issuer = Issuer::make();
    if (!issuer) return base::passing(issuer);
    std::ofstream(directory_ + "/ca.pem") << good_->authority_pem() << (*issuer)->authority_pem();
    for (auto const& flaw : flaws()) {
      auto written = (*issuer)->write(flaw, directory_);
      if (!written) return written;
      auto const path = directory_ + "/" + flaw.host;
      auto loaded = tls::ServerContext::load(path + ".pem", path + ".key");
      if (!loaded) return base::passing(loaded);
      bad_.emplace(flaw.host, std::move(*loaded));
    }
    return {};
  }

  base::Result<void> listen(std::string const& address, std::uint16_t port) {
    auto listener = net::listen_tcp(executor_, address, port);
    if (!listener) return base::passing(listener, "listen at " + address);
    tasks_.spawn("accept", accept(std::move(*listener), port, fmt::format("{}:{}", address, port)));
    return {};
  }

  base::Result<void> open_names() {
    os::Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(53);
    inet_pton(AF_INET, server_of_names, &address.sin_addr);
    // SAFETY: how the socket calls want it.
    if (!socket ||
        ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
      return base::fail_errno("listen for names");
    tasks_.spawn("names", answer_names(std::move(socket)));
    return {};
  }

  asio::awaitable<void> accept(std::unique_ptr<net::Listener> listener,
                               std::uint16_t port,
                               std::string where) {
    while (true) {
      auto peer = co_await listener->accept();
      if (!peer) continue;
      tasks_.spawn("serve", serve(std::move(*peer), port, where));
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

  async::Task<net::Stream> secured(net::Stream peer) {
    auto name = co_await name_in_hello(peer->native_handle());
    auto const deadline = base::system_clock().in(5s);
    if (auto const bad = bad_.find(name); bad != bad_.end())
      co_return co_await tls::accept(bad->second, std::move(peer), deadline);
    co_return co_await good_->accept(std::move(name), std::move(peer), deadline);
  }

  asio::awaitable<void> serve(net::Stream peer, std::uint16_t port, std::string where) {
    std::ofstream journal(fmt::format("{}/arrived/{}@{}", directory_, ++connections_, where));
    if (port == 443) {
      auto opened = co_await secured(std::move(peer));
      if (!opened) co_return;
      peer = std::move(*opened);
    }
    bool http = port == 443 || port == 80;
    std::string received;
    std::vector<char> buffer(16 * 1024);
    for (std::size_t total = 0; total < bytes_max;) {
      auto const got = co_await peer->read_some(buffer);
      if (!got || *got == 0) co_return;
      total += *got;
      std::string_view const text(buffer.data(), *got);
      journal << text;
      journal.flush();
      received += text;
      while (http) {
        auto const request = take_request(received);
        if (!request) break;
        auto const answer = answer_to(*request);
        auto const sent = co_await peer->write_text(answer.text);
        if (!sent || answer.last) co_return;
        http = !answer.switched;
      }
      if (http) continue;
      auto const echoed = std::exchange(received, {});
      auto const sent = co_await peer->write_text(echoed);
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
      auto const answer = answer_to_query({query.data(), static_cast<std::size_t>(got)});
      if (answer.empty()) continue;
      static_cast<void>(
          ::sendto(descriptor.native_handle(), answer.data(), answer.size(), 0, where, size));
    }
  }

  std::string answer_to_query(std::string_view query) {
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
    names_ << name << '\n';
    names_.flush();
    auto const question_end = std::min(at + 5, query.size());
    bool const for_ipv4 =
        question_end >= 4 && query.substr(question_end - 4, 2) == std::string_view("\0\1", 2);
    std::string records;
    std::string owner = "\xc0\x0c";
    char count = 0;
    auto const alias = aliases().find(name);
    if (alias != aliases().end()) {
      name = alias->second.front();
      auto const target = labels_of(name);
      records = owner + std::string("\0\5\0\1\0\0\0\x3c\0", 9) + static_cast<char>(target.size()) +
                target;
      owner = target;
      ++count;
    }
    auto const known = hosts().find(name);
    if (known != hosts().end() && known->second.empty()) return {};
    if (known != hosts().end() && for_ipv4) {
      for (auto const& address : known->second) {
        std::array<char, 4> bytes{};
        inet_pton(AF_INET, address.c_str(), bytes.data());
        records += owner + std::string("\0\1\0\1\0\0\0\0\0\4", 10) + std::string(bytes.data(), 4);
        ++count;
      }
    }
    std::string out(query.substr(0, 2));
    out += known == hosts().end() && alias == aliases().end() ? "\x81\x83" : "\x81\x80";
    out += std::string("\0\1\0", 3) + count + std::string(4, '\0');
    out += query.substr(12, question_end - 12);
    return out + records;
  }

  asio::any_io_executor executor_;
  std::string directory_;
  std::ofstream names_;
  std::shared_ptr<tls::Minter> good_;
  std::map<std::string, std::shared_ptr<tls::ServerContext>> bad_;
  std::size_t connections_ = 0;
  async::TaskGroup tasks_;
};

asio::awaitable<int> serve_for_ever(std::string directory, int ready) {
  auto executor = co_await asio::this_coro::executor;
  Servers servers(executor, directory);
  auto const opened = servers.open();
  if (!opened) {
    std::ofstream(directory + "/failed") << opened.error().message();
    co_return 1;
  }
  static_cast<void>(::write(ready, "y", 1));
  async::Signal forever(executor);
  co_await forever.wait();
  co_return 0;
}

}  // namespace

std::vector<std::string> addresses_of_servers() {
  return {web,
          bad_certificates,
          hostile,
          api,
          echo_server,
          attacker,
          inside,
          metadata,
          server_of_names};
}

int run_servers(std::string const& directory, int ready) {
  return async::run_main([&] { return serve_for_ever(directory, ready); });
}

}  // namespace cli::selftest
