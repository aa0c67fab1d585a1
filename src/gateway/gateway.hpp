#pragma once

#include "async/task.hpp"
#include "base/id.hpp"
#include "domain/egress_policy.hpp"
#include "gateway/broker_client.hpp"
#include "gateway/dialer.hpp"
#include "gateway/dns.hpp"
#include "gateway/limits.hpp"
#include "os/fd.hpp"
#include "tls/minter.hpp"
#include "wire/gateway.hpp"

#include <functional>
#include <list>

/// The network of one sandbox. Everything that its guest sends arrives here, on sockets that
/// space-hostd opened in the slot; what may leave is dialled from here. This process has no
/// capability, no disk and no other sandbox.
namespace gateway {

namespace asio = boost::asio;

/// A connection of the guest while it lives: what was decided about it, so that a new policy can
/// decide again.
struct LiveFlow {
  std::string id;  // what of it is recorded has this
  base::SteadyTime began = base::system_clock().steady_now();
  std::uint64_t generation = 0;  // of the policy that let it in or did not
  std::uint32_t requests = 0;    // so far
  std::string sni;
  std::string tls;  // version, once there was a handshake
  std::string alpn;
  std::string upstream;  // the address that raw bytes go to
  std::uint64_t up_bytes = 0;
  std::uint64_t down_bytes = 0;
  std::optional<domain::HostName> host;  // nothing for a literal address
  std::uint32_t address = 0;             // of the literal
  std::uint16_t port = 0;
  domain::Flow flow = domain::Flow::http;
  std::optional<domain::RequestTuple> request;  // the one under way
  std::vector<std::string> credentials;         // that it carries
  RuleMeters meters;                            // of what it does now
  bool over = false;                            // was cut: what waits inside must not go on
  std::function<void()> cut;
};

/// A record about this flow: who it is, and where it goes.
wire::GatewayDecision record_of(LiveFlow const& flow, std::string_view kind);
std::uint64_t micros_since(base::SteadyTime began);

class Scrubber;

/// Where decisions go. Coalesces repeats of one denial within a second.
class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void report(wire::GatewayDecision decision) = 0;

  /// A name has an address now, which a successor of this process shall know.
  virtual void name_made(domain::HostName const& /*name*/, std::uint32_t /*address*/) {}
};

/// State that all flows share.
class Gateway {
 public:
  Gateway(asio::any_io_executor executor, DecisionSink& sink, std::unique_ptr<BrokerClient> broker);
  ~Gateway();

  /// Opens the network; once in a life. Fails, and stays closed, when something of it cannot be
  /// enforced.
  base::Result<wire::GatewayStarted> start(wire::GatewayStart const& start);

  bool started() const noexcept { return dialer_ != nullptr; }

  /// Swaps the policy and judges every live connection again; the ones that lost their permission
  /// are cut when this returns. On an error the old policy holds.
  wire::GatewayApplied apply(wire::EffectivePolicy const& text);
  /// Cuts what carries this credential.
  void revoke(std::string const& credential);
  /// The worker was heard of; without it the policy ages and the network closes.
  void heard_of_worker() noexcept;

  // For flows:
  /// The policy in force; null when there is none (any more): everything is refused then.
  std::shared_ptr<domain::EgressPolicy const> policy() const;

  std::list<LiveFlow>& flows() noexcept { return flows_; }

  bool admit_connection();
  bool admit_handshake();
  /// Finds the flow's meters, too.
  Limits::Admission admit_request(LiveFlow& flow, domain::Decision const& decision);
  bool admit_bytes(LiveFlow& flow, std::uint64_t up, std::uint64_t down);

  /// Why something was not admitted: by this budget, or because no policy is in force.
  std::string_view refusal(std::string_view budget) const {
    return policy() ? budget : "no_policy";
  }

  /// Of a flow, in this process's life and any other's.
  std::string next_flow_id() { return fmt::format("{}-{}", life_, ++flows_begun_); }

  Limits const& limits() const noexcept { return limits_; }

  Dialer& dialer() noexcept { return *dialer_; }

  tls::Minter& minter() noexcept { return *minter_; }

  BrokerClient* broker() noexcept { return broker_.get(); }

  SyntheticNames& names() noexcept { return names_; }

  /// What does not say which policy decided is of the one in force.
  void report(wire::GatewayDecision decision);

  void name_made(domain::HostName const& name, std::uint32_t address) {
    sink_.name_made(name, address);
  }

  asio::any_io_executor executor() const { return executor_; }

 private:
  bool still_allowed(LiveFlow const& flow, domain::EgressPolicy const& policy) const;

  asio::any_io_executor executor_;
  DecisionSink& sink_;
  std::unique_ptr<BrokerClient> broker_;
  std::shared_ptr<domain::EgressPolicy const> policy_;
  std::chrono::seconds policy_max_age_{60};
  base::SteadyTime heard_;
  std::unique_ptr<Resolver> resolver_;
  std::unique_ptr<Dialer> dialer_;
  std::shared_ptr<tls::Minter> minter_;
  SyntheticNames names_{0};
  Limits limits_;
  std::list<LiveFlow> flows_;
  std::string life_ = base::random_hex(4);
  std::uint64_t flows_begun_ = 0;
};

/// One accepted connection, from its first byte to its end: classify, judge, then exchange or
/// relay. `destination` is the address and port that the guest connected to.
asio::awaitable<void> serve_flow(Gateway& gateway,
                                 net::Stream guest,
                                 std::uint32_t destination,
                                 std::uint16_t port);

/// Requests on one connection to one name, one after the other. `received` are bytes read ahead.
asio::awaitable<void> serve_http(
    Gateway& gateway, LiveFlow& flow, net::ByteStream& guest, std::string received, bool tls);

/// Answers queries on the slot's port 53 until cancelled.
asio::awaitable<void> serve_dns_datagrams(Gateway& gateway, os::Fd socket);
asio::awaitable<void> serve_dns_stream(Gateway& gateway, net::Stream guest);

/// Takes new connections to the broker that space-hostd brings, until cancelled.
asio::awaitable<void> take_renewals(Gateway& gateway, os::Fd listener);

/// Raw bytes in both directions: only a judged connection can make the permit.
class RawPermit {
 public:
  /// Nothing unless the decision allows raw bytes (tcp or passthrough).
  static std::optional<RawPermit> from(domain::Decision const& decision);

 private:
  RawPermit() = default;
};

/// What was read of the guest before goes first. The end of it has a record with what went through.
asio::awaitable<void> relay_raw(Gateway& gateway,
                                LiveFlow& flow,
                                RawPermit permit,
                                net::ByteStream& guest,
                                std::string from_guest,
                                net::ByteStream& upstream);

/// The two directions of a WebSocket after its handshake, frame by frame: what is no frame ends
/// both. The texts are bytes that were read ahead. The scrubber, if any, goes over what the server
/// says, each frame by itself; `scrubbed_some` is called after each piece, before the guest gets
/// it.
asio::awaitable<void> relay_websocket(Gateway& gateway,
                                      LiveFlow& flow,
                                      net::ByteStream& guest,
                                      std::string from_guest,
                                      net::ByteStream& upstream,
                                      std::string from_upstream,
                                      Scrubber* scrubber,
                                      std::function<void()> scrubbed_some);

/// A stream that first gives bytes which were read ahead of it.
net::Stream with_prefix(std::string prefix, net::Stream stream);

}  // namespace gateway
