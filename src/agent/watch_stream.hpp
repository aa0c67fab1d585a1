#pragma once

#include "agent/connect_rpc.hpp"
#include "agent/pipe_end.hpp"
#include "agent/watch.hpp"
#include "async/task.hpp"

namespace agent {

/// A watch that a client polls: events are taken from the kernel as they come, so that new
/// directories are followed at once, and again when the client asks, so that it sees what was
/// acknowledged to it before.
struct PolledWatch {
  PolledWatch(asio::any_io_executor executor,
              std::unique_ptr<Watch> opened,
              os::Fd readable,
              std::string etc);

  /// What is kept for a client that does not ask; the kernel keeps as much again.
  static constexpr std::size_t kept_max = 4096;
  /// What one answer may hold.
  static constexpr std::size_t answered_max = 32'768;

  /// Returns when there is something to read and room for it, or removed.
  asio::awaitable<void> follow_once();
  asio::awaitable<RpcResult<json::value>> events();
  void remove() noexcept;

  std::unique_ptr<Watch> watch;  // touched by whoever has the turn
  PipeEnd ready;
  std::string etc_dir;
  async::Turnstile turns;
  async::Signal taken;
  bool removed = false;
};

/// The messages of one WatchDir. `streams` counts the living ones.
std::unique_ptr<MessageSource> make_watch_source(asio::any_io_executor executor,
                                                 std::unique_ptr<Watch> watch,
                                                 os::Fd readable,
                                                 std::string const& etc_dir,
                                                 std::shared_ptr<std::size_t> streams);

}  // namespace agent
