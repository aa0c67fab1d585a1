#pragma once

#include "async/task.hpp"

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>

namespace agent {

namespace asio = boost::asio;

/// The only place that waits for children. A child is registered in the same turn of the loop in
/// which it was made, so that even the fastest exit is not lost; as PID 1 it also buries the
/// orphans of the machine.
class Reaper {
 public:
  enum class Orphans : std::uint8_t { reap, leave };
  using OnExit = std::function<void(int wait_status)>;

  /// `leave` waits for registered children alone: for a process that has other children (tests).
  Reaper(asio::any_io_executor executor, Orphans orphans);
  ~Reaper();
  Reaper(Reaper const&) = delete;
  Reaper& operator=(Reaper const&) = delete;

  /// `on_exit` is called once, on the loop, when the child has been reaped: its pid is free from
  /// then on.
  void watch(pid_t child, OnExit on_exit);

  /// Called after orphans were buried.
  void on_orphans(std::function<void()> call) { on_orphans_ = std::move(call); }

  /// Runs until cancelled.
  asio::awaitable<void> run();

 private:
  void reap();
  void reap_everyone();

  struct Impl;
  std::unique_ptr<Impl> impl_;
  Orphans orphans_;
  std::map<pid_t, OnExit> children_;
  std::function<void()> on_orphans_;
};

}  // namespace agent
