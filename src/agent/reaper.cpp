#include "agent/reaper.hpp"

#include <sys/wait.h>

#include <csignal>
#include <vector>

#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace agent {

struct Reaper::Impl {
  explicit Impl(asio::any_io_executor const& executor) : signals(executor, SIGCHLD) {}

  asio::signal_set signals;
};

Reaper::Reaper(asio::any_io_executor executor, Orphans orphans)
    : impl_(std::make_unique<Impl>(executor)), orphans_(orphans) {}

Reaper::~Reaper() = default;

void Reaper::watch(pid_t child, OnExit on_exit) {
  children_.insert_or_assign(child, std::move(on_exit));
}

asio::awaitable<void> Reaper::run() {
  for (;;) {
    // Signals merge: one may stand for many children.
    reap();
    co_await impl_->signals.async_wait(asio::use_awaitable);
  }
}

void Reaper::reap() {
  if (orphans_ == Orphans::reap) return reap_everyone();
  std::vector<std::pair<OnExit, int>> ended;
  for (auto child = children_.begin(); child != children_.end();) {
    int status = 0;
    if (::waitpid(child->first, &status, WNOHANG) == child->first) {
      ended.emplace_back(std::move(child->second), status);
      child = children_.erase(child);
    } else {
      ++child;
    }
  }
  for (auto& [on_exit, status] : ended)
    on_exit(status);
}

void Reaper::reap_everyone() {
  bool buried_orphan = false;
  for (;;) {
    int status = 0;
    auto const pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) break;
    auto const child = children_.find(pid);
    if (child == children_.end()) {
      buried_orphan = true;
      continue;
    }
    auto on_exit = std::move(child->second);
    children_.erase(child);
    on_exit(status);
  }
  if (buried_orphan && on_orphans_) on_orphans_();
}

}  // namespace agent
