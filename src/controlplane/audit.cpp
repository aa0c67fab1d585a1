#include "controlplane/audit.hpp"

#include "base/log.hpp"

namespace controlplane {
namespace {

constexpr std::chrono::milliseconds write_every{1000};
constexpr std::size_t waiting_max = 10'000;
constexpr std::size_t batch_max = 1000;

}  // namespace

void Audit::add(store::KeyUse use) {
  if (waiting_.size() >= waiting_max) {
    ++lost_;
    return;
  }
  waiting_.push_back(std::move(use));
}

asio::awaitable<void> Audit::run() {
  for (;;) {
    co_await async::sleep_for(write_every);
    co_await flush();
  }
}

asio::awaitable<void> Audit::flush() {
  while (!waiting_.empty()) {
    auto const count = std::min(waiting_.size(), batch_max);
    auto const end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<store::KeyUse> batch(waiting_.begin(), end);
    auto written = co_await keys_.record_uses(std::move(batch),
                                              base::system_clock().in(std::chrono::seconds(5)));
    if (!written) {
      base::log::warn("key_uses_not_written",
                      {{"waiting", waiting_.size()}, {"why", written.error().detail()}});
      co_return;
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (lost_ > 0) base::log::error("key_uses_lost", {{"count", std::exchange(lost_, 0)}});
}

}  // namespace controlplane
