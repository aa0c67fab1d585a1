#include "gateway/control.hpp"

#include "base/log.hpp"
#include "base/metrics.hpp"
#include "wire/text.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <deque>
#include <map>

#include <malloc.h>

namespace gateway {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t command_bytes_max = 8 << 20;
constexpr std::size_t backlog_max = 4096;
/// Kept free for what somebody must act on: a guest can fill the rest with what is denied.
constexpr std::size_t backlog_reserve = 1024;
/// Different denials within a second; beyond them each repeat is a record.
constexpr std::size_t repeats_max = 1024;
constexpr std::size_t names_per_event = 256;
constexpr std::size_t events_bytes = 16 * 1024;
/// A request's record, mostly; little enough for the allocator's fast lists.
constexpr std::size_t event_bytes = 960;
constexpr auto coalesce_every = 1s;
constexpr auto idle_after = 2s;

/// Sends events to the worker in order, all that one turn of the loop brought in one write.
/// Decisions wait in a bounded queue; when it is full they are counted, and the count is sent as a
/// record of its own, so that a gap in the audit is itself in the audit.
class EventSender final : public DecisionSink {
 public:
  explicit EventSender(asio::any_io_executor executor) : wake_(std::move(executor)) {}

  /// Events go to this worker from now on; what the one before did not get is still in the queue.
  void attach(std::shared_ptr<net::ByteStream> stream) {
    stream_ = std::move(stream);
    wake_.notify_all();
  }

  void report(wire::GatewayDecision decision) override {
    auto const now = base::system_clock().steady_now();
    if (decision.decision == "denied" && coalesced(decision, now)) return;
    auto const reserve = decision.decision == "reflected" ? backlog_reserve : 0;
    wire::GatewayEvent event;
    event.decision = std::move(decision);
    if (queue_.size() >= backlog_max + reserve) {
      ++lost_;
      return;
    }
    push(event);
  }

  void name_made(domain::HostName const& name, std::uint32_t address) override {
    wire::GatewayEvent event;
    event.names.emplace()[name.str()] = to_text(address_of_ipv4(address));
    push(event);
  }

  void push(wire::GatewayEvent const& event) {
    auto& line = queue_.emplace_back();
    line.reserve(event_bytes);
    wire::append_text(line, event);
    line += '\n';
    wake_.notify_all();
  }

  asio::awaitable<void> run() {
    std::string lines;
    while (true) {
      while (queue_.empty() || !stream_)
        co_await wake_.wait();
      auto const stream = stream_;  // shared: a new worker may replace it while we write
      lines.clear();
      std::size_t count = 0;
      while (count < queue_.size() && lines.size() < events_bytes)
        lines += queue_[count++];
      auto const sent = co_await stream->write_text(lines);
      if (!sent) {
        if (stream_ == stream) stream_.reset();
        continue;
      }
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(count));
      if (lost_ > 0 && queue_.size() < backlog_max / 2) {
        wire::GatewayEvent event;
        event.decision.emplace();
        event.decision->kind = "gap";
        event.decision->reason = "decisions were not recorded one by one";
        event.decision->count = static_cast<std::uint32_t>(std::exchange(lost_, 0));
        push(event);
      }
    }
  }

  asio::awaitable<void> flush_coalesced() {
    while (true) {
      co_await async::sleep_for(coalesce_every);
      for (auto& [key, repeat] : repeats_) {
        if (repeat.count == 0) continue;
        if (queue_.size() >= backlog_max) {
          lost_ += std::exchange(repeat.count, 0);
          continue;
        }
        repeat.decision.count = std::exchange(repeat.count, 0);
        wire::GatewayEvent event;
        event.decision = repeat.decision;
        push(event);
      }
      tell_metrics();
      auto const old = base::system_clock().steady_now() - coalesce_every;
      std::erase_if(repeats_, [&](auto const& pair) { return pair.second.since < old; });
    }
  }

 private:
  /// What leaves no record. Without a worker it goes on counting.
  void tell_metrics() {
    if (!stream_ || queue_.size() >= backlog_max) return;
    auto const counted = base::metrics().take();
    if (counted.empty()) return;
    wire::GatewayEvent event;
    event.metrics = wire::encode_text(counted);
    push(event);
  }

  struct Repeat {
    wire::GatewayDecision decision;
    std::uint32_t count = 0;
    base::SteadyTime since;
  };

  /// The first denial of a kind goes out at once, repeats within a second as one record with a
  /// count.
  bool coalesced(wire::GatewayDecision const& decision, base::SteadyTime now) {
    auto key = repeat_key(decision);
    auto const known = repeats_.find(key);
    if (known == repeats_.end()) {
      if (repeats_.size() >= repeats_max) return false;
      auto const placed = repeats_.emplace(std::move(key), Repeat{decision, 0, now}).first;
      // Of the first alone, which has its own record.
      auto& of_many = placed->second.decision;
      of_many.flow.clear();
      of_many.request.clear();
      of_many.duration_us = 0;
      of_many.up_bytes = 0;
      of_many.down_bytes = 0;
      return false;
    }
    ++known->second.count;
    return true;
  }

  async::Signal wake_;
  std::shared_ptr<net::ByteStream> stream_;
  std::deque<std::string> queue_;
  std::map<std::string, Repeat> repeats_;
  std::size_t lost_ = 0;
};

}  // namespace

std::string repeat_key(wire::GatewayDecision const& one) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}",
                     one.kind,
                     one.reason,
                     one.host,
                     one.port,
                     one.address,
                     one.level,
                     one.rule,
                     one.generation,
                     one.method,
                     one.authority,
                     one.sni,
                     one.query,
                     one.path);
}

namespace {

bool original_destination(int socket, std::uint32_t& address, std::uint16_t& port) {
  sockaddr_in name{};
  socklen_t size = sizeof name;
  // SAFETY: getsockname takes any address type through sockaddr*. With TPROXY the local name is
  // what the guest dialled.
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
      name.sin_family != AF_INET)
    return false;
  address = ntohl(name.sin_addr.s_addr);
  port = ntohs(name.sin_port);
  return true;
}

class GatewayProcess {
 public:
  GatewayProcess(asio::any_io_executor executor, std::unique_ptr<BrokerClient> broker)
      : sender_(executor),
        gateway_(executor, sender_, std::move(broker)),
        flows_(executor),
        services_(executor) {}

  asio::awaitable<void> run(net::Listener& control,
                            net::Listener& tcp,
                            os::Fd dns_datagram,
                            net::Listener& dns_stream,
                            os::Fd renewals) {
    services_.spawn("events", sender_.run());
    services_.spawn("coalesce", sender_.flush_coalesced());
    services_.spawn("memory", give_memory_back());
    services_.spawn("tcp", accept_flows(tcp));
    services_.spawn("dns_datagrams", serve_dns_datagrams(gateway_, std::move(dns_datagram)));
    services_.spawn("dns_streams", accept_queries(dns_stream));
    services_.spawn("renewals", take_renewals(gateway_, std::move(renewals)));
    services_.spawn("broker", watch_broker());
    services_.spawn("credentials", gateway_.broker()->run());
    co_await obey(control);
    services_.cancel();
    co_await services_.join();
    commands_.cancel();
    co_await commands_.join();
    flows_.cancel();
    co_await flows_.join();
  }

 private:
  /// What a start, a large policy or a crowd of connections needed is the host's again once nothing
  /// lives: most gateways of a host are idle most of the time.
  asio::awaitable<void> give_memory_back() {
    bool used = true;
    while (true) {
      co_await async::sleep_for(idle_after);
      bool const idle = flows_.running() == 0;
      if (idle && used) ::malloc_trim(0);
      used = !idle || std::exchange(commanded_, false);
    }
  }

  void report_broker() {
    wire::GatewayEvent event;
    event.broker_lost = true;
    sender_.push(event);
  }

  asio::awaitable<void> watch_broker() {
    auto* const broker = gateway_.broker();
    while (true) {
      co_await broker->wait_lost();
      report_broker();
      co_await broker->wait_connected();
    }
  }

  asio::awaitable<void> obey(net::Listener& control) {
    while (true) {
      auto worker = co_await control.accept();
      if (!worker) co_return;
      // One worker at a time: a new connection means that the old worker is gone.
      if (worker_) worker_->close();
      commands_.cancel();
      co_await commands_.join();
      worker_ = std::move(*worker);
      sender_.attach(worker_);
      if (!gateway_.broker()->connected()) report_broker();
      commands_.spawn("commands", read_commands());
    }
  }

  asio::awaitable<void> read_commands() {
    std::string received;
    std::vector<char> buffer(64 * 1024);
    while (true) {
      auto const got = co_await worker_->read_some(buffer);
      if (!got || *got == 0) co_return;
      received.append(buffer.data(), *got);
      for (auto end = received.find('\n'); end != std::string::npos; end = received.find('\n')) {
        on_command(std::string_view(received).substr(0, end));
        received.erase(0, end + 1);
      }
      if (received.size() > command_bytes_max) co_return;
    }
  }

  /// In parts, so that no event grows beyond what a worker reads.
  void tell_names() {
    wire::GatewayEvent event;
    for (auto const& [name, address] : gateway_.names().all()) {
      if (!event.names) event.names.emplace();
      (*event.names)[name.str()] = to_text(address_of_ipv4(address));
      if (event.names->size() < names_per_event) continue;
      sender_.push(event);
      event.names.reset();
    }
    if (event.names) sender_.push(event);
  }

  void on_command(std::string_view line) {
    auto command =
        wire::decode_text<wire::GatewayCommand>(line, wire::UnknownKeys::ignore, command_bytes_max);
    wire::GatewayEvent event;
    if (!command) {
      base::log::error("bad_command", {{"what", command.error().message()}});
      return;
    }
    gateway_.heard_of_worker();
    commanded_ = commanded_ || command->start || command->policy;
    if (command->start) {
      auto started = gateway_.start(*command->start);
      if (started) {
        event.started = std::move(*started);
      } else {
        event.applied = wire::GatewayApplied{0, 0, 0, started.error().message()};
      }
      sender_.push(event);
    } else if (command->policy) {
      if (gateway_.started()) {
        event.applied = gateway_.apply(*command->policy);
      } else {
        event.applied = wire::GatewayApplied{0, 0, 0, "the gateway was not started"};
      }
      sender_.push(event);
    } else if (command->revoke) {
      gateway_.revoke(*command->revoke);
    } else if (command->names) {
      tell_names();
    }
  }

  asio::awaitable<void> accept_flows(net::Listener& listener) {
    while (true) {
      auto guest = co_await listener.accept();
      if (!guest) co_return;
      std::uint32_t address = 0;
      std::uint16_t port = 0;
      bool const known = original_destination((*guest)->native_handle(), address, port);
      if (!known || !gateway_.admit_connection()) {
        report_refused(port, to_text(address_of_ipv4(address)));
        continue;  // the stream's end is a reset or a close for the guest, at once
      }
      flows_.spawn("flow", serve_flow(gateway_, std::move(*guest), address, port));
    }
  }

  asio::awaitable<void> accept_queries(net::Listener& listener) {
    while (true) {
      auto guest = co_await listener.accept();
      if (!guest) co_return;
      if (gateway_.admit_connection()) {
        flows_.spawn("dns", serve_dns_stream(gateway_, std::move(*guest)));
        continue;
      }
      report_refused(53, {});
    }
  }

  void report_refused(std::uint16_t port, std::string address) {
    wire::GatewayDecision record;
    record.kind = "connection";
    record.decision = "denied";
    record.reason = gateway_.refusal("connection_budget");
    record.address = std::move(address);
    record.port = port;
    gateway_.report(std::move(record));
  }

  std::shared_ptr<net::ByteStream> worker_;
  EventSender sender_;
  bool commanded_ = false;  // since memory was given back
  Gateway gateway_;
  async::TaskGroup flows_;
  async::TaskGroup services_;
  async::TaskGroup commands_{gateway_.executor()};
};

}  // namespace

asio::awaitable<int> run_gateway(Sockets sockets) {
  auto executor = co_await asio::this_coro::executor;
  auto control = net::adopt_listener(executor, std::move(sockets.control));
  auto tcp = net::adopt_listener(executor, std::move(sockets.tcp));
  auto dns_stream = net::adopt_listener(executor, std::move(sockets.dns_stream));
  if (!control || !tcp || !dns_stream) {
    base::log::error("gateway_sockets", {{"what", "a descriptor is missing"}});
    co_return 1;
  }
  net::Stream first;
  if (sockets.broker) {
    if (auto stream = net::adopt_socket(executor, std::move(sockets.broker)))
      first = std::move(*stream);
  }
  auto broker = std::make_unique<BrokerClient>(executor, std::move(first));
  // Everything that needs a file is loaded by now; what comes later is bytes of strangers.
  if (auto confined = confine(); !confined) {
    base::log::error("gateway_confine", {{"what", confined.error().message()}});
    co_return 1;
  }
  GatewayProcess process(executor, std::move(broker));
  co_await process.run(
      **control, **tcp, std::move(sockets.dns_datagram), **dns_stream, std::move(sockets.renewals));
  co_return 0;
}

}  // namespace gateway
