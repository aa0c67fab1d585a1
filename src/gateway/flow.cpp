#include "base/metric_names.hpp"
#include "gateway/client_hello.hpp"
#include "gateway/gateway.hpp"
#include "gateway/http1.hpp"

namespace gateway {
namespace {

using namespace std::chrono_literals;
using domain::Decision;
using domain::HostName;

constexpr auto first_bytes_timeout = 10s;
constexpr auto connect_timeout = 10s;

std::string address_text(std::uint32_t address) {
  return to_text(address_of_ipv4(address));
}

std::string_view class_of(domain::Flow flow) {
  switch (flow) {
    case domain::Flow::http:
      return "http";
    case domain::Flow::passthrough:
      return "passthrough";
    case domain::Flow::tcp:
      return "tcp";
  }
  return "";
}

wire::GatewayDecision decision_of(Decision const& decision, LiveFlow const& flow) {
  auto out = record_of(flow, "connection");
  out.decision = decision.allowed ? "allowed" : "denied";
  out.reason = name_of(decision.reason);
  if (decision.allowed) out.flow_class = class_of(decision.flow);
  out.address = flow.address ? address_text(flow.address) : "";
  out.level = decision.level;
  out.rule = decision.rule;
  return out;
}

/// One flow's life. Every path that does not end in an explicit permission closes the connection.
class FlowServer {
 public:
  FlowServer(Gateway& gateway, net::Stream guest) : gateway_(gateway), guest_(std::move(guest)) {}

  asio::awaitable<void> run(std::uint32_t destination, std::uint16_t port) {
    auto const policy = gateway_.policy();
    flow().port = port;
    flow().id = gateway_.next_flow_id();
    if (!policy) co_return deny("no_policy", destination);
    flow().generation = policy->generation();
    if (auto name = gateway_.names().name_of(destination)) {
      flow().host = std::move(name);
      co_await run_named(*policy);
    } else if (gateway_.names().covers(destination)) {
      deny("unknown_synthetic_address", destination);
    } else {
      co_await run_literal(*policy, destination);
    }
  }

  ~FlowServer() { gateway_.flows().erase(place_); }

  FlowServer(FlowServer const&) = delete;
  FlowServer& operator=(FlowServer const&) = delete;

 private:
  LiveFlow& flow() noexcept { return *place_; }

  void deny(std::string reason, std::uint32_t address = 0) {
    tell("denied", std::move(reason), address);
  }

  void error(base::Error const& error) { tell("error", error.message(), 0); }

  void tell(std::string_view decision, std::string reason, std::uint32_t address) {
    auto out = record_of(flow(), "connection");
    out.decision = decision;
    out.reason = std::move(reason);
    out.address = address ? address_text(address) : "";
    out.duration_us = micros_since(flow().began);
    gateway_.report(std::move(out));
  }

  /// The guest asked for a name: the address it dialled is that name's and nobody else's.
  asio::awaitable<void> run_named(domain::EgressPolicy const& policy) {
    auto const began = base::system_clock().steady_now();
    auto const decision = policy.judge_connection(*flow().host, flow().port);
    std::chrono::duration<double> const took = base::system_clock().steady_now() - began;
    base::metrics().observe(base::metric::decision_seconds, took.count());
    gateway_.report(decision_of(decision, flow()));
    if (!decision.allowed) co_return;
    flow().flow = decision.flow;
    gateway_.limits().find_meters(decision, flow().meters);
    watch();
    if (decision.flow == domain::Flow::http) co_return co_await run_http();
    Holds holds(gateway_.broker());
    bool const shared = co_await take_shared(policy.shared_levels(), holds);
    if (!shared) co_return;
    switch (decision.flow) {
      case domain::Flow::http:
        break;
      case domain::Flow::passthrough:
        co_await run_passthrough(decision);
        break;
      case domain::Flow::tcp:
        co_await run_tcp(decision);
        break;
    }
  }

  /// The guest dialled an address of its own choice. It is a name's only by what the connection
  /// says (binding `name`), or it is judged as an address. In neither case does a name lead to an
  /// address that the guest chose.
  asio::awaitable<void> run_literal(domain::EgressPolicy const& policy, std::uint32_t destination) {
    bool const may_carry_name =
        policy.binding() == wire::Binding::name && (flow().port == 443 || flow().port == 80);
    if (!may_carry_name) co_return co_await run_address(policy, destination);
    watch();
    auto name = co_await name_in_first_bytes();
    // The guest chose how long that took: what is in force now decides.
    auto const current = gateway_.policy();
    if (!current) co_return deny("no_policy", destination);
    flow().generation = current->generation();
    if (!name || current->binding() != wire::Binding::name)
      co_return co_await run_address(*current, destination);
    flow().host = std::move(name);
    co_await run_named(*current);
  }

  asio::awaitable<void> run_address(domain::EgressPolicy const& policy, std::uint32_t destination) {
    flow().address = destination;
    auto const decision = policy.judge_address(destination, flow().port);
    gateway_.report(decision_of(decision, flow()));
    auto const permit = RawPermit::from(decision);
    if (!permit) co_return;
    flow().flow = domain::Flow::tcp;
    watch();
    Holds holds(gateway_.broker());
    bool const shared = co_await take_shared(policy.shared_levels(), holds);
    if (!shared) co_return;
    auto upstream = co_await gateway_.dialer().dial_address(
        destination, flow().port, base::system_clock().in(connect_timeout));
    if (!upstream) {
      error(upstream.error());
      co_return;
    }
    co_await relay(*permit, *upstream);
  }

  /// Nobody looks for requests in it, so the connection counts as one of what all sandboxes of a
  /// level may do together.
  asio::awaitable<bool> take_shared(std::string levels, Holds& holds) {
    if (levels.empty()) co_return true;
    if (!gateway_.broker()) {
      deny("shared_budget_unavailable", flow().address);
      co_return false;
    }
    wire::Use use;
    use.scheme = wire::budget_scheme;
    use.credential = std::move(levels);
    auto const used = co_await gateway_.broker()->ask(std::move(use));
    if (used && used->ok) {
      holds.add(*used);
      co_return !flow().over;
    }
    bool const too_many = used && used->code == "exhausted";
    deny(too_many ? used->id + "_budget" : "shared_budget_unavailable", flow().address);
    co_return false;
  }

  /// From now on a policy change can end this flow.
  void watch() {
    auto* guest = guest_.get();
    flow().cut = [guest] { guest->close(); };
  }

  asio::awaitable<void> run_tcp(Decision const& decision) {
    auto const permit = RawPermit::from(decision);
    if (!permit) co_return;
    auto upstream = co_await gateway_.dialer().dial(
        *flow().host, flow().port, base::system_clock().in(connect_timeout));
    if (!upstream) {
      error(upstream.error());
      co_return;
    }
    co_await relay(*permit, *upstream);
  }

  asio::awaitable<void> run_passthrough(Decision const& decision) {
    auto const permit = RawPermit::from(decision);
    auto const hello = co_await read_hello();
    if (!permit || !hello) co_return;
    if (!hello->server_name || *hello->server_name != *flow().host) {
      deny("server_name_differs");
      co_return;
    }
    if (hello->encrypted_client_hello) {
      deny("encrypted_client_hello");
      co_return;
    }
    auto upstream = co_await gateway_.dialer().dial(
        *flow().host, flow().port, base::system_clock().in(connect_timeout));
    if (!upstream) {
      error(upstream.error());
      co_return;
    }
    co_await relay(*permit, *upstream);
  }

  /// What was read to find a name in it goes first.
  asio::awaitable<void> relay(RawPermit permit, Dialer::Connected& connected) {
    auto& upstream = *connected.stream;
    flow().upstream = to_text(connected.address);
    auto* guest = guest_.get();
    flow().cut = [guest, &upstream] {
      guest->close();
      upstream.close();
    };
    if (flow().over) co_return;
    co_await relay_raw(gateway_, flow(), permit, *guest_, std::move(received_), upstream);
  }

  asio::awaitable<void> run_http() {
    auto const first = co_await peek();
    if (!first) co_return;
    bool const tls = *first == 0x16;
    // 443 is TLS and 80 is not: what disagrees with its port is a trick or a mistake.
    if ((flow().port == 443 && !tls) || (flow().port == 80 && tls)) {
      deny("protocol_differs_from_port");
      co_return;
    }
    if (!tls) {
      co_await serve_http(gateway_, flow(), *guest_, std::move(received_), false);
      co_return;
    }
    auto const hello = co_await read_hello();
    if (!hello) co_return;
    if (hello->server_name && *hello->server_name != *flow().host) {
      deny("server_name_differs");
      co_return;
    }
    if (!gateway_.admit_handshake()) {
      deny("handshake_budget");
      co_return;
    }
    auto secured =
        co_await gateway_.minter().accept(flow().host->str(),
                                          with_prefix(std::move(received_), std::move(guest_)),
                                          base::system_clock().in(first_bytes_timeout));
    base::metrics().count(base::metric::tls_handshakes, {secured ? "ok" : "failed"});
    if (!secured) {
      // The old stream is gone with the failed handshake.
      flow().cut = {};
      error(secured.error());
      co_return;
    }
    guest_ = std::move(*secured);
    auto session = tls::session_of(*guest_);
    flow().tls = std::move(session.version);
    flow().alpn = std::move(session.protocol);
    watch();
    co_await serve_http(gateway_, flow(), *guest_, {}, true);
  }

  /// The first byte of the connection, with everything that came along kept in received_.
  asio::awaitable<std::optional<unsigned char>> peek() {
    if (received_.empty()) {
      auto more = read_more();
      auto const read = co_await async::with_deadline(base::system_clock().in(first_bytes_timeout),
                                                      std::move(more));
      if (!read || received_.empty()) co_return std::nullopt;
    }
    co_return static_cast<unsigned char>(received_[0]);
  }

  async::Task<void> read_more() {
    std::array<char, 4096> buffer;
    auto const got = co_await guest_->read_some(buffer);
    if (!got) co_return std::unexpected(got.error());
    received_.append(buffer.data(), *got);
    if (*got == 0) co_return base::fail(base::Code::unavailable, "the guest closed the connection");
    co_return base::Result<void>();
  }

  async::Task<ClientHello> collect_hello() {
    while (true) {
      auto parsed = parse_client_hello(received_);
      if (!parsed) co_return base::passing(parsed);
      if (*parsed) co_return std::move(**parsed);
      auto const more = co_await read_more();
      if (!more) co_return std::unexpected(more.error());
    }
  }

  asio::awaitable<std::optional<ClientHello>> read_hello() {
    auto collecting = collect_hello();
    auto hello = co_await async::with_deadline(base::system_clock().in(first_bytes_timeout),
                                               std::move(collecting));
    if (!hello) {
      deny("malformed_client_hello");
      co_return std::nullopt;
    }
    if (hello->server_name) flow().sni = hello->server_name->str();
    co_return std::move(*hello);
  }

  async::Task<RequestHead> collect_head() {
    while (true) {
      auto const length = head_length(received_);
      if (!length) co_return std::unexpected(length.error());
      if (*length > 0)
        co_return parse_request_head(std::string_view(received_).substr(0, *length), flow().port);
      auto const more = co_await read_more();
      if (!more) co_return std::unexpected(more.error());
    }
  }

  /// SNI or Host, for clients whose resolver is not ours. Nothing when the bytes carry no name.
  asio::awaitable<std::optional<HostName>> name_in_first_bytes() {
    auto const first = co_await peek();
    if (!first) co_return std::nullopt;
    if (*first == 0x16) {
      auto const hello = co_await read_hello();
      if (!hello) co_return std::nullopt;
      co_return hello->server_name;
    }
    auto collecting = collect_head();
    auto const head = co_await async::with_deadline(base::system_clock().in(first_bytes_timeout),
                                                    std::move(collecting));
    if (!head) co_return std::nullopt;
    co_return head->host;
  }

  Gateway& gateway_;
  net::Stream guest_;
  std::string received_;
  std::list<LiveFlow>::iterator place_ = gateway_.flows().emplace(gateway_.flows().end());
};

}  // namespace

asio::awaitable<void> serve_flow(Gateway& gateway,
                                 net::Stream guest,
                                 std::uint32_t destination,
                                 std::uint16_t port) {
  FlowServer server(gateway, std::move(guest));
  co_await server.run(destination, port);
}

}  // namespace gateway
