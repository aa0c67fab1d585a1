#include "agent/loopback_forward.hpp"

#include "os/fd.hpp"
#include "wire/agent.hpp"

#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace agent {
namespace {

// The kernel lists listeners before everything else: the beginning holds more than ports_max of
// them, and a guest with thousands of connections does not make each look expensive.
constexpr std::size_t table_bytes_max = 32 * 1024;
constexpr std::string_view listening = "0A";

std::string beginning_of(std::string const& path) {
  os::Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(table_bytes_max, '\0');
  std::size_t size = 0;
  while (file && size < text.size()) {
    auto const count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text;
}

std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  auto const word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

std::optional<unsigned> hex(std::string_view text) {
  unsigned value = 0;
  auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The kernel prints an IPv4 address as the number that its bytes are in memory: 0100007F.
std::optional<std::string> loopback_v4(std::string_view text) {
  auto const number = hex(text);
  if (!number || (*number & 0xFFU) != 127) return std::nullopt;
  return fmt::format("127.{}.{}.{}", *number >> 8 & 0xFFU, *number >> 16 & 0xFFU, *number >> 24);
}

std::optional<std::string> loopback_of(std::string_view address) {
  if (address.size() == 8) return loopback_v4(address);
  if (address == "00000000000000000000000001000000") return "::1";
  constexpr std::string_view mapped = "0000000000000000FFFF0000";
  if (address.size() == 32 && address.starts_with(mapped))
    return loopback_v4(address.substr(mapped.size()));
  return std::nullopt;
}

struct Listeners {
  std::map<std::uint16_t, std::string> loopback;
  std::set<std::uint16_t> elsewhere;

  void add(std::string_view line) {
    next_word(line);  // the number of the line
    auto const local = next_word(line);
    next_word(line);  // the other end
    auto const colon = local.find(':');
    if (next_word(line) != listening || colon == std::string_view::npos) return;
    auto const port = hex(local.substr(colon + 1));
    if (!port || *port == 0 || *port > 65535) return;
    auto const number = static_cast<std::uint16_t>(*port);
    auto address = loopback_of(local.substr(0, colon));
    if (address)
      loopback.emplace(number, *std::move(address));
    else
      elsewhere.insert(number);
  }

  void add_all(std::string_view table) {
    while (!table.empty()) {
      auto const line = table.substr(0, table.find('\n'));
      add(line);
      table.remove_prefix(std::min(line.size() + 1, table.size()));
    }
  }
};

}  // namespace

std::map<std::uint16_t, std::string> loopback_only_ports(
    std::string_view tcp, std::string_view tcp6, std::function<bool(std::uint16_t)> const& ours) {
  Listeners listeners;
  listeners.add_all(tcp);
  listeners.add_all(tcp6);
  std::erase_if(listeners.loopback, [&](auto const& one) {
    return listeners.elsewhere.contains(one.first) && !ours(one.first);
  });
  return std::move(listeners.loopback);
}

bool has_children() {
  siginfo_t ignored{};
  // Leaves whoever has ended to the reaper.
  return ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

struct LoopbackForwarder::Forward {
  std::string address;
  std::uint16_t port = 0;
  std::unique_ptr<net::Listener> listener;
};

LoopbackForwarder::LoopbackForwarder(asio::any_io_executor executor, Options options)
    : executor_(executor), options_(std::move(options)), tasks_(executor) {}

LoopbackForwarder::~LoopbackForwarder() = default;

void LoopbackForwarder::start() {
  tasks_.spawn("loopback forwarder", look_again_and_again());
}

asio::awaitable<void> LoopbackForwarder::close() {
  for (auto const& [port, forward] : forwards_)
    forward->listener->close();
  forwards_.clear();
  tasks_.cancel();
  co_await tasks_.join();
}

asio::awaitable<void> LoopbackForwarder::look_again_and_again() {
  for (;;) {
    refresh();
    co_await async::sleep_for(options_.every);
  }
}

void LoopbackForwarder::refresh() {
  std::map<std::uint16_t, std::string> wanted;
  if (!options_.anybody || options_.anybody())
    wanted = loopback_only_ports(beginning_of(options_.tcp_file),
                                 beginning_of(options_.tcp6_file),
                                 [this](std::uint16_t port) { return forwards_.contains(port); });
  std::erase_if(forwards_, [&](auto const& one) {
    auto const found = wanted.find(one.first);
    if (found != wanted.end() && found->second == one.second->address) return false;
    one.second->listener->close();
    return true;
  });
  for (auto const& [port, address] : wanted) {
    if (port == wire::agent_port || forwards_.size() >= ports_max || forwards_.contains(port))
      continue;
    auto listener = net::listen_tcp(executor_, options_.address, port);
    if (!listener) continue;  // taken a moment ago: the next look tells
    auto const forward = std::make_shared<Forward>(Forward{address, port, std::move(*listener)});
    forwards_.emplace(port, forward);
    tasks_.spawn("loopback listener", accept_all(forward));
  }
}

asio::awaitable<void> LoopbackForwarder::accept_all(std::shared_ptr<Forward> forward) {
  for (;;) {
    auto outside = co_await forward->listener->accept();
    if (!outside) co_return;
    if (connections_ >= connections_max) continue;  // closes it
    tasks_.spawn("forwarded connection",
                 carry(std::move(*outside), forward->address, forward->port));
  }
}

asio::awaitable<void> LoopbackForwarder::carry(net::Stream outside,
                                               std::string address,
                                               std::uint16_t port) {
  ++connections_;
  std::unique_ptr<std::size_t, void (*)(std::size_t*)> const counted(
      &connections_, [](std::size_t* count) { --*count; });
  auto inside = co_await net::connect_tcp(std::move(address), port);
  if (inside) co_await net::relay(*outside, **inside);
}

}  // namespace agent
