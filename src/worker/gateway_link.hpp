#pragma once

#include "domain/reach.hpp"
#include "hostd/client.hpp"
#include "http/client.hpp"
#include "net/byte_stream.hpp"
#include "vmm/descriptor.hpp"
#include "wire/config.hpp"
#include "wire/credential.hpp"
#include "wire/gateway.hpp"
#include "worker/audit_feed.hpp"
#include "worker/metrics.hpp"
#include "worker/reflections.hpp"

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

namespace worker {

/// What the links of a host share.
struct GatewayHost {
  boost::asio::any_io_executor executor;
  wire::Config const& config;
  hostd::Client hostd;
  AuditFeed& audit;
  http::Client& broker;
  Reflections& reflections;
};

/// A sandbox's line to its gateway: starts it, keeps it informed and alive, writes down what it
/// decides. Fails closed: without a gateway that has acknowledged the policy there is no network.
/// A gateway that crashed is replaced, three times in ten minutes at most. Used on the loop alone.
class GatewayLink {
 public:
  struct Wanted {
    std::string sandbox;
    std::uint64_t epoch = 0;
    std::uint32_t slot = 0;
    wire::EffectivePolicy policy;
    std::vector<wire::Lease> credentials;
  };

  /// Tells the guest which authority to trust; called when a replaced gateway has a new one.
  using TellGuest = std::function<async::Task<void>(std::string)>;

  GatewayLink(GatewayHost host, Wanted wanted, TellGuest tell_guest);

  /// Begins. `adopt`: a gateway of the worker before us may be there, with this policy. Otherwise
  /// the slot's spare one is taken, or a new one started.
  void begin(bool adopt);
  /// Until the policy is in force; or why it will not be.
  async::Task<void> wait_open();
  /// In force on new and on live connections when this returns. A policy that cannot be read
  /// changes nothing (invalid_argument); one that is not acknowledged within two seconds switches
  /// the network off (unavailable).
  async::Task<wire::GatewayApplied> apply(wire::EffectivePolicy policy,
                                          std::optional<std::vector<wire::Lease>> credentials);

  /// Looks whether the rules of the slot are still exactly those that this policy made; switches
  /// the network off when they are not.
  boost::asio::awaitable<void> check_rules();
  /// For good, with a line in the audit log. Does nothing when it is off.
  boost::asio::awaitable<void> switch_off(std::string reason);

  std::string const& authority_pem() const noexcept { return authority_; }

  /// Lets go of the gateway, which lives on.
  boost::asio::awaitable<void> close();
  /// The sandbox is over: its leases end. The gateway itself goes with the slot.
  boost::asio::awaitable<void> end();

 private:
  enum class State : std::uint8_t { closed, open, off };

  void spawn(std::string_view name, boost::asio::awaitable<void> child);
  enum class From : std::uint8_t { nothing, spare, predecessor };

  boost::asio::awaitable<void> live(From from);
  async::Task<void> connect(From from);
  async::Task<void> adopt_or_start(From from);
  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<void> read_events();
  boost::asio::awaitable<void> tend();
  boost::asio::awaitable<void> read_log(vmm::Descriptor log);
  boost::asio::awaitable<void> tell_guest_again();
  boost::asio::awaitable<void> wait_applied();
  boost::asio::awaitable<void> wait_settled();
  boost::asio::awaitable<void> watch_audit();
  boost::asio::awaitable<void> tend_and_watch();
  /// A broker that was restarted knows neither the gateway nor its leases.
  boost::asio::awaitable<void> renew_broker();
  void remember(std::map<std::string, std::string> const& names);
  static hostd::Passage passage_of(domain::Reach const& reach);
  /// Tells the slot's rules.
  async::Task<void> let_through(domain::Reach reach);
  async::Task<void> clear_leases();
  async::Task<void> put_leases();
  async::Task<void> end_revoked();
  async::Task<void> send(wire::GatewayCommand command);
  void on_event(wire::GatewayEvent event);
  void record(wire::GatewayDecision const& decision);
  void quarantine(wire::GatewayDecision const& decision);
  boost::asio::awaitable<void> end_quarantined();
  boost::asio::awaitable<void> keep_reflections();
  /// Not of what came back, until the API says otherwise.
  bool may_lease(wire::Lease const& lease) const;
  async::Task<void> verify_rules();
  wire::GatewayCommand start_command(std::string trusted) const;

  GatewayHost host_;
  Wanted wanted_;
  PolicyWords words_;
  TellGuest tell_guest_;
  State state_ = State::closed;
  std::optional<base::Error> error_;  // why it is off
  std::shared_ptr<net::ByteStream> stream_;
  std::uint32_t gateway_user_ = 0;
  std::string authority_;
  bool closing_ = false;
  bool guest_knows_one_ = false;  // an authority, which a new gateway's takes the place of
  std::optional<wire::GatewayApplied> applied_;
  std::deque<base::SteadyTime> crashes_;
  std::map<std::string, std::string> names_;  // synthetic ones, for the gateway's successor
  bool renewing_ = false;
  std::optional<domain::Reach> reach_;  // of the slot's rules; nothing: not known
  base::SteadyTime leases_due_{};
  int rules_unknown_ = 0;  // so many times in a row nobody could say whether the rules are ours
  std::set<std::string> revoked_;  // credentials that were taken away and whose leases are to end
  async::Turnstile changing_;
  async::Turnstile writing_;
  async::Signal changed_;
  async::TaskGroup tasks_;
};

/// A gateway that waits for its sandbox, closed: so that none has to be started when one comes. No
/// harm when it fails: the link starts one then.
boost::asio::awaitable<void> start_spare_gateway(hostd::Client hostd, std::uint32_t slot);

/// One decision as it stands in the audit log: fields that say nothing are left out.
std::string audit_record(std::string const& node,
                         std::string const& sandbox,
                         std::uint64_t epoch,
                         std::string const& time,
                         wire::GatewayDecision const& decision);

}  // namespace worker
