#pragma once

#include "broker/service.hpp"
#include "integration/guest_net.hpp"
#include "integration/hostd_fixture.hpp"
#include "tls/minter.hpp"
#include "wire/gateway.hpp"

#include <array>

/// A guest that never stops sending, a gateway of its own process behind a real slot, servers that
/// count every byte which comes, a broker, and the test as the worker: what a test breaks, it
/// breaks under load.
namespace test {

namespace asio = boost::asio;
using asio::awaitable;

/// Time of the broker, whose two clocks can be set one by one.
class SetClock final : public base::Clock {
 public:
  base::SteadyTime steady_now() const override {
    return base::system_clock().steady_now() + steady;
  }

  base::WallTime wall_now() const override { return base::system_clock().wall_now() + wall; }

  std::chrono::hours steady{0};
  std::chrono::hours wall{0};
};

/// A way out that a guest keeps busy. Each is a name, a port and a rule of its own.
enum class Way : std::uint8_t {
  raw,    // bytes on connections that live on
  plain,  // requests on such connections
  bound,  // the same with a credential
  fresh,  // a connection for each request, so a question to the name server, too
};
constexpr std::array every_way{Way::raw, Way::plain, Way::bound, Way::fresh};
std::string_view name_of(Way way);

/// What became of a way's attempts.
struct Tally {
  static constexpr std::size_t loads = 3;  // connections that are busy at once

  std::uint64_t answered = 0;
  std::array<std::uint64_t, loads> refused{};  // of each
};

/// A server of the world behind the gateways.
class CountingServer {
 public:
  /// Listens in the namespace pinned at `world`; plain bytes when there is no minter. Answers what
  /// has `wanted` in it, and only that, with 200.
  CountingServer(asio::any_io_executor executor,
                 std::string const& world,
                 std::uint16_t port,
                 tls::Minter* minter,
                 std::string host,
                 std::string wanted);

  /// Bytes below TLS, and connections: nothing of both may come.
  std::uint64_t seen() const { return *bytes_ + connections_; }

  awaitable<void> close();

 private:
  awaitable<void> accept();
  awaitable<void> serve(net::Stream stream);

  tls::Minter* minter_;
  std::string host_;
  std::string wanted_;
  std::shared_ptr<std::uint64_t> bytes_ = std::make_shared<std::uint64_t>(0);
  std::uint64_t connections_ = 0;
  std::unique_ptr<net::Listener> listener_;
  async::TaskGroup tasks_;
};

class FailClosedRig {
 public:
  explicit FailClosedRig(asio::any_io_executor executor);
  /// Until every way carries.
  awaitable<void> begin();
  awaitable<void> end();

  // What is broken, and mended.
  awaitable<void> kill_gateway();
  awaitable<void> start_gateway();
  awaitable<void> leave_gateway();  // as a worker that died
  awaitable<void> attach_gateway();
  awaitable<void> replace_worker();
  awaitable<void> kill_hostd();
  awaitable<void> start_hostd();
  awaitable<void> end_broker();
  awaitable<void> start_broker();
  awaitable<void> start_broker_with_another_key();
  awaitable<void> end_leases_by_time();
  awaitable<void> end_leases_though_the_clock_is_set_back();
  awaitable<void> set_the_clock_forward();
  awaitable<void> lease_again();
  awaitable<void> fail_names();
  awaitable<void> take_names_away();
  awaitable<void> lead_names_inside();
  awaitable<void> mend_names();
  awaitable<void> nothing();

  /// More attempts of this way are answered.
  awaitable<bool> carries(Way way);
  /// Attempts are refused, and from then on not one byte of them comes to a server.
  awaitable<bool> is_closed(Way way);

  /// What came where no rule leads.
  std::uint64_t strayed() const { return trap_.seen(); }

  std::uint64_t strays_tried() const { return strays_tried_; }

  bool makes_slots() const;

 private:
  static constexpr std::uint32_t slot = 1;

  wire::EffectivePolicy policy() const;
  async::Task<void> send(wire::GatewayCommand command);
  /// Holds the line to a gateway from now on, and reads it.
  void take(os::Fd control);
  awaitable<void> feed(std::shared_ptr<net::ByteStream> line);
  awaitable<void> drain(std::shared_ptr<net::ByteStream> line);
  awaitable<void> open_broker(std::string keys);
  void lease();

  async::Task<net::Stream> dial(std::string address, std::uint16_t port);
  async::Task<net::Stream> open_way(Way way);
  static async::Task<bool> exchange(net::ByteStream* stream, Way way);
  awaitable<void> press(Way way, std::size_t load);
  awaitable<void> stray(std::string address);
  std::uint64_t arrived(Way way) const;
  /// Until each of its loads was refused so often.
  awaitable<bool> refuses(Way way, std::uint64_t times);
  awaitable<bool> until(std::function<bool()> condition);

  asio::any_io_executor executor_;
  Installation installation_;
  SmallInternet internet_;
  os::Fd host_ = make_netns();
  std::optional<Hostd> hostd_;
  std::optional<GuestNet> guest_;
  std::shared_ptr<tls::Minter> world_;

  SetClock clock_;
  std::unique_ptr<broker::KeyProvider> keys_;
  std::optional<broker::Vault> vault_;
  std::optional<broker::Service> broker_;
  std::optional<wire::Sealed> sealed_;

  std::shared_ptr<net::ByteStream> line_;  // to the gateway
  std::uint32_t gateway_user_ = 0;
  pid_t gateway_ = 0;
  std::string authority_;
  std::map<std::string, std::string> names_;

  CountingServer plain_, bound_, fresh_, trap_;
  std::array<Tally, every_way.size()> tallies_{};
  std::uint64_t strays_tried_ = 0;
  async::TaskGroup tasks_;
};

}  // namespace test
