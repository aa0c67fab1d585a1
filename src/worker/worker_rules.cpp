#include "base/log.hpp"
#include "worker/worker.hpp"

/// Somebody with root on the host may flush or change the packet rules of a slot, or of the way
/// out. That opens no way by itself; it is found within seconds, and closed.
namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds check_every(5'000);
constexpr int uplink_failures_max = 3;
/// Sandboxes at a look: each costs hostd a process of some 10 ms.
constexpr std::size_t counted_at_once = 4;

}  // namespace

asio::awaitable<void> Worker::watch_rules() {
  for (;;) {
    co_await async::sleep_for(check_every);
    co_await check_rules();
    co_await count_drops();
  }
}

/// A few sandboxes at a time, one after the other.
asio::awaitable<void> Worker::count_drops() {
  for (std::size_t i = 0; i < std::min(counted_at_once, sandboxes_.size()); ++i) {
    counted_last_ = GuardCounts::next_after(counted_last_, sandboxes_);
    auto const sandbox = sandboxes_.at(counted_last_);
    using enum Sandbox::State;
    bool const has_slot =
        sandbox->state() == running || sandbox->state() == paused || sandbox->state() == warm;
    if (!has_slot) continue;
    auto const drops = co_await async::blocking(
        [client = host_.hostd, slot = sandbox->slot()] { return client.count_drops(slot); });
    if (drops && sandboxes_.contains(sandbox->id())) guard_counts_.note(sandbox->id(), *drops);
  }
}

asio::awaitable<void> Worker::check_rules() {
  std::vector<std::shared_ptr<Sandbox>> all;
  for (auto const& [id, sandbox] : sandboxes_)
    all.push_back(sandbox);
  for (auto const& sandbox : all)
    co_await sandbox->check_rules();
  co_await host_.slots.check_ready();
  co_await check_uplink();
}

asio::awaitable<void> Worker::check_uplink() {
  if (!host_.has_uplink()) co_return;
  auto const checked =
      co_await async::blocking([client = host_.hostd] { return client.check_uplink(); });
  bool const altered = !checked && checked.error().code() == base::Code::denied;
  bool const failed = !checked && checked.error().code() == base::Code::internal;
  uplink_failures_ = failed ? uplink_failures_ + 1 : 0;
  if (altered) {
    wire::GatewayDecision decision;
    decision.kind = "uplink";
    decision.decision = "denied";
    decision.reason = "somebody changed the packet rules of the way out; they are ours again";
    auto const now = base::to_rfc3339(base::system_clock().wall_now());
    host_.audit.add("", audit_record(host_.config.node_name, "", 0, now, decision));
  }
  if (!failed) co_return;
  base::log::error("uplink_not_checked",
                   {{"what", checked.error().message()}, {"detail", checked.error().detail()}});
  if (uplink_failures_ != uplink_failures_max) co_return;
  // Nobody knows any more what gateways may reach.
  std::vector<std::shared_ptr<Sandbox>> all;
  for (auto const& [id, sandbox] : sandboxes_)
    all.push_back(sandbox);
  for (auto const& sandbox : all)
    co_await sandbox->close_network("the packet rules of the way out cannot be made ours");
}

}  // namespace worker
