#include "base/log.hpp"
#include "worker/metrics.hpp"
#include "worker/sandbox.hpp"

/// A sandbox's network: its gateway from the slot's making to the end.
namespace worker {

namespace asio = boost::asio;

void Sandbox::begin_network(bool adopt) {
  if (!host_.has_uplink() || entry_.internal) return;
  auto tell_guest = [this](std::string authority) {
    boost::json::object changes{{"caBundle", std::move(authority)}};
    return tell_agent(std::move(changes));
  };
  gateway_ = std::make_shared<GatewayLink>(
      GatewayHost{
          host_.executor, host_.config, host_.hostd, host_.audit, host_.broker, host_.reflections},
      GatewayLink::Wanted{
          entry_.sandbox, entry_.epoch, entry_.slot, entry_.policy, entry_.credentials},
      std::move(tell_guest));
  gateway_->begin(adopt);
}

async::Task<void> Sandbox::wait_for_network() {
  if (!gateway_) co_return base::Result<void>();
  auto opened = co_await gateway_->wait_open();
  if (!opened) co_return base::passing(opened, "put the policy in force");
  mark("network_ready");
  co_return base::Result<void>();
}

async::Task<wire::GatewayApplied> Sandbox::set_policy(wire::SetPolicy wanted) {
  // Not while it is being suspended: the journal has one writer at a time.
  auto const turn = co_await changing_.enter();
  if (state_ != State::running && state_ != State::paused)
    co_return base::fail(base::Code::conflict, "the sandbox does not run");
  if (!gateway_)
    co_return base::fail(base::Code::conflict,
                         "this host gives sandboxes no network (uplink: none)");
  auto const gateway = gateway_;
  Stopwatch const watch;
  auto applied = co_await gateway->apply(wanted.policy, wanted.credentials);
  base::metrics().observe(
      base::metric::policy_apply_seconds, watch.seconds(), {applied ? "ok" : "failed"});
  if (!applied) co_return applied;
  entry_.policy = std::move(wanted.policy);
  if (wanted.credentials) entry_.credentials = std::move(*wanted.credentials);
  auto noted = co_await write_journal(entry_.phase);
  if (!noted) co_return base::passing(noted, "note the policy");
  co_return applied;
}

asio::awaitable<void> Sandbox::check_rules() {
  bool const at_work = state_ == State::running || state_ == State::paused;
  auto const gateway = gateway_;
  if (at_work && gateway) co_return co_await gateway->check_rules();
  if (at_work || state_ == State::warm) co_await check_rules_without_gateway();
}

/// It has no network that could be switched off: the slot is closed again, as it was, and a machine
/// of nobody is thrown away.
asio::awaitable<void> Sandbox::check_rules_without_gateway() {
  auto const before = state_;
  auto const checked = co_await async::blocking([client = host_.hostd, slot = entry_.slot] {
    return client.check_rules(slot, hostd::Passage{});
  });
  bool const altered = !checked && checked.error().code() == base::Code::denied;
  if (!altered || state_ != before) co_return;
  base::log::error("slot_rules_altered", {{"sandbox", id()}, {"slot", slot()}});
  if (state_ == State::warm) co_return ask_end("deleted", "the packet rules of its slot changed");
  wire::GatewayDecision decision;
  decision.kind = "network";
  decision.decision = "denied";
  decision.reason = "somebody changed the packet rules of its slot; it has no network anyway";
  auto const now = base::to_rfc3339(base::system_clock().wall_now());
  host_.audit.add(id(), audit_record(host_.config.node_name, id(), epoch(), now, decision));
}

asio::awaitable<void> Sandbox::close_network(std::string reason) {
  auto const gateway = gateway_;
  if (gateway) co_await gateway->switch_off(std::move(reason));
}

}  // namespace worker
