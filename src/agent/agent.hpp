#pragma once

#include "agent/context.hpp"
#include "agent/init_handler.hpp"
#include "agent/loopback_forward.hpp"
#include "agent/machine.hpp"
#include "agent/process_service.hpp"
#include "agent/reaper.hpp"
#include "agent/router.hpp"
#include "http/server.hpp"

namespace agent {

/// The whole agent but for what makes it PID 1: the services behind one HTTP server. main_agent.cpp
/// runs one in a guest or on a host port, tests run one in their own process.
class Agent {
 public:
  struct Options {
    std::string etc_dir = "/etc";
    bool owns_machine = false;
    Reaper::Orphans orphans = Reaper::Orphans::leave;
    ProcessService::Options processes;
    std::optional<LoopbackForwarder::Options> loopback;  // for the owner of a machine
  };

  /// `machine` outlives the agent.
  Agent(asio::any_io_executor executor, Machine& machine, Options options);
  ~Agent();
  Agent(Agent const&) = delete;
  Agent& operator=(Agent const&) = delete;

  void listen(std::unique_ptr<net::Listener> listener) { server_->listen(std::move(listener)); }

  Context& context() noexcept { return context_; }

  ProcessService& processes() noexcept { return processes_; }

  /// Stops serving, kills the commands and joins all tasks. Awaited before destruction.
  asio::awaitable<void> close();

 private:
  struct Files;
  Context context_;
  Reaper reaper_;
  ProcessService processes_;
  std::unique_ptr<Files> files_;
  InitHandler init_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<LoopbackForwarder> forwarder_;
  async::TaskGroup tasks_;
};

}  // namespace agent
