#include "base/log.hpp"
#include "worker/worker.hpp"

/// Somebody with root on the host may flush or change the packet rules of a slot, or of the way
/// out. That opens no way by itself; it is found within seconds, and closed.
namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds check_every(5'000);
constexpr int uplink_failures_max = 3;

}  // namespace

asio::awaitable<void> Worker::watch_rules() {
  for (;;) {
    co_await async::sleep_for(check_every);
    co_await check_rules();
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
    host_.audit.add("", audit_record("", 0, now, decision));
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
